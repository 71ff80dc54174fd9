"""The body of the base network `Conv4` as a module with running statistics, so that it can be trained as a classifier.

Each of its norms divides by statistics of the batch in training and by running ones afterwards, and has no weights of
its own. With running statistics a norm is linear. So the body of a `Conv4` without norms can take it in:

    norm(W ∗ x) = (W ∗ x − m) / s = (W / s) ∗ x − m / s,   s² = variance + ε
"""

from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from fewsure.features.backbone import Backbone, scaled
from fewsure.networks.conv4 import EPSILON, Conv4, Norm
from fewsure.types import Params


class ConvolutionalNetwork(Backbone):
    """Four blocks of 3×3 convolution, norm, 2×2 max-pooling and ReLU, with 32 filters as in the paper.

    >>> with torch.device("meta"):
    ...     ConvolutionalNetwork.of_images((3, 84, 84), width=1.0).outputs
    800
    """

    SMALLEST: ClassVar[int] = 2**Conv4.BLOCKS
    STANDARDISES: ClassVar[bool] = False
    FILTERS: ClassVar[int] = 32

    def __init__(self, network: Conv4) -> None:
        blocks: list[nn.Module] = [
            nn.Sequential(
                nn.Conv2d(inputs, network.filters, 3, padding=1, bias=False),
                nn.BatchNorm2d(network.filters, eps=EPSILON, affine=False),
                nn.MaxPool2d(2),
                nn.ReLU(inplace=True),
            )
            for inputs in (network.shape[0], *[network.filters] * (Conv4.BLOCKS - 1))
        ]
        super().__init__(network.shape[0], nn.Sequential(*blocks), network.width)

    @classmethod
    def of_images(cls, shape: tuple[int, int, int], width: float) -> Self:
        return cls(Conv4(shape, None, scaled(cls.FILTERS, width)))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images).flatten(1)
        return features

    def body(self, norm: Norm) -> Params:
        """The weights of a `Conv4` with such norms that begins where this network ended, by name."""
        params: Params = {}
        for number, layers in enumerate(self.layers.children()):
            convolution, normalise, *_ = layers.children()
            assert isinstance(convolution, nn.Conv2d)
            assert isinstance(normalise, nn.BatchNorm2d)
            assert normalise.running_mean is not None
            assert normalise.running_var is not None
            weight, bias = convolution.weight.detach(), torch.zeros_like(normalise.running_mean)
            if norm == "none":
                scale = (normalise.running_var + EPSILON).rsqrt()
                weight, bias = scale[:, None, None, None] * weight, -scale * normalise.running_mean
            params |= {f"{number}.weight": weight.contiguous(), f"{number}.bias": bias}
        return params
