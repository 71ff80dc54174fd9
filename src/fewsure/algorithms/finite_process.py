"""A Gaussian process of finitely many numbers, so that a task's part of it is a latent with prior N(0, I).

f(x) = m(x) + φ(x)·z + rest,   φ(x) = k(x, U) L⁻ᵀ,   k(U, U) = L Lᵀ,   z ~ N(0, I) of M numbers

U are M inputs of training rows, each the one whose variance those before it explain least (pivoted Cholesky). What they
leave, k(x, x) − ‖φ(x)‖², counts as noise (Snelson and Ghahramani, 2005). Mean, kernel and noise are those of `Gp`;
where held-out groups do not gain by it, those of the shrunken mean (a constant and a random intercept).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.algorithms.gp import Gp
from fewsure.algorithms.parts import linear_gaussian
from fewsure.algorithms.parts.kernels import covariance, variances
from fewsure.theory.chance import is_gain
from fewsure.types import Batch, Model, Params, Parts, Stage, Task

JUDGES, FOLDS, ROWS = 100, 5, 60
"""Random groups that choose between mean and process by cross-validation, and the rows of each that judge."""
FEW = 5
"""Groups that are too few for a choice."""
NOTHING = -20.0
"""ln of the standard deviation of a kernel that is switched off."""
CANDIDATES = 1000
"""The most training rows that U is chosen from."""
JITTER = 1e-6
"""Added to the diagonal of k(U, U), in shares of its mean."""

SHRUNKEN_MEAN = Gp(kernels=("constant",), trend="constant")


@dataclass(frozen=True)
class FiniteProcess:
    """The process, whose numbers are `parts` of a method: mean, kernel, noise and basis."""

    kernels: tuple[str, ...]
    size: int
    """M."""

    @property
    def parts(self) -> tuple[str, ...]:
        return "mean", "kernel", "noise", "basis"

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        """Before a fit."""
        inputs = torch.randn(self.size, model.network.inputs[0], generator=generator)
        return self._process.init(model, generator) | {"basis": {"inputs": inputs}}

    def fit(self, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        """Mean, kernel and noise by the evidence of groups, and U."""
        found = self._fitted(model, groups, generator)
        x = torch.cat([group.x for group in groups])
        x = x[torch.randperm(len(x), generator=generator, device=generator.device)[:CANDIDATES].to(x.device)]
        return found | {"basis": {"inputs": pivots(self.kernels, found["kernel"], x, self.size)}}

    def at(self, parts: Parts, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """m(x) (N,), φ(x) (N, M) and the variance of the rest (N,), in double precision."""
        kernel, inputs = parts["kernel"], parts["basis"]["inputs"]
        among = covariance(self.kernels, kernel, inputs)
        jitter = JITTER * among.diagonal(dim1=-2, dim2=-1).mean() * torch.eye(self.size).to(among)
        factor = linear_gaussian.cholesky(among + jitter)
        cross = covariance(self.kernels, kernel, x, inputs)
        features = torch.linalg.solve_triangular(factor.mT, cross, upper=True, left=False)
        rest = (variances(self.kernels, kernel, x) - features.square().sum(-1)).clamp(min=0)
        columns = torch.cat([torch.ones_like(cross[:, :1]), x.double()], -1)
        return columns @ parts["mean"]["mean"].double(), features, rest

    def posterior(self, parts: Parts, support: Batch, noise_std: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (M,) and triangular root (M, M) of the covariance of z, in double precision."""
        mean, features, rest = self.at(parts, support.x)
        std = (noise_std.double().square() + rest).sqrt()
        one = torch.ones_like(std[:1])
        found = linear_gaussian.condition_weights(
            features / std.unsqueeze(-1),
            ((support.y.squeeze(-1).double() - mean) / std).unsqueeze(-1),
            features.new_zeros(self.size, 1),
            one.expand(self.size),
            one.squeeze(),
        )
        return found.mean.squeeze(-1), found.root

    @property
    def _process(self) -> Gp:
        return Gp(kernels=self.kernels)

    def _fitted(self, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        """The process; or the shrunken mean, if there is a constant kernel and the process is no gain beside it."""
        chosen = torch.randperm(len(groups), generator=generator, device=generator.device)[:JUDGES].tolist()
        gains: list[float] = []
        for fold in range(FOLDS if len(chosen) > FEW and "constant" in self.kernels else 0):
            kept = [groups[number] for place, number in enumerate(chosen) if place % FOLDS != fold]
            held_out = [groups[number] for number in chosen[fold::FOLDS]]
            of_mean, of_process = (
                _surprises(method, _fit(method, model, kept, generator), model, held_out)
                for method in (SHRUNKEN_MEAN, self._process)
            )
            gains += [before - after for before, after in zip(of_mean, of_process, strict=True)]
        if "constant" not in self.kernels or is_gain(gains):
            return _fit(self._process, model, groups, generator)
        mean, process = _fit(SHRUNKEN_MEAN, model, groups, generator), self._process.init(model, generator)
        off = {name: torch.full_like(value, NOTHING) for name, value in process["kernel"].items() if "log_std" in name}
        constant = functional.pad(mean["mean"]["mean"], (0, len(process["mean"]["mean"]) - 1))
        return mean | {"mean": {"mean": constant}, "kernel": process["kernel"] | off | mean["kernel"]}


def _fit(method: Gp, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
    return method.fit(method.init(model, generator), model, groups, generator)


def _surprises(method: Gp, fitted: Parts, model: Model, groups: Sequence[Batch]) -> list[float]:
    """The negative evidence of the first rows of each group."""
    stage = Stage(torch.zeros(()), len(groups))
    tasks = [Task(Batch(x[:1], y[:1]), Batch(x[1:ROWS], y[1:ROWS])) for x, y in groups]
    return [float(method.loss(fitted, model, task, {}, stage)[0]) for task in tasks]


def pivots(names: Sequence[str], params: Params, x: Tensor, count: int) -> Tensor:
    """`count` of the inputs, each the one whose variance those before it explain least."""
    left = variances(names, params, x)
    rows, chosen = left.new_zeros(count, len(x)), []
    for number in range(count):
        best = int(left.argmax())
        chosen.append(best)
        column = covariance(names, params, x, x[best : best + 1]).squeeze(-1) - rows[:number].mT @ rows[:number, best]
        rows[number] = column / left[best].clamp(min=torch.finfo(left.dtype).tiny).sqrt()
        left = (left - rows[number].square()).clamp(min=0)
    return x[chosen]
