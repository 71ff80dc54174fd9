"""The few types that every layer speaks: data, random numbers, models and algorithms.

Everything an algorithm does is written for ONE task as pure functions of tensors. A meta-batch of T tasks is the same
types with one more leading dimension, which only `fewsure.core.vectorise` ever sees.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""The weights of one network, by name."""

Parts = dict[str, Params]
"""Named groups of weights: what an algorithm meta-learns (ψ, ω₀ …), and what it holds of one task after adapting."""

Noise = dict[str, Tensor]
"""The random numbers of one task, by the name that the algorithm gave them."""

Info = dict[str, Tensor]
"""Scalars that a person wants to see, by name. Nothing is computed from them."""

Facts = dict[str, Tensor]
"""What is known of a task and no method sees, by name: its true function, the classes it was made from."""

Records = Mapping[str, Tensor]
"""What an evaluation records of tasks, by name, with a leading dimension of tasks."""

Kind = Literal["regression", "classification"]


class Batch(NamedTuple):
    """Labelled examples: x of shape (N, *D); y of shape (N, 1) for regression, (N,) of class numbers otherwise."""

    x: Tensor
    y: Tensor


class Task(NamedTuple):
    """The examples a task is adapted with (S⁽ᵗ⁾) and those it is judged by (S⁽ᵛ⁾)."""

    support: Batch
    query: Batch


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


@runtime_checkable
class Network(Protocol):
    """A function of weights and inputs: hyper-parameters, no state."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight tensor, in the order in which a flat weight vector holds them."""

    def init(self, generator: torch.Generator) -> Params:
        """Draw initial weights."""

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """Outputs (N, C) of the network with weights `params` at inputs (N, *D)."""

    @property
    def embedding(self) -> "Network":
        """The same network without its last, linear layer."""

    @property
    def transductive(self) -> bool:
        """Whether an output depends on the other inputs of its batch."""

    @property
    def pixels(self) -> int:
        """Of an image that it convolves, 0 if it does not: many such networks at once are slow on a CPU."""


PerExample = Callable[[Tensor, Tensor], Tensor]
"""(output (N, C), y) → losses (N,)."""


class Model(NamedTuple):
    """What a task is solved with: a base network and the paper's abstract ℓ."""

    network: Network
    loss: PerExample
    bounded_loss: PerExample
    """A smooth stand-in for `loss` with values in [0, 1], for which the PAC-Bayes theorems hold as they stand."""
    kind: Kind
    outputs: int
    """C: numbers to predict, or classes to choose from."""


@runtime_checkable
class Algorithm(Protocol):
    """A meta-learning method. A frozen dataclass of hyper-parameters *is* the algorithm."""

    def init(self, model: Model, generator: torch.Generator) -> Parts:
        """Draw the initial meta-parameters."""

    def noise(self, model: Model) -> NoiseSpec:
        """The random numbers that `adapt` and `loss` use."""

    def adapt(self, meta: Parts, model: Model, support: Batch, noise: Noise) -> Parts:
        """Lower level: the task-specific posterior from a few labelled examples."""

    def loss(self, meta: Parts, model: Model, task: Task, noise: Noise, stage: Stage) -> tuple[Tensor, Info]:
        """Upper level: one scalar whose gradient moves every meta-parameter, and what a person wants to see."""

    def prediction_noise(self, model: Model, samples: int) -> Mapping[str, Draw]:
        """The random numbers that `predict` uses to draw `samples` functions from a task's posterior."""

    def predict(self, posterior: Parts, model: Model, x: Tensor, noise: Noise) -> Tensor:
        """Outputs (S, N, C) of S functions from the posterior; a point estimate has S = 1."""
