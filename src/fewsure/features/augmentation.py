"""Random crops, mirror images and colours of a whole batch on the device that holds the images, without a loop."""

import torch
from torch import Tensor


def unit(images: Tensor) -> Tensor:
    """uint8 images (N, C, H, W) as numbers in [0, 1], with the channels of a pixel side by side in memory."""
    return images.to(torch.get_default_dtype(), memory_format=torch.channels_last).div_(255)


def crops(images: Tensor, rows: Tensor, *, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """The images (N, C, H, W) in these rows (B,), each shifted and mirrored at random: (B, C, H, W) of the same type.

    A shift is uniform on −padding … padding pixels in each direction, and what comes in at an edge is the image
    reflected there. With `flip`, half of the images are mirrored left to right. Picking, shifting and mirroring are one
    indexing of `images`.
    """
    _, channels, height, width = images.shape
    device, count = images.device, len(rows)
    shifts = torch.randint(-padding, padding + 1, (2, count, 1), generator=generator, device=device)
    down = _reflected(torch.arange(height, device=device) + shifts[0], height)
    across = _reflected(torch.arange(width, device=device) + shifts[1], width)
    if flip:
        mirrored = torch.rand((count, 1), generator=generator, device=device) < 0.5
        across = torch.where(mirrored, across.flip(1), across)
    channel = torch.arange(channels, device=device)
    return images[rows[:, None, None, None], channel[:, None, None], down[:, None, :, None], across[:, None, None, :]]


def jittered(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Images in [0, 1] with random brightness b, contrast c and saturation s, uniform on 1 ± `strength` for each image.

    With x a pixel, m the mean of the image and g the mean of the pixel's channels:
    x ← b·x, then x ← m + c·(x − m), then x ← g + s·(x − g), cut off at 0 and 1.
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
