"""Prototypical networks (Snell, Swersky and Zemel, 2017, "Prototypical networks for few-shot learning").

prototype of class c:    μ_c = mean of f(x) over the support examples of c                 (Eq. 1)
class of a query x:      p(c | x) = softmax over classes of −‖f(x) − μ_c‖²                 (Eq. 2)
                         or of s · cos(f(x), μ_c), with a learned s   (Chen et al., 2021, "Meta-Baseline")
training:                min −ln p(y | x) over the query examples
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewsure.algorithms.parts.shares import log_shares, shares_init, with_shares
from fewsure.posteriors.prototypes import class_means, cosines, prototype_logits
from fewsure.types import Algorithm, Batch, Info, Kind, Model, Network, Noise, Parts, Stage, Task

START_SCALE = 10.0
"""The multiple s of cosines that training starts with."""


@dataclass(frozen=True)
class ProtoNet(Algorithm):
    """Prototypical networks (Snell et al., 2017): the nearest class mean in a learned embedding.

    The embedding is the base network without its last layer. A task's posterior is its prototypes, so nothing is
    trained on a new task. The number of classes and examples may differ between training and testing. It is for
    classification only.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"classification"})
    any_way: ClassVar[bool] = True

    cosine: bool = False
    """Compare by a learned multiple of the cosine instead of the squared distance. A body that was trained as a
    classifier has long features, whose squared distances are far too sure."""

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        scale = {"logits": {"log_scale": torch.tensor(START_SCALE).log()}} if self.cosine else {}
        return {"embedding": model.network.embedding.init(generator)} | scale | shares_init(model)

    def shared_network(self, model: Model) -> Network:
        return model.network.embedding

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        embedded = model.network.embedding(meta["embedding"], support.x)
        means = class_means(embedded, support.y, model.outputs)  # Eq. (1)
        shares = log_shares(meta, support.y, model.outputs)
        scale = {"log_scale": meta["logits"]["log_scale"]} if self.cosine else {}
        return {"embedding": meta["embedding"], "prototypes": {"mean": means} | scale | shares}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        posterior = self.adapt(meta, model, task.support, noise)
        (logits,) = self.predict(posterior, model, task.query.x, noise)
        loss = model.loss(logits, task.query.y).mean()
        return loss, {"loss": loss}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        embedded, prototypes = model.network.embedding(posterior["embedding"], x), posterior["prototypes"]
        if self.cosine:
            logits = prototypes["log_scale"].exp() * cosines(embedded, prototypes["mean"])
        else:
            logits = prototype_logits(embedded, prototypes["mean"])  # Eq. (2), up to the softmax
        return with_shares(logits, prototypes).unsqueeze(0)
