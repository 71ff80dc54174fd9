"""The latent posterior: a Gaussian of a latent that a shared generator turns into the weights of a task's network.

q(z) = N(μ, L Lᵀ),  L = diag(σ) T,   p(z) = N(0, I),   w = G(z; θ) with one θ for all tasks

T is triangular, and most often I. G may be any network, so the posterior of w stays implicit. By the data-processing
inequality

    KL[G#q ‖ G#p] ≤ KL[q ‖ p] = ½ (‖L‖² + ‖μ‖² − d) − ln |det L|,

with equality where G is injective: closed form, finite, and an upper bound.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fewsure.networks.mlp import Mlp
from fewsure.networks.weights import flatten, unflatten, weight_count
from fewsure.types import Network, Params

INITIAL_SPREAD = 0.3
"""The spread of the generator's last layer, as a share of an ordinary start: networks begin near one another."""
FIRST_WEIGHT, FIRST_BIAS = 10.0, 4.0
LOG_STD = (-6.0, 1.0)
"""Between which ln σ is kept."""


class Latent(NamedTuple):
    """q(z) = N(mean, L Lᵀ), L = diag(exp(log_std)) turn."""

    mean: Tensor
    log_std: Tensor
    turn: Tensor | None = None
    """T (d, d), triangular; None for I."""

    def sample(self, noise: Float[Tensor, "S *d"]) -> Float[Tensor, "S *d"]:
        """S latents."""
        return self.mean + self.log_std.exp() * (noise if self.turn is None else noise @ self.turn.mT)

    def kl(self) -> Float[Tensor, ""]:
        """KL[q ‖ N(0, I)], exact.

        >>> Latent(torch.tensor([1.0, 0.0]), torch.zeros(2)).kl()
        tensor(0.5000)
        """
        squares, log_root = (2 * self.log_std).exp(), self.log_std
        if self.turn is not None:
            squares = squares * self.turn.square().sum(-1)
            log_root = log_root + self.turn.diagonal(dim1=-2, dim2=-1).abs().log()
        return 0.5 * (squares + self.mean.square() - 1 - 2 * log_root).sum()

    def first(self, count: int) -> "Latent":
        """The first numbers of z."""
        turn = None if self.turn is None else self.turn[:count, :count]
        return Latent(self.mean[:count], self.log_std[:count], turn)


def bounded(mean: Tensor, log_std: Tensor, turn: Tensor | None = None) -> Latent:
    """A latent whose spread stays within reason."""
    return Latent(mean, log_std.clamp(*LOG_STD), turn)


@dataclass(frozen=True)
class WeightGenerator:
    """G: latents → the weights of one network each."""

    network: Network
    latent: int
    hidden: tuple[int, ...]

    @property
    def generator(self) -> Mlp:
        return Mlp((self.latent, *self.hidden, weight_count(self.network)))

    def init(self, weights: Params, generator: torch.Generator) -> Params:
        """Parameters with which G makes networks near the given `weights`."""
        params, last = self.generator.init(generator), len(self.hidden)
        centred = {f"{last}.weight": INITIAL_SPREAD * params[f"{last}.weight"], f"{last}.bias": flatten(weights)}
        return params | centred

    def silenced(self, params: Params) -> Params:
        """Parameters with which all networks are 0 everywhere, whatever the latent: their last layer is."""
        last, of_network = len(self.hidden), f"{len(self.network.shapes) // 2 - 1}."
        kept = flatten(
            {
                name: torch.full(shape, float(not name.startswith(of_network)))
                for name, shape in self.network.shapes.items()
            }
        )
        return params | {name: kept * params[name] for name in (f"{last}.weight", f"{last}.bias")}

    def __call__(self, params: Params, z: Float[Tensor, "S d"]) -> Params:
        """The weights of S networks, stacked."""
        return unflatten(self.network, self.generator(params, z))


def spread_init(network: Network, generator: torch.Generator) -> Params:
    """Initial weights whose first layer bends all over inputs of unit size; the rest keeps the size of what passes.

    First layer: weights uniform in ±FIRST_WEIGHT/√fan_in, biases in ±FIRST_BIAS. Others: weights of variance 2/fan_in,
    half that deviation at the end, and biases of 0.
    """
    params, last = {}, len(network.shapes) // 2 - 1
    for name, shape in network.shapes.items():
        number, kind = name.split(".")
        uniform = 2 * torch.rand(shape, generator=generator) - 1
        if number == "0":
            params[name] = FIRST_WEIGHT / math.sqrt(shape[0]) * uniform if kind == "weight" else FIRST_BIAS * uniform
        elif kind == "weight":
            deviation = math.sqrt(2 / shape[0]) * (0.5 if number == str(last) else 1.0)
            params[name] = deviation * torch.randn(shape, generator=generator)
        else:
            params[name] = torch.zeros(shape)
    return params
