"""How images look without their shapes: histograms of colours, on which plain methods show what shapes are worth."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewsure.data.own.arrays import GivenClasses
from fewsure.data.own.rows import Rows
from fewsure.data.pools import SPLITS
from fewsure.data.protocol import Data

BINS = 16
"""Bins of each channel's histogram."""


def colour_histograms(data: Data) -> GivenClasses:
    """The tasks of a user's images with the same classes and examples, as histograms of their colours."""
    pools = {split: data.pool(split) for split in SPLITS}
    units = [np.repeat(np.array(pool.classes), pool.counts.numpy()) for pool in pools.values()]
    names = np.array(data.known_classes)
    labels = [names[pool.labels.numpy()] for pool in pools.values() if pool.labels is not None]
    rows = Rows(
        np.concatenate([histograms(pool.examples).numpy() for pool in pools.values()]),
        np.concatenate(labels or units),
        np.concatenate(units) if labels else None,
        np.repeat(np.array(SPLITS), list(map(len, units))),
        (),
        "colour histograms",
    )
    sizes: Any = {"shot": data.shot, "query": data.query, "softmax_temperature": None}
    sizes |= {"fixed_classes": True} if data.fixed_classes else {"way": data.outputs}
    return GivenClasses(**sizes, source=rows)


def histograms(images: Tensor) -> Tensor:
    """The square roots of the shares of pixels (N, C · BINS) in each bin of each channel, from images (N, C, H, W).

    >>> histograms(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8))[0, -1]
    tensor(1., dtype=torch.float64)
    """
    scaled = images.double() / 255 if images.dtype == torch.uint8 else images.double()
    bins = (scaled * BINS).long().clamp(0, BINS - 1).flatten(2)
    shares = torch.zeros(*bins.shape[:2], BINS, dtype=torch.float64)
    shares.scatter_add_(2, bins, torch.ones_like(bins, dtype=torch.float64))
    return (shares / bins.shape[2]).sqrt().flatten(1)
