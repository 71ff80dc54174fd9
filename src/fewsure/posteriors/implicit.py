"""The implicit posterior: a generator network turns noise into the weights of the base network.

The generator's last layer holds nearly all of its parameters, and a task never needs a copy of it. Its gradient is a
sum of outer products, one per generated sample, of the hidden units h and the gradient δ of what they are mapped to.
After K steps of size η with S samples each

    W_task = W − η Σ_k H_kᵀ Δ_k,        H_k (S, hidden), Δ_k (S, n),

so a task holds all H_k, one below the other, as `left` and all −η Δ_k as `right`, of rank K·S, and
h W_task = h W + (h leftᵀ) right with one W for all tasks. Exact for first and second order. It pays while K·S is less
than the number of hidden units; beyond that, a task has its own copy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp
from torch.nn import functional

from fewsure.adaptation import clip, clip_scale, detach
from fewsure.networks import ALIGNED, Mlp, weight_count
from fewsure.types import Draw, Network, Params

Latent = Literal["uniform", "normal"]


@dataclass(frozen=True)
class ImplicitPosterior:
    """q(w; λ):  w = G(z; λ), z ~ p(z)   (Eq. 10);  with weight noise s > 0,  w = G(z; λ) + s·noise.

    G is fully connected with ReLU and ends in tanh, which keeps the weights it makes in (−1, 1). λ are G's weights.
    Without weight noise q has no density, and its KL to any prior that has one is infinite.
    """

    network: Network
    """The base network whose n weights are generated."""
    latent: int
    hidden: tuple[int, ...]
    latent_noise: Latent
    weight_noise: float = 0.0
    """s, standard deviation of the noise on each generated weight."""
    low_rank: bool = True
    """Keep a task's change of the last layer as factors."""

    @property
    def generator(self) -> Mlp:
        return Mlp((self.latent, *self.hidden, weight_count(self.network)), tanh=True)

    def draw(self, *samples: int) -> Draw:
        """The latent noise z of so many samples."""
        return Draw((*samples, self.latent), self.latent_noise)

    def draw_weights(self, *samples: int) -> dict[str, Draw]:
        """The noise on the weights of so many samples, named; nothing where there is none."""
        return {"weights": Draw((*samples, weight_count(self.network)))} if self.weight_noise else {}

    def start(self, theta: Params) -> Params:
        """λ before the first step: θ, its last layer padded so that rows are aligned for matrix units."""
        return theta | {name: functional.pad(theta[name], (0, self._padding)) for name in self._last}

    def means(self, parameters: Params, z: Float[Tensor, "S latent"]) -> Float[Tensor, "S n"]:
        """G(z), S flat weight vectors without their noise."""
        return self._last_layer(parameters, self._hidden_units(parameters, z)).tanh()

    def generate(
        self, parameters: Params, z: Float[Tensor, "S latent"], *, first_order: bool
    ) -> tuple[Float[Tensor, "S n"], Callable[[Float[Tensor, "S n"], float, float | None], Params]]:
        """G(z; λ), and the step of gradient descent that follows from the gradient of the objective in G(z).

        The step takes that gradient, the step size and a limit on the norm of λ's gradient (None for none), and returns
        the next λ.
        """
        at = detach(parameters) if first_order else parameters
        if not self.low_rank:
            means, pull_back = _pull_back(lambda params: self.means(params, z), at)

            def dense_step(gradient: Tensor, lr: float, limit: float | None) -> Params:
                of_all = pull_back(gradient)
                return _subtract(parameters, of_all if limit is None else clip(of_all, limit), lr)

            return means, dense_step

        last, bias = self._last
        trunk = {name: value for name, value in at.items() if name in self._trunk.shapes}
        hidden, pull_back = _pull_back(lambda params: self._hidden_units(params, z), trunk)
        means = self._last_layer(at, hidden).tanh()

        def step(gradient: Tensor, lr: float | Tensor, limit: float | None) -> Params:
            delta = functional.pad(gradient * (1 - means.square()), (0, self._padding))
            of_hidden = delta @ at[last].T
            if "left" in at:
                of_hidden = of_hidden + (delta @ at["right"].T) @ at["left"]
            of_own = pull_back(of_hidden) | {bias: delta.sum(0)}
            if limit is not None:
                of_last = ((hidden @ hidden.T) * (delta @ delta.T)).sum()  # ‖Hᵀ Δ‖², without making the product
                squared = of_last + sum(value.square().sum() for value in of_own.values())
                lr = lr * clip_scale(squared, limit)
            factors = {"left": hidden, "right": -lr * delta}
            if "left" in at:
                factors = {name: torch.cat([parameters[name], new]) for name, new in factors.items()}
            return _subtract(parameters, of_own, lr) | factors

        return means, step

    def perturb(self, means: Float[Tensor, "S n"], noise: Float[Tensor, "R n"] | None) -> Float[Tensor, "R n"]:
        """w = G(z) + s·noise, for as many of the means as there is noise for; without noise, the means themselves."""
        return means if noise is None else means[: len(noise)] + self.weight_noise * noise

    @property
    def _padding(self) -> int:
        """Columns of the padded last layer that make no weight."""
        return -weight_count(self.network) % ALIGNED

    @property
    def _trunk(self) -> Mlp:
        """The generator below its last layer."""
        return Mlp((self.latent, *self.hidden))

    @property
    def _last(self) -> tuple[str, str]:
        """The names of the last layer's weight and bias."""
        return f"{len(self.hidden)}.weight", f"{len(self.hidden)}.bias"

    def _hidden_units(self, parameters: Params, z: Tensor) -> Tensor:
        return self._trunk(parameters, z).relu() if self.hidden else z

    def _last_layer(self, parameters: Params, hidden: Tensor) -> Tensor:
        """What tanh is taken of: the layer that all tasks share, and the factors of a task."""
        last, bias = self._last
        mapped = hidden @ parameters[last] + parameters[bias]
        if "left" in parameters:
            mapped = mapped + (hidden @ parameters["left"].T) @ parameters["right"]
        return mapped[..., : weight_count(self.network)]


def _subtract(parameters: Params, gradient: Params, lr: float | Tensor) -> Params:
    return parameters | {name: parameters[name] - lr * value for name, value in gradient.items()}


def _pull_back(function: Callable[[Params], Tensor], at: Params) -> tuple[Tensor, Callable[[Tensor], Params]]:
    """The function's value, and what turns a gradient of the value into one of the parameters."""
    value, pull_back, *_ = vjp(function, at)
    return value, lambda gradient: pull_back(gradient)[0]
