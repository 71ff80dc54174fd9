"""MetaOptNet's support vector machine, whose solution is differentiated.

Lee, Maji, Ravichandran and Soatto, 2019, "Meta-learning with differentiable convex optimization".

primal, of Crammer and Singer:   min ½ Σ_k ‖w_k‖² + c Σ_n ξ_n,   w_{y_n}·x_n − w_k·x_n ≥ 1[k ≠ y_n] − ξ_n
dual, with w_k = c Σ_n a_nk x_n:  min over a of  (c/2) Σ_k a_kᵀ G a_k − Σ_n a_{n,y_n},   G = X Xᵀ,
                                  Σ_k a_nk = 0,   a_nk ≤ 1[k = y_n]
logits:                           γ w_k·x,   γ and c are learned
upper level:                      min −ln p(y | x) over the query examples

With b = 1[k = y_n] − a, each row of b lies on the simplex. A fixed number of Newton steps follows the central path to
the solution (a primal-dual interior point method):
    c G (b − Y) + Y = z + ν 1ᵀ,   b ∘ z = μ,   b, z > 0,   b 1 = 1,   μ smaller at each step, down to 1e-8
No gradient flows through the steps. The derivative of the solution solves the linear system of one more step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewsure.algorithms.parts.class_tasks import fit_to_tasks
from fewsure.algorithms.parts.linear_gaussian import cholesky
from fewsure.core.vectorise import indicators
from fewsure.errors import require
from fewsure.types import Algorithm, Batch, Info, Kind, Model, Network, Noise, Parts, Stage, Task

NEARER, END, SHARE = 0.1, 1e-8, 0.99
"""The factor of the mean of b ∘ z in a step, its value at the end, and the share of the way to the boundary."""


@dataclass(frozen=True)
class MetaOptNet(Algorithm):
    """A support vector machine on a task's known examples (MetaOptNet-SVM; Lee et al., 2019).

    The number of classes may differ between tasks. A step solves as many equations as there are pairs of an example and
    a class, so tasks should have few of either. MetaOptNet's other head, ridge regression, is `ridge`.
    """

    kinds: ClassVar[frozenset[Kind]] = frozenset({"classification"})
    any_way: ClassVar[bool] = True

    learn_features: bool = False
    """Separate features: the base network without its last layer, trained by updates. Off, inputs."""
    solver_steps: int = 20
    """Steps to the machine of a task."""

    def __post_init__(self) -> None:
        require(self.solver_steps >= 1, "solver_steps", "at least 1", self.solver_steps)

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        network = model.network
        embedding = {"embedding": network.embedding.init(generator)} if self.learn_features else {}
        width = network.width if self.learn_features else math.prod(network.inputs)
        machine = {"log_penalty": torch.tensor(-math.log(width)), "log_scale": torch.tensor(math.log(10.0))}
        return embedding | {"machine": machine}

    def shared_network(self, model: Model) -> Network | None:
        return model.network.embedding if self.learn_features else None

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        """The penalty and the scale that solve tasks of training classes best."""
        return meta if self.learn_features else fit_to_tasks(self, meta, ["machine"], model, groups, generator)

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        x, labels = self._features(meta, model, support.x), indicators(support.y, model.outputs).double()
        machine = {name: value.double().exp() for name, value in meta["machine"].items()}
        scaled = machine["log_penalty"] * x @ x.mT
        duals = labels - differentiable(*solve_dual(scaled.detach(), labels, self.solver_steps), scaled, labels)
        weights = machine["log_scale"] * machine["log_penalty"] * x.mT @ duals
        return {part: meta[part] for part in meta if part != "machine"} | {"machine": {"weights": weights}}

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        (logits,) = self.predict(self.adapt(meta, model, task.support, noise), model, task.query.x, noise)
        loss = model.loss(logits, task.query.y).mean()
        return loss, {"loss": loss} | {name[4:]: value.exp() for name, value in meta["machine"].items()}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        return (self._features(posterior, model, x) @ posterior["machine"]["weights"]).unsqueeze(0).to(x.dtype)

    def _features(self, parts: Parts, model: Model, x: Tensor) -> Tensor:
        seen = model.network.embedding(parts["embedding"], x) if self.learn_features else x.flatten(1)
        return seen.double()


def solve_dual(scaled: Tensor, labels: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """b and z (n, K) from c G (n, n) and the indicators (n, K) of labels."""
    b = torch.full_like(labels, 1 / labels.shape[1])
    z = torch.ones_like(labels) * (1 + scaled.diagonal().amax())
    for _ in range(steps):
        centre = (NEARER * (b * z).mean()).clamp(min=END) / b
        along_b = newton_step(scaled, z / b, centre - _slope(scaled, b, labels))
        along_z = centre - z - z / b * along_b
        shares = [torch.where(along < 0, -at / along, torch.inf) for at, along in ((b, along_b), (z, along_z))]
        length = (SHARE * torch.minimum(*(share.amin() for share in shares))).clamp(max=1)
        b, z = b + length * along_b, z + length * along_z
        b = b / b.sum(-1, keepdim=True)  # rounding adds up
    return b, z


def differentiable(b: Tensor, z: Tensor, scaled: Tensor, labels: Tensor) -> Tensor:
    """b with its derivative in c G, by the implicit function theorem."""
    step = newton_step(scaled.detach(), z / b, -_slope(scaled, b, labels))
    return b + (step - step.detach())


def newton_step(scaled: Tensor, curvature: Tensor, right: Tensor) -> Tensor:
    """d (n, K) with (c G ⊗ I + diag(curvature)) d = right + ν 1ᵀ and d 1 = 0."""
    rows, classes = right.shape
    one = torch.eye(classes).to(scaled)
    matrix = torch.kron(scaled.contiguous(), one) + torch.diag(curvature.flatten())
    factor = cholesky(matrix)
    of_row = torch.eye(rows).to(scaled).repeat_interleave(classes, 0)  # (nK, n)
    found = torch.cholesky_solve(torch.cat([right.flatten().unsqueeze(-1), of_row], dim=-1), factor)
    free, shifts = found[:, :1], found[:, 1:]
    multiplier = torch.cholesky_solve(of_row.mT @ free, cholesky(of_row.mT @ shifts))
    return (free - shifts @ multiplier).reshape(rows, classes)


def _slope(scaled: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the dual in b."""
    return scaled @ (b - labels) + labels
