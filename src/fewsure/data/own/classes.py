"""Classification tasks of a user's own examples, which are vectors of numbers or arrays of pixels."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from fewsure.core.config import LEARNED
from fewsure.data.classification import Classification, forget_pools
from fewsure.data.io.feature_files import pool_of_rows
from fewsure.data.own.rows import SHARES, Rows, Shares, require_shares, row_splits
from fewsure.data.pools import SPLITS, Pool, Split
from fewsure.data.scaling import Scale, learn_scale
from fewsure.errors import FewsureError


@dataclass(frozen=True)
class OwnClassification(Classification):
    """Tasks whose classes are those of a user's own rows. Inputs are scaled as the training classes' rows say.

    Where rows belong to tasks, a class is a class of one task, all classes of a task meet there, and whole tasks are
    held out; elsewhere any classes may meet, and classes are held out. A class with fewer than shot + query examples is
    left out.
    """

    own = True

    shares: Shares = SHARES
    """Shares of the classes for training, validation and testing, where the data has no split of its own."""
    scale: Scale | None = field(default=None, metadata=LEARNED)
    """What was learned of the training classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_shares(self.shares)

    def rows(self) -> Rows:
        """All rows, with their classes."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        return self.fitted_scale.shape

    @property
    def fitted_scale(self) -> Scale:
        return self.scale or _read(self).scale

    @property
    def draws_within_group(self) -> bool:
        return self.within_group or _read(self).has_tasks

    def prepared(self) -> Self:
        _read.cache_clear()
        forget_pools()
        return replace(self, scale=_read(replace(self, scale=None)).scale)

    def pool(self, split: Split) -> Pool:
        """The examples of a split, scaled, on the CPU."""
        return self.large_enough(_read(self).pools[split], split)


class _Read(NamedTuple):
    """What a user's rows come to."""

    pools: dict[Split, Pool]
    scale: Scale
    has_tasks: bool


@lru_cache(maxsize=4)
def _read(data: OwnClassification) -> _Read:
    rows = data.rows()
    units, what = (rows.y, "classes") if rows.task is None else (rows.task, "tasks")
    groups = np.full(len(rows.y), "") if rows.task is None else rows.task
    labels = rows.y if rows.task is None else np.char.add(np.char.add(rows.task, "/"), rows.y)
    splits = row_splits(rows, units, data.shares, what)
    scale = data.scale or learn_scale(rows.x[splits == "train"], columns=rows.columns)
    if rows.x.shape[1:] != scale.shape:
        raise FewsureError(
            f"{rows.where}: expected examples of shape {scale.shape}, as in training, but got {rows.x.shape[1:]}"
        )
    x = rows.x if rows.x.dtype == np.uint8 else scale.inputs(torch.from_numpy(rows.x)).float().numpy()
    pools = {
        split: pool_of_rows(Path(rows.where), x[splits == split], labels[splits == split], groups[splits == split])
        for split in SPLITS
    }
    return _Read(pools, scale, rows.task is not None)
