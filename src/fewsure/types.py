"""The few types that every layer speaks: data, random numbers, models and algorithms.

Everything an algorithm does is written for ONE task as pure functions of tensors. A meta-batch of T tasks is the same
types with one more leading dimension, which only `fewsure.core.vectorise` ever sees.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fewsure.errors import FewsureError

Params = dict[str, Tensor]
"""The weights of one network, by name."""

Parts = dict[str, Params]
"""Named groups of weights: the meta-parameters of an algorithm (ψ, ω₀ …), or its posterior of one task."""

Noise = dict[str, Tensor]
"""The random numbers of one task, by the name that the algorithm gave them."""

Info = dict[str, Tensor]
"""Scalars that a person wants to see, by name. Nothing is computed from them."""

Facts = dict[str, Tensor]
"""Facts of a task that no method sees, by name: its true function, the classes or the group it was made from."""

Records = Mapping[str, Tensor]
"""Records of tasks in an evaluation, by name, with a leading dimension of tasks."""

Kind = Literal["regression", "classification"]


class Batch(NamedTuple):
    """Labelled examples: x of shape (N, *D); y of shape (N, 1) for regression, (N,) of class numbers otherwise."""

    x: Tensor
    y: Tensor


class Task(NamedTuple):
    """The examples a task is adapted with (S⁽ᵗ⁾) and those it is judged by (S⁽ᵛ⁾)."""

    support: Batch
    query: Batch
    number: Tensor | None = None
    """Which one it is () of a finite training set; None where every task is drawn anew."""


class Draw(NamedTuple):
    """Random numbers that an algorithm asks for: standard normal, or uniform on [0, 1)."""

    shape: tuple[int, ...]
    kind: Literal["normal", "uniform"] = "normal"


class NoiseSpec(NamedTuple):
    """All draws of a meta-batch: those its tasks share (θ, the critic's prior samples) and those each task has."""

    shared: Mapping[str, Draw] = {}
    task: Mapping[str, Draw] = {}


class Stage(NamedTuple):
    """Where training stands."""

    update: Tensor
    """Updates made so far (a scalar tensor)."""
    tasks: int
    """T, the number of tasks in a meta-batch."""
    planned: int = 0
    """Updates that training makes in all; 0 for an objective as it is at the end of a training."""


Modulation = Sequence[tuple[Tensor, Tensor]]
"""A scale and a shift for the units of each hidden layer (or the maps of each block), before its activation."""


@runtime_checkable
class Network(Protocol):
    """A function of weights and inputs: hyper-parameters, no state."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one input."""

    @property
    def width(self) -> int:
        """Numbers that the embedding has of one input."""

    @property
    def maps(self) -> tuple[int, int, int] | None:
        """Channels, height and width of an image that it convolves; None for a network that does not."""

    @property
    def modulated(self) -> tuple[int, ...]:
        """Units (or maps) of each hidden layer that a modulation scales and shifts."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight tensor, in the order in which a flat weight vector holds them."""

    def init(self, generator: torch.Generator) -> Params:
        """Draw initial weights."""

    def __call__(self, params: Params, x: Tensor, modulation: Modulation | None = None) -> Tensor:
        """Outputs (N, C) of the network with weights `params` at inputs (N, *D)."""

    @property
    def embedding(self) -> "Network":
        """The same network without its last, linear layer."""

    def with_outputs(self, outputs: int) -> "Network":
        """The same network with another number of outputs."""

    @property
    def transductive(self) -> bool:
        """Whether an output depends on the other inputs of its batch."""

    def given(self, support: Tensor) -> "Network":
        """The network of one task: where its norm takes the statistics of the support set, of these inputs."""


PerExample = Callable[[Tensor, Tensor], Tensor]
"""(output (N, C), y) → losses (N,)."""


class Model(NamedTuple):
    """The base network that solves a task, and the paper's abstract ℓ."""

    network: Network
    loss: PerExample
    bounded_loss: PerExample
    """A smooth stand-in for `loss` with values in [0, 1], for which the PAC-Bayes theorems hold as they stand."""
    kind: Kind
    outputs: int
    """C: numbers to predict, or classes to choose from."""
    fixed_classes: bool = False
    """Whether classes are the same in every task, so that some may be rarer and a support set may miss one."""

    def given(self, support: Batch) -> "Model":
        """The model of one task, whose network may normalise by the support set."""
        return self._replace(network=self.network.given(support.x))


class Mixture(NamedTuple):
    """A predictive density at each of N points: a mixture of K Gaussians."""

    weights: Tensor
    """(N, K), each row sums to 1."""
    means: Tensor
    """(N, K)."""
    stds: Tensor
    """(N, K), above 0; the noise on labels is part of them."""
    function_stds: Tensor | None = None
    """(N, K): the part of `stds` that more examples would remove, stds² = function_stds² + noise²; 0 if None."""


class Algorithm(Protocol):
    """A meta-learning method. A frozen dataclass of hyper-parameters *is* the algorithm; it inherits these defaults."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"regression", "classification"})
    """The kinds of tasks that it solves."""
    any_way: ClassVar[bool] = False
    """Whether the number of classes of a new task may differ from that of training tasks."""
    transductive: ClassVar[bool] = False
    """Whether a prediction depends on the other queries, whatever the network does."""
    min_support: ClassVar[int] = 1
    """Support examples that it needs; 0 if it predicts a new task before any example."""
    min_query: ClassVar[int] = 1
    """Query examples that a training task needs."""
    train_train: ClassVar[bool] = False
    """Whether the upper level learns from support and query examples together."""

    baseline: ClassVar[bool] = False
    """Whether it is fitted in seconds without meta-training, so that evaluations of own data show it beside a run."""
    own_density: ClassVar[bool] = False
    """Whether `predictive` gives the density of a number; else numbers vary around functions by one noise for all."""
    theorem: ClassVar[Literal["Theorem 1", "Theorem 2"] | None] = None
    """The PAC-Bayes theorem on its posteriors: the first, of one task, by its `posterior_kl`;
    the second of new tasks, by a posterior over θ."""
    rounds: ClassVar[bool] = False
    """Whether it has matrices that the precision `bf16` rounds."""

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        """Draw the initial meta-parameters, if there are any."""
        ...

    def shared_network(self, model: Model) -> Network | None:
        """The network of all tasks, with the weights `embedding`, that alone sees inputs; None if there is none."""
        return None

    def fit(self, meta: Parts, model: Model, groups: Sequence[Batch], generator: torch.Generator) -> Parts:
        """Meta-parameters that come from the training examples as a whole, before the first update.

        `groups` are whole: all rows of each training task, or all examples of each training class with its number.
        """
        return meta

    def noise(self, model: Model, support: int, query: int) -> NoiseSpec:
        """The random numbers that `adapt` and `loss` use, for so many examples."""
        return NoiseSpec()

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        """Lower level: the task-specific posterior from a few labelled examples."""
        ...

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """Upper level: one scalar whose gradient moves every meta-parameter, and what a person wants to see."""
        ...

    def prediction_noise(self, model: Model, samples: int, support: int) -> Mapping[str, Draw]:
        """The random numbers that `predict` uses to draw `samples` functions from a task's posterior."""
        return {}

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        """Outputs (S, N, C) of S functions from the posterior; a point estimate has S = 1."""
        ...

    def predictive(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Mixture:
        """The density of a label at each input, of a method with an `own_density`."""
        method = type(self).__name__
        raise NotImplementedError(f"{method} has no density of its own")

    def posterior_kl(self, posterior: Parts) -> Tensor:
        """KL[q(w) ‖ p(w)] () of a task's posterior, or an upper bound, of a method that Theorem 1 speaks of.

        The prior p(w) must not depend on the task's examples, nor predictions depend on them but for q.
        """
        method = type(self).__name__
        raise NotImplementedError(f"{method} has no finite KL to a prior")

    def essentials(self, posterior: Parts) -> Parts:
        """The parts of a task's posterior that predictions need."""
        return posterior

    def start(self, meta: Parts, model: Model, noise: Noise) -> Parts:
        """The posterior of every task before its first step, of which adapting leaves a part as it is."""
        return meta

    def at_kl_weight(self, kl_weight: float) -> "Algorithm":
        """The same trained method, whose posteriors are those of another weight of the KL."""
        method = type(self).__name__.lower()
        raise FewsureError(f"expected --kl-weight with a run of simpa-latent alone, but got {method}; leave it out")

    def from_weights(self, weights: Params) -> Parts:
        """Initial meta-parameters around the weights of a MAML run."""
        method = type(self).__name__.lower()
        raise FewsureError(
            f"expected --from to name a MAML run with platipus alone, but got {method}; give a folder of features"
        )

    def shares_a_layer(self, model: Model) -> bool:
        """Whether tasks have a large layer in common, and no copies of it."""
        return False

    @property
    def differentiates_twice(self) -> bool:
        """Whether the meta-gradient passes through inner gradients, which fused kernels do not."""
        return not getattr(self, "first_order", True)
