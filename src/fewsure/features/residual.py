"""Residual networks from images to one feature vector each: ResNet-12 and WRN-28-10, both with 640 features.

They are ordinary modules with batch norm, trained once. Later a small network on top of them is meta-learned.
"""

from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewsure.features.backbone import Backbone, scaled

LEAK = 0.1
"""Slope of ResNet-12's leaky ReLU below 0."""


class ResidualNetwork(Backbone):
    """Each channel is standardised; the features are the average of the last feature maps over all positions."""

    @classmethod
    def of_images(cls, shape: tuple[int, int, int], width: float) -> Self:
        return cls(shape[0], width)  # type: ignore[call-arg, arg-type]

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers((images - self.mean[:, None, None]) / self.std[:, None, None])
        return maps.mean((2, 3))


class ResNet12(ResidualNetwork):
    """Four residual blocks of three 3×3 convolutions, with 64, 160, 320 and 640 filters (Lee et al., 2019).

    Its usual companion DropBlock is left out.

    >>> with torch.device("meta"):
    ...     sum(weight.numel() for weight in ResNet12(channels=3).parameters())
    12424320
    """

    SMALLEST = 16
    FILTERS = (64, 160, 320, 640)

    def __init__(self, channels: int, width: float = 1.0) -> None:
        filters = [channels, *(scaled(count, width) for count in self.FILTERS)]
        super().__init__(channels, nn.Sequential(*(PoolingBlock(*pair) for pair in pairwise(filters))), filters[-1])


class PoolingBlock(nn.Module):
    """Three times 3×3 convolution, batch norm and leaky ReLU, the input added before the last ReLU; 2×2 max-pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            convolution(inputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(LEAK, inplace=True),
            convolution(outputs, outputs),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(LEAK, inplace=True),
            convolution(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential(convolution(inputs, outputs, size=1), nn.BatchNorm2d(outputs))

    def forward(self, maps: Tensor) -> Tensor:
        joined = functional.leaky_relu(self.main(maps) + self.shortcut(maps), LEAK)
        return functional.max_pool2d(joined, 2)


class WideResNet(ResidualNetwork):
    """WRN-28-10 (Zagoruyko and Komodakis, 2016): three groups of four blocks with 160, 320 and 640 filters.

    >>> with torch.device("meta"):
    ...     sum(weight.numel() for weight in WideResNet(channels=3).parameters())
    36472784
    """

    SMALLEST = 4
    STEM = 16
    FILTERS = (160, 320, 640)
    BLOCKS = 4

    def __init__(self, channels: int, width: float = 1.0) -> None:
        filters = [self.STEM, *(scaled(count, width) for count in self.FILTERS)]
        blocks: list[nn.Module] = []
        for group, (inputs, outputs) in enumerate(pairwise(filters)):
            blocks.append(PreActivationBlock(inputs, outputs, stride=2 if group else 1))
            blocks += [PreActivationBlock(outputs, outputs) for _ in range(self.BLOCKS - 1)]
        last = [nn.BatchNorm2d(filters[-1]), nn.ReLU(inplace=True)]
        super().__init__(channels, nn.Sequential(convolution(channels, self.STEM), *blocks, *last), filters[-1])


class PreActivationBlock(nn.Module):
    """Twice batch norm, ReLU and 3×3 convolution, added to the input."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.main = nn.Sequential(
            convolution(inputs, outputs, stride=stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            convolution(outputs, outputs),
        )
        alike = inputs == outputs and stride == 1
        self.shortcut = None if alike else convolution(inputs, outputs, size=1, stride=stride)

    def forward(self, maps: Tensor) -> Tensor:
        active = functional.relu(self.norm(maps))
        main: Tensor = self.main(active)
        # Where the shapes change, the shortcut too starts from the normalised input, as in the original.
        return main + (maps if self.shortcut is None else self.shortcut(active))


def convolution(inputs: int, outputs: int, *, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, since a batch norm follows or has shifted its input."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw all weights: convolutions after He et al. (2015), linear layers uniform in ±1/√inputs, norms neutral."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
