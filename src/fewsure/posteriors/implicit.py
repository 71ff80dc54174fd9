"""The implicit posterior: a generator network turns noise into the weights of the base network.

The generator's last layer holds nearly all of its parameters, and a task never needs a copy of it. Its gradient is a sum
of outer products, one per generated sample, of the hidden units h and the gradient δ of what they are mapped to. After
K steps of size η with S samples each

    W_task = W − η Σ_k H_kᵀ Δ_k,        H_k (S, hidden), Δ_k (S, n),

so a task holds the factors H_k and −η Δ_k, of rank K·S in all, and h W_task = h W + Σ_k (h H_kᵀ)(−η Δ_k) with one W for
all tasks. Exact for first and second order. It pays while K·S is less than the number of hidden units; beyond that, a
task has its own copy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.adaptation import descend, detach
from fewsure.networks import Mlp, weight_count
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

    def means(self, parameters: Params, z: Float[Tensor, "S latent"]) -> Float[Tensor, "S n"]:
        """G(z), S flat weight vectors without their noise."""
        return self._last_layer(parameters, self._hidden_units(parameters, z)).tanh()

    def descend(
        self,
        objective: Callable[[Float[Tensor, "S n"]], Float[Tensor, ""]],
        parameters: Params,
        z: Float[Tensor, "S latent"],
        lr: float,
        *,
        first_order: bool,
    ) -> Params:
        """λ after one step of gradient descent on objective(G(z; λ))."""
        if not self.low_rank:
            return descend(lambda at: objective(self.means(at, z)), parameters, lr, first_order=first_order)
        at = detach(parameters) if first_order else parameters
        # All but the last layer's weight. Its gradient is made of the hidden units and of the gradient δ of the offset.
        own = {name: value for name, value in at.items() if name in self.generator.shapes and name != self._last}

        def of_offset(own: Params, offset: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self._hidden_units(own, z)
            return objective((self._last_layer(at | own, hidden) + offset).tanh()), hidden

        offset = z.new_zeros(len(z), weight_count(self.network))
        (gradient, delta), hidden = torch.func.grad(of_offset, argnums=(0, 1), has_aux=True)(own, offset)
        changed = {name: parameters[name] - lr * value for name, value in gradient.items()}
        step = sum(name.startswith("left.") for name in parameters)
        return parameters | changed | {f"left.{step}": hidden, f"right.{step}": -lr * delta}

    def perturb(self, means: Float[Tensor, "S n"], noise: Float[Tensor, "R n"] | None) -> Float[Tensor, "R n"]:
        """w = G(z) + s·noise, for as many of the means as there is noise for; without noise, the means themselves."""
        return means if noise is None else means[: len(noise)] + self.weight_noise * noise

    @property
    def _last(self) -> str:
        return f"{len(self.hidden)}.weight"

    def _hidden_units(self, parameters: Params, z: Tensor) -> Tensor:
        return Mlp((self.latent, *self.hidden))(parameters, z).relu() if self.hidden else z

    def _last_layer(self, parameters: Params, hidden: Tensor) -> Tensor:
        """What tanh is taken of: the layer that all tasks share, and the factors of a task."""
        mapped = hidden @ parameters[self._last] + parameters[f"{len(self.hidden)}.bias"]
        for name, left in parameters.items():
            if name.startswith("left."):
                mapped = mapped + (hidden @ left.T) @ parameters[name.replace("left", "right")]
        return mapped
