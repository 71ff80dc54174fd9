"""Gradient-boosted trees of all training rows, and the mean of what they miss in a task.

y = trees(x) + b + noise of σ,   b ~ N(μ, τ²) anew for each task,   exact posterior of b

The trees are those of scikit-learn's HistGradientBoostingRegressor, kept as tensors. μ, τ and σ are fitted as
those of `mean`, to the errors of trees grown without the group. A tree's errors on its own rows are too small.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewsure.algorithms.linear import Mean
from fewsure.errors import require
from fewsure.types import Batch, Info, Mixture, Model, Noise, Params, Parts, Stage, Task

FOLDS = 5
"""Parts of the training groups, each of which is predicted by trees of the others."""


@dataclass(frozen=True)
class Boosting(Mean):
    """Gradient-boosted trees of all training rows, plus the shrunken mean of what they miss in a task's known rows."""

    trees: int = 100
    """Trees that are added up."""
    leaves: int = 31
    """The most leaves of a tree."""
    depth: int = 8
    """The most splits from the root of a tree to a leaf."""
    tree_lr: float = 0.1
    """The share of each tree that is added."""

    def __post_init__(self) -> None:
        require(self.trees >= 1, "trees", "at least 1", self.trees)
        require(self.leaves >= 2, "leaves", "at least 2", self.leaves)
        require(self.depth >= 1, "depth", "at least 1", self.depth)
        require(0 < self.tree_lr <= 1, "tree_lr", "a number in (0, 1]", self.tree_lr)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        nodes = torch.zeros(self.trees, 2 * self.leaves - 1)
        names = ("split", "threshold", "left", "right", "value")
        trees = {name: nodes.clone() for name in names} | {"baseline": torch.zeros(())}
        return super().init(model, generator) | {"trees": trees}

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        place = generator.device
        order = torch.randperm(len(groups), generator=generator, device=place).tolist()
        missed: list[Batch] = []
        for fold in range(min(FOLDS, len(groups))):
            held_out = {*order[fold::FOLDS]}
            others = [group for number, group in enumerate(groups) if number not in held_out] or list(groups)
            trees = self._grown(others, meta["trees"])
            missed += [self._missed(trees, groups[number]) for number in sorted(held_out)]
        return super().fit(meta, model, missed, generator) | {"trees": self._grown(groups, meta["trees"])}

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        return super().adapt(meta, model, self._missed(meta["trees"], support), noise) | {"trees": meta["trees"]}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        support, query = (self._missed(meta["trees"], batch) for batch in (task.support, task.query))
        return super().loss(meta, model, task._replace(support=support, query=query), noise, stage)

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return super().predict(posterior, model, x, noise) + self._sum(posterior["trees"], x)

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        density = super().predictive(posterior, model, x, noise)
        return density._replace(means=density.means + self._sum(posterior["trees"], x))

    def _missed(self, trees: Params, batch: Batch) -> Batch:
        return Batch(batch.x, batch.y - self._sum(trees, batch.x))

    def _sum(self, trees: Params, x: Tensor) -> Tensor:
        """The sum of all trees (N, 1) at inputs (N, …)."""
        x = x.flatten(1)
        split, left, right = (trees[name].long() for name in ("split", "left", "right"))
        node = split.new_zeros(self.trees, x.shape[0])
        for _ in range(self.depth):
            at = x.mT.gather(0, split.gather(1, node))
            below = at <= trees["threshold"].gather(1, node)
            node = torch.where(below, left.gather(1, node), right.gather(1, node))
        values = trees["value"].double().gather(1, node).sum(0) + trees["baseline"].double()
        return values.unsqueeze(-1).to(x.dtype)

    def _grown(self, groups: Sequence[Batch], like: Params) -> Params:
        """The trees of all rows of these groups."""
        from sklearn.ensemble import HistGradientBoostingRegressor  # which takes a second to import

        x, y = (torch.cat(parts).flatten(1).cpu().numpy() for parts in zip(*groups, strict=True))
        grown: Any = HistGradientBoostingRegressor(
            learning_rate=self.tree_lr,
            max_iter=self.trees,
            max_leaf_nodes=self.leaves,
            max_depth=self.depth,
            early_stopping=False,
            random_state=0,
        ).fit(x, y[:, 0])
        tables = {name: value.cpu().numpy().copy() for name, value in like.items()}
        # A leaf leads to itself, and so do the places of nodes that a tree does not have.
        itself = np.arange(2 * self.leaves - 1)
        for number, (tree,) in enumerate(grown._predictors):
            nodes, inner = tree.nodes, np.flatnonzero(tree.nodes["is_leaf"] == 0)
            for side in ("left", "right"):
                tables[side][number] = itself
                tables[side][number, inner] = nodes[side][inner]
            tables["split"][number, inner] = nodes["feature_idx"][inner]
            tables["threshold"][number, inner] = _rounded_down(nodes["num_threshold"][inner], tables["threshold"].dtype)
            tables["value"][number, : len(nodes)] = nodes["value"]
        tables["baseline"] = np.asarray(float(np.squeeze(grown._baseline_prediction)), dtype=tables["value"].dtype)
        return {name: torch.from_numpy(table).to(like[name]) for name, table in tables.items()}


def _rounded_down(values: Any, dtype: Any) -> Any:
    """The largest numbers of a type that are not above these: x ≤ value holds for the same x of that type."""
    nearest = values.astype(dtype)
    return np.where(nearest > values, np.nextafter(nearest, dtype.type(-np.inf)), nearest)
