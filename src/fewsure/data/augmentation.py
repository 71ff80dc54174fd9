"""Random changes of training examples, a whole batch at a time on the device that holds them, without a loop."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fewsure.data.pools import Pool, merge, network_inputs


class Augmentation(Protocol):
    """How training examples are changed at random; `str` of it ends a sentence that begins with "examples"."""

    def __call__(self, examples: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        """The examples (N, …) in these rows (B,), each changed at random: (B, …)."""


@dataclass(frozen=True)
class Mixing:
    """Adds `times` the difference of two random examples to each."""

    times: float

    def __call__(self, examples: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        others = torch.randint(len(examples), (2, len(rows)), generator=generator, device=generator.device)
        plus, minus = examples[others]
        mixed: Tensor = examples[rows] + self.times * (plus - minus)
        return mixed

    def __str__(self) -> str:
        return f"mixed by {self.times:g}"


@dataclass(frozen=True)
class Dropping:
    """Sets each bit to 0 with a probability."""

    share: float

    def __call__(self, examples: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        bits = network_inputs(examples[rows])
        return bits * (torch.rand(bits.shape, generator=generator, device=generator.device) >= self.share)

    def __str__(self) -> str:
        return f"without {self.share:.0%} of their bits"


@dataclass(frozen=True)
class Moving:
    """Shifts each image by up to so many pixels in each direction, and mirrors half of them if `flip`."""

    shift: int
    flip: bool

    def __call__(self, examples: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        return crops(examples, rows, padding=self.shift, flip=self.flip, generator=generator)

    def __str__(self) -> str:
        shifted = [f"shifted by up to {self.shift} pixels"] if self.shift else []
        return " and ".join([*shifted, *(["mirrored at random"] if self.flip else [])])


def turned(pool: Pool) -> Pool:
    """A pool of square images with three more classes for each: its images turned by one, two and three quarters."""
    for quarters in (1, 2):  # those turned by two quarters are of the classes that one quarter has added, too
        images = torch.rot90(pool.examples, quarters, (-2, -1))
        classes = tuple(f"{name}, turned by {90 * quarters}°" for name in pool.classes)
        groups = tuple(f"{name}, turned by {90 * quarters}°" for name in pool.groups)
        pool = merge(pool, Pool(images, pool.starts, classes, groups, f"turned {pool.checksum}"))
    return pool


def unit(images: Tensor) -> Tensor:
    """uint8 images (N, C, H, W) as numbers in [0, 1], with the channels of a pixel side by side in memory."""
    return images.to(torch.get_default_dtype(), memory_format=torch.channels_last).div_(255)


def crops(images: Tensor, rows: Tensor, *, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """The images (N, C, H, W) in these rows (B,), each shifted and mirrored at random: (B, C, H, W) of the same type.

    A shift is uniform on −padding … padding pixels in each direction, and what comes in at an edge is the image
    reflected there. With `flip`, half of the images are mirrored left to right. Whole rows of pixels are picked first:
    picking each pixel takes four times as long.
    """
    _, channels, height, width = images.shape
    device, count = images.device, len(rows)
    shifts = torch.randint(-padding, padding + 1, (2, count, 1), generator=generator, device=device)
    down = _reflected(torch.arange(height, device=device) + shifts[0], height)
    across = _reflected(torch.arange(width, device=device) + shifts[1], width)
    if flip:
        mirrored = torch.rand((count, 1), generator=generator, device=device) < 0.5
        across = torch.where(mirrored, across.flip(1), across)
    picked = images[rows.unsqueeze(1), :, down]  # (B, H, C, W)
    return picked.gather(3, across[:, None, None].expand(-1, height, channels, -1)).transpose(1, 2).contiguous()


def jittered(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Images in [0, 1] with random brightness b, contrast c and saturation s, uniform on 1 ± `strength` for each image.

    A pixel x becomes b·x, then m + c·(x − m), then g + s·(x − g), cut off at 0 and 1. m is the mean of the image, and
    g the mean of the pixel's channels.
    """
    draws = torch.rand((3, len(images), 1, 1, 1), generator=generator, device=images.device)
    brightness, contrast, saturation = 1 + strength * (2 * draws - 1)
    images = brightness * images
    images = torch.lerp(images.mean((1, 2, 3), keepdim=True), images, contrast)
    images = torch.lerp(images.mean(1, keepdim=True), images, saturation)
    return images.clamp(0, 1)


def _reflected(positions: Tensor, size: int) -> Tensor:
    """Positions outside 0 … size − 1, mirrored at the first or the last one."""
    return (size - 1) - ((size - 1) - positions.abs()).abs()
