"""The base of all feature networks: images in [0, 1] become one feature vector each."""

from typing import ClassVar, Self

import torch
from torch import Tensor, nn


class Backbone(nn.Module):
    """Images in [0, 1] (N, C, H, W) → features (N, `outputs`)."""

    SMALLEST: ClassVar[int]
    """Pixels on the shorter side of an image, at least."""
    STANDARDISES: ClassVar[bool] = True
    """Whether each channel is standardised by the training images first."""
    mean: Tensor
    """(C,) of the training images."""
    std: Tensor

    def __init__(self, channels: int, layers: nn.Module, outputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))
        self.layers = layers
        self.outputs = outputs

    @classmethod
    def of_images(cls, shape: tuple[int, int, int], width: float) -> Self:
        """The network for images of a shape (C, H, W), `width` times as wide as usual."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """The features of each image."""
        raise NotImplementedError


def scaled(filters: int, width: float) -> int:
    """Filters of a network that is `width` times as wide.

    >>> scaled(640, 1.0), scaled(64, 0.1), scaled(64, 0.001)
    (640, 6, 1)
    """
    return max(1, round(filters * width))
