"""SimpleShot: the nearest class mean of inputs that are centred and of length 1.

Wang, Chao, Weinberger and van der Maaten, 2019, "SimpleShot: revisiting nearest-neighbor classification for few-shot
learning".

    φ(x) = (x − centre) / ‖x − centre‖,   μ_c = mean of φ(x) over the support examples of c
    p(c | x) = softmax over classes of −scale · ‖φ(x) − μ_c‖²
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.algorithms.parts.class_tasks import fit_to_tasks
from fewsure.algorithms.parts.shares import log_shares, shares_init, with_shares
from fewsure.posteriors.prototypes import class_means, prototype_logits
from fewsure.types import Algorithm, Batch, Info, Kind, Model, Noise, Parts, Stage, Task


@dataclass(frozen=True)
class SimpleShot(Algorithm):
    """The nearest class mean of inputs as they are, centred by the training examples and of length 1.

    Inputs should be features of a network; pixels and columns serve as a plain reference. Nothing is trained but the
    centre, and a scale for probabilities. The number of classes may differ between tasks.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"classification"})
    any_way: ClassVar[bool] = True
    baseline: ClassVar[bool] = True

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        centre = torch.zeros(math.prod(model.network.inputs))
        scale = {"log_scale": torch.tensor(math.log(10.0))}
        return {"centre": {"mean": centre}, "logits": scale} | shares_init(model)

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        """The mean of all training examples, and the most likely scale of tasks of training classes."""
        total = sum(group.x.flatten(1).sum(0, dtype=torch.float64) for group in groups)
        centre = torch.as_tensor(total).to(meta["centre"]["mean"]) / sum(len(group.x) for group in groups)
        centred = meta | {"centre": {"mean": centre}}
        return fit_to_tasks(self, centred, ["logits", *shares_init(model)], model, groups, generator)

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        means = class_means(self._features(meta, support.x), support.y, model.outputs)
        return meta | {"prototypes": {"mean": means} | log_shares(meta, support.y, model.outputs)}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        (logits,) = self.predict(self.adapt(meta, model, task.support, noise), model, task.query.x, noise)
        loss = model.loss(logits, task.query.y).mean()
        return loss, {"loss": loss}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        logits = prototype_logits(self._features(posterior, x), posterior["prototypes"]["mean"])
        return with_shares(posterior["logits"]["log_scale"].exp() * logits, posterior["prototypes"]).unsqueeze(0)

    def _features(self, parts: Parts, x: Tensor) -> Tensor:
        """φ(x) (N, D)."""
        return functional.normalize(x.flatten(1) - parts["centre"]["mean"], dim=-1)
