"""The implicit posterior: a generator network turns noise into the weights of the base network.

The generator's last layer holds nearly all of its parameters, and a task never needs a copy of it. Its gradient is a
sum of outer products, one per generated sample, of the hidden units h and the gradient δ of what they are mapped to.
After K steps of size η with S samples each

    W_task = W − η Σ_k H_kᵀ Δ_k,        H_k (S, hidden), Δ_k (S, n),

so a task holds all −η H_k, one below the other, as `left` and all Δ_k as `right`, of rank K·S, and
h W_task = h W + (h leftᵀ) right with one W for all tasks. Exact for first and second order. It pays while K·S is less
than the number of hidden units; beyond that, a task has its own copy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp

from fewsure.adaptation import clip, clip_scale, detach
from fewsure.divergences import VARIANCE_FLOOR, moment_kl, moment_log_bias
from fewsure.kernels.fused import MOST_SAMPLES, Deltas, Squash, fused_kernels_fit, squash
from fewsure.networks import ALIGNED, Mlp, weight_count
from fewsure.types import Draw, Network, Params

Latent = Literal["uniform", "normal"]

Seen = dict[str, Tensor]
"""What is looked at of S samples G(z): `fit` (k, n), the first of them; `moment_kl` (), of all; `all` (S, n)."""
Step = Callable[[Seen, float, float | None], Params]
"""(gradient of an objective in what is seen, step size, limit on the norm of λ's gradient or None) → the next λ."""


class Sight(NamedTuple):
    """What of S samples to look at."""

    fit: int
    """k: the first so many."""
    prior_std: float | None = None
    """σ, where the moment-matched KL of the samples to N(0, σ²I) is wanted."""
    all: bool = False


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
    rank: int = 0
    """The rank that a task's change of the last layer can reach, kept as factors; 0: a task has its own copy."""

    @property
    def generator(self) -> Mlp:
        return Mlp((self.latent, *self.hidden, weight_count(self.network)), tanh=True)

    def draw(self, *samples: int) -> Draw:
        """The latent noise z of so many samples."""
        return Draw((*samples, self.latent), self.latent_noise)

    def draw_weights(self, *samples: int) -> dict[str, Draw]:
        """The noise on the weights of so many samples, named; nothing where there is none."""
        return {"weights": Draw((*samples, weight_count(self.network)))} if self.weight_noise else {}

    def start(self, mean: Params, shift: Params, scale: float) -> Params:
        """λ before the first step: mean + scale·shift, its last layer padded so that rows are aligned for GPUs."""
        padding = dict.fromkeys(self._last, -weight_count(self.network) % ALIGNED)
        return {name: _padded_sum(mean[name], shift[name], scale, padding.get(name, 0)) for name in mean}

    def means(self, parameters: Params, z: Float[Tensor, "S latent"]) -> Float[Tensor, "S n"]:
        """G(z), S flat weight vectors without their noise."""
        return self.see(parameters, z, Sight(fit=len(z)))["fit"]

    def see(self, parameters: Params, z: Float[Tensor, "S latent"], sight: Sight) -> Seen:
        """What is to be seen of G(z)."""
        hidden = self._hidden_units(parameters, z)
        if self._fuses(hidden, sight):
            return self._fused(parameters, hidden, sight)[0]
        return self._look(self._last_layer(parameters, hidden), sight)

    def generate(
        self, parameters: Params, z: Float[Tensor, "S latent"], sight: Sight, *, first_order: bool
    ) -> tuple[Seen, Step]:
        """What is to be seen of G(z; λ), and the step of gradient descent that follows from an objective's gradient."""
        at = detach(parameters) if first_order else parameters
        if not self.rank:
            seen, pull_back = _pull_back(lambda params: self.see(params, z, sight), at)

            def dense_step(gradient: Seen, lr: float, limit: float | None) -> Params:
                of_all = pull_back(gradient)
                return _descend(parameters, of_all if limit is None else clip(of_all, limit), lr)

            return seen, dense_step

        last, bias = self._last
        trunk = {name: value for name, value in at.items() if name in self._trunk.shapes}
        hidden, pull_back = _pull_back(lambda params: self._hidden_units(params, z), trunk)
        seen, deltas = (self._fused if self._fuses(hidden, sight) else self._plain)(at, hidden, sight)

        def step(gradient: Seen, lr: float | Tensor, limit: float | None) -> Params:
            delta, of_bias, on_right, right = deltas(gradient)
            of_hidden = delta @ at[last].T
            if on_right is not None:
                of_hidden = of_hidden + on_right @ at["left"]
            of_own = pull_back(of_hidden) | {bias: of_bias}
            if limit is not None:
                of_last = ((hidden @ hidden.T) * (delta @ delta.T)).sum()  # ‖Hᵀ Δ‖², without making the product
                squared = of_last + sum(value.square().sum() for value in of_own.values())
                lr = lr * clip_scale(squared, limit)
            left = -lr * hidden
            factors = {"left": torch.cat([at["left"], left]) if "left" in at else left, "right": right}
            return _descend(parameters, of_own, lr) | factors

        return seen, step

    def perturb(self, means: Float[Tensor, "S n"], noise: Float[Tensor, "R n"] | None) -> Float[Tensor, "Q n"]:
        """w = G(z) + s·noise, for as many as there are of both; without noise, the means themselves."""
        return means if noise is None else means[: len(noise)] + self.weight_noise * noise[: len(means)]

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
        return mapped + (hidden @ parameters["left"].T) @ parameters["right"] if "left" in parameters else mapped

    def _look(self, mapped: Tensor, sight: Sight) -> Seen:
        samples = mapped[..., : weight_count(self.network)].tanh()
        seen = {"fit": samples[: sight.fit]} | ({"all": samples} if sight.all else {})
        return seen | ({} if sight.prior_std is None else {"moment_kl": moment_kl(samples, sight.prior_std)})

    def _plain(self, parameters: Params, hidden: Tensor, sight: Sight) -> tuple[Seen, Callable[[Seen], Deltas]]:
        """What is seen, and what takes its gradient back to what tanh is taken of."""
        mapped, right = self._last_layer(parameters, hidden), parameters.get("right")
        seen, pull_back = _pull_back(lambda mapped: self._look(mapped, sight), mapped)

        def deltas(gradient: Seen) -> Deltas:
            delta = pull_back(gradient)
            if right is None:
                return Deltas(delta, delta.sum(0), None, delta)
            return Deltas(delta, delta.sum(0), delta @ right.T, torch.cat([right, delta]))

        return seen, deltas

    def _fuses(self, hidden: Tensor, sight: Sight) -> bool:
        return self.rank > 0 and not sight.all and len(hidden) <= MOST_SAMPLES and fused_kernels_fit(hidden)

    def _fused(self, parameters: Params, hidden: Tensor, sight: Sight) -> tuple[Seen, Callable[[Seen], Deltas]]:
        """The same by kernels of our own, on a GPU."""
        last, bias = (parameters[name] for name in self._last)
        weights = weight_count(self.network)
        wanted = Squash(sight.fit, weights, self.rank, sight.prior_std, VARIANCE_FLOOR)
        fit, kl, deltas = squash(hidden, last, bias, parameters.get("left"), parameters.get("right"), wanted)
        if kl is None:
            return {"fit": fit}, lambda gradient: deltas(gradient["fit"], None)
        seen = {"fit": fit, "moment_kl": kl - moment_log_bias(len(hidden), weights)}
        return seen, lambda gradient: deltas(gradient["fit"], gradient["moment_kl"])


def _descend(parameters: Params, gradient: Params, lr: float | Tensor) -> Params:
    if isinstance(lr, Tensor):
        return parameters | {name: parameters[name] - lr * value for name, value in gradient.items()}
    return parameters | {name: torch.add(parameters[name], value, alpha=-lr) for name, value in gradient.items()}


def _pull_back(function: Callable[[Any], Any], at: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The function's value, and what turns a gradient of the value into one of what it was taken at."""
    value, pull_back, *_ = vjp(function, at)
    return value, lambda gradient: pull_back(gradient)[0]


def _padded_sum(mean: Tensor, shift: Tensor, scale: float, padding: int) -> Tensor:
    """mean + scale·shift, with so many zeros behind each row."""
    padded: Tensor = _PaddedSum.apply(mean, shift, (scale, padding))  # type: ignore[no-untyped-call]
    return padded


class _PaddedSum(torch.autograd.Function):
    """One pass over what may be millions of parameters: the sum is made in its place, and its gradient is a view."""

    @staticmethod
    def forward(mean: Tensor, shift: Tensor, constants: tuple[float, int]) -> Tensor:
        scale, padding = constants
        *rows, columns = mean.shape
        padded = mean.new_empty(*rows, columns + padding)
        torch.add(mean, shift, alpha=scale, out=padded[..., :columns])
        padded[..., columns:] = 0
        return padded

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.columns, (ctx.scale, _) = inputs[0].shape[-1], inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        of_mean = gradient[..., : ctx.columns]
        return of_mean, ctx.scale * of_mean if ctx.needs_input_grad[1] else None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], mean: Tensor, shift: Tensor, constants: Any
    ) -> tuple[Any, int]:
        both = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((mean, shift), in_dims, strict=False)
        ]
        return _PaddedSum.apply(*both, constants), 0  # type: ignore[no-untyped-call]
