"""DKT for classes: Gaussian processes of indicators, with a kernel that is learned.

Patacchiola, Turner, Crowley, O'Boyle and Storkey, 2020, "Bayesian meta-learning for the few-shot setting via deep
kernels".

label regression, for each class c:   t_c = 1[y = c] − 1/C = f_c(x) + noise of σ,   f_c ~ GP(0, k)
training:                             min −Σ_c ln N(t_c; 0, K + σ² I) over support and query examples
prediction, with the posterior N(m_c(x), s(x)²) of each f_c and v = s² + σ²:
    p(c | x) ∝ Π_c′ N(1[c = c′] − 1/C; m_c′(x), v(x)),   so   p(c | x) = softmax over classes of m_c(x) / v(x)

The further x is from all examples, the larger v is and the less a prediction says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor

from fewsure.algorithms.parts import linear_gaussian
from fewsure.algorithms.parts.class_tasks import fit_to_tasks
from fewsure.algorithms.parts.kernels import Kernel, covariance, init_kernels, variances
from fewsure.algorithms.parts.shares import log_shares, shares_init, with_shares
from fewsure.core.vectorise import indicators
from fewsure.errors import require, require_known
from fewsure.types import Algorithm, Batch, Info, Kind, Model, Network, Noise, Parts, Stage, Task


@dataclass(frozen=True)
class Dkt(Algorithm):
    """A Gaussian process for the indicator of each class, with one kernel for all (DKT; Patacchiola et al., 2020).

    A task costs one matrix inverse. The number of classes may differ between tasks.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"classification"})
    any_way: ClassVar[bool] = True
    train_train: ClassVar[bool] = True
    baseline: ClassVar[bool] = True

    kernels: tuple[str, ...] = ("linear", "rbf")
    """The kernels that are added up, of constant, linear, rbf, exponential, matern32, matern52 and periodic. All inputs
    share a length scale."""
    learn_features: bool = False
    """Kernels see features: the base network without its last layer, trained by updates. Off, they see inputs."""

    def __post_init__(self) -> None:
        require(len(self.kernels) > 0, "kernels", "at least 1", self.kernels)
        require(len(set(self.kernels)) == len(self.kernels), "kernels", "different ones", self.kernels)
        for name in self.kernels:
            require_known("kernels", name, get_args(Kernel))

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        network = model.network
        embedding = {"embedding": network.embedding.init(generator)} if self.learn_features else {}
        width = network.width if self.learn_features else math.prod(network.inputs)
        kernel = init_kernels(self.kernels, width, ard=False)
        if "linear" in self.kernels:
            kernel["linear.log_std"] -= 0.5 * math.log(width)  # so that functions have a spread of about 1
        noise = {"log_std": torch.tensor(math.log(0.1))}
        return embedding | {"kernel": kernel, "noise": noise} | shares_init(model)

    def shared_network(self, model: Model) -> Network | None:
        return model.network.embedding if self.learn_features else None

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        """The kernel of highest evidence, of tasks of training classes."""
        if self.learn_features:
            return meta
        return fit_to_tasks(self, meta, ["kernel", "noise"], model, groups, generator)

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        x = self._features(meta, model, support.x)
        kernel = covariance(self.kernels, meta["kernel"], x)
        found = linear_gaussian.condition(kernel, _targets(support.y, model), _noise_std(meta))
        shares = log_shares(meta, support.y, model.outputs)
        return meta | {"conditioned": {"x": x} | found._asdict() | shares}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """The mean negative evidence of an example's targets."""
        x, y = (torch.cat(parts) for parts in zip(task.support, task.query, strict=True))
        kernel = covariance(self.kernels, meta["kernel"], self._features(meta, model, x))
        evidence = linear_gaussian.log_evidence(kernel, _targets(y, model), _noise_std(meta))
        loss = -evidence.to(task.query.x.dtype) / (model.outputs * len(y))
        return loss, {"loss": loss, "noise_std": _noise_std(meta).to(loss.dtype)}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        features, known = self._features(posterior, model, x), posterior["conditioned"]
        conditioned = linear_gaussian.Conditioned(known["weights"], known["root"])
        cross = covariance(self.kernels, posterior["kernel"], features, known["x"])
        prior = variances(self.kernels, posterior["kernel"], features)
        variance = linear_gaussian.posterior_variance(conditioned, cross, prior) + _noise_std(posterior).square()
        logits = linear_gaussian.posterior_mean(conditioned, cross) / variance
        return with_shares(logits, known).unsqueeze(0).to(x.dtype)

    def _features(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        seen = model.network.embedding(parts["embedding"], x) if self.learn_features else x.flatten(1)
        return seen.double()


def _targets(y: Tensor, model: Model) -> Tensor:
    """(n, C)."""
    return indicators(y, model.outputs).double() - 1 / model.outputs


def _noise_std(parts: Parts) -> Tensor:
    return parts["noise"]["log_std"].double().exp()
