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

from fewsure.core.devices import LARGE, in_full, rounded_type
from fewsure.core.gradient import clip, clip_scale, detach
from fewsure.kernels.fused import fused_kernels_fit
from fewsure.kernels.fused_generator import LastLayerGrads, LastLayerSpec, grad_start, split_samples, squash
from fewsure.kernels.rounding import take_rounded_step
from fewsure.networks.mlp import ALIGNED, Mlp, layer, product
from fewsure.networks.weights import flatten, weight_count
from fewsure.theory.divergences import VARIANCE_FLOOR, moment_kl, moment_log_bias
from fewsure.types import Draw, Network, Params

INITIAL_SPREAD = 0.1
MOST = 0.99
"""Size of a weight that the generator is made to begin with: tanh reaches 1 at infinity."""
Latent = Literal["uniform", "normal"]

Samples = dict[str, Tensor]
"""What is looked at of S samples G(z): `fit` (k, n), the first of them; `moment_kl` () of all; `padded` (S, N ≥ n), all
of them with the zeros that pad the last layer."""
Step = Callable[[Samples, float, float | None], Params]
"""(gradient of an objective in what is seen, step size, limit on the norm of λ's gradient or None) → the next λ."""


class SampleRequest(NamedTuple):
    """What of S samples to look at."""

    fit: int
    """k: the first so many."""
    prior_std: float | None = None
    """σ, where the moment-matched KL of the samples to N(0, σ²I) is wanted."""
    padded: bool = False
    """All of them, padded."""


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
    scaled: bool = False
    """Whether each layer of G divides its inputs by the root of their number."""

    @property
    def generator(self) -> Mlp:
        return Mlp((self.latent, *self.hidden, weight_count(self.network)), last="tanh", scaled=self.scaled)

    def draw(self, *samples: int) -> Draw:
        """The latent noise z of so many samples."""
        return Draw((*samples, self.latent), self.latent_noise)

    def draw_weights(self, *samples: int) -> dict[str, Draw]:
        """The noise on the weights of so many samples, named; nothing where there is none."""
        return {"weights": Draw((*samples, weight_count(self.network)))} if self.weight_noise else {}

    def around(self, weights: Params, parameters: Params) -> Params:
        """The parameters, changed so that G makes the base network's `weights`, with a tenth of its spread."""
        last, bias = self._last
        centre = flatten(weights).clamp(-MOST, MOST).atanh()
        return parameters | {last: INITIAL_SPREAD * parameters[last], bias: centre}

    def start(self, mean: Params, shift: Params, scale: float) -> tuple[Params, Float[Tensor, ""]]:
        """(λ before the first step: mean + scale·shift, ‖mean‖²).

        The last layer is padded so that its rows are aligned for GPUs, and rounded if the `precision` wants that and a
        task does not change it.
        """
        last, bias = self._last
        padding = {name: -weight_count(self.network) % ALIGNED for name in (last, bias)}
        dtypes = {last: rounded_type(mean[last])} if self.rank else {}
        found = {
            name: _Start.apply(mean[name], shift[name], (scale, padding.get(name, 0), dtypes.get(name)))  # type: ignore[no-untyped-call]
            for name in mean
        }
        squares = torch.stack([squared for _, squared in found.values()]).sum()
        return {name: started for name, (started, _) in found.items()}, squares

    def means(self, parameters: Params, z: Float[Tensor, "S latent"]) -> Float[Tensor, "S n"]:
        """G(z), S flat weight vectors without their noise."""
        return self.see(parameters, z, SampleRequest(fit=len(z)))["fit"]

    def see(self, parameters: Params, z: Float[Tensor, "S latent"], sight: SampleRequest) -> Samples:
        """What is to be seen of G(z)."""
        parameters = parameters if self.rank else self.generator.rounded(parameters)
        hidden, (last, bias) = self._hidden_units(parameters, z), self._last
        if self._fuses(hidden, sight):
            return self._fused(parameters, hidden, sight, steps=False)[0]
        if "left" in parameters:
            return self._look(self._last_layer(parameters, hidden).tanh(), sight)
        return self._look(layer(hidden, parameters[last], parameters[bias], "tanh"), sight)

    def generate(
        self, parameters: Params, z: Float[Tensor, "S latent"], sight: SampleRequest, *, first_order: bool
    ) -> tuple[Samples, Step]:
        """What is to be seen of G(z; λ), and the step of gradient descent that follows from an objective's gradient."""
        at = detach(parameters) if first_order else parameters
        if not self.rank:
            at = self.generator.rounded(at)  # so that its gradient is not made longer again
            seen, pull_back = _pull_back(lambda params: self.see(params, z, sight), at)

            def dense_step(gradient: Samples, lr: float, limit: float | None) -> Params:
                of_all = pull_back(gradient)
                return take_rounded_step(parameters, of_all if limit is None else clip(of_all, limit), lr)

            return seen, dense_step

        _, bias = self._last
        trunk = {name: value for name, value in at.items() if name in self._trunk.shapes}
        hidden, pull_back = _pull_back(lambda params: self._hidden_units(params, z), trunk)
        seen, back = (self._fused if self._fuses(hidden, sight) else self._plain)(at, hidden, sight)

        def step(gradient: Samples, lr: float | Tensor, limit: float | None) -> Params:
            grad_hidden, grad_bias, rows, right, grad_last = back(gradient, limit is not None)
            grad_own = pull_back(grad_hidden) | {bias: grad_bias}
            if limit is not None:
                squared = grad_last + sum(value.square().sum() for value in grad_own.values())
                lr = lr * clip_scale(squared, limit)
            left = torch.cat([at["left"], -lr * rows]) if "left" in at else -lr * rows
            return take_rounded_step(parameters, grad_own, lr) | {"left": left, "right": right}

        return seen, step

    def perturb(self, means: Float[Tensor, "S n"], noise: Float[Tensor, "R n"] | None) -> Float[Tensor, "Q n"]:
        """w = G(z) + s·noise, for as many as there are of both; without noise, the means themselves."""
        return means if noise is None else means[: len(noise)] + self.weight_noise * noise[: len(means)]

    @property
    def _trunk(self) -> Mlp:
        """The generator below its last layer."""
        return Mlp((self.latent, *self.hidden), last="relu", scaled=self.scaled)

    @property
    def _last(self) -> tuple[str, str]:
        """The names of the last layer's weight and bias."""
        return f"{len(self.hidden)}.weight", f"{len(self.hidden)}.bias"

    def _hidden_units(self, parameters: Params, z: Tensor) -> Tensor:
        """What the last layer multiplies by its weights."""
        return self.generator.entering(self._trunk(parameters, z) if self.hidden else z, len(self.hidden))

    def _last_layer(self, parameters: Params, hidden: Tensor) -> Tensor:
        """What tanh is taken of: the layer that all tasks share, and the factors of a task."""
        last, bias = self._last
        mapped = product(hidden, parameters[last])
        mapped = mapped + parameters[bias].to(mapped.dtype)
        if "left" not in parameters:
            return mapped
        return mapped + product(product(hidden, parameters["left"].T), parameters["right"])

    def _look(self, samples: Tensor, sight: SampleRequest) -> Samples:
        weights = weight_count(self.network)
        fit = samples[: sight.fit]
        if sight.padded and fused_kernels_fit(samples):
            fit, samples = split_samples(samples, sight.fit)
        seen = {"fit": in_full(fit[:, :weights])} | ({"padded": samples} if sight.padded else {})
        kl = {} if sight.prior_std is None else {"moment_kl": moment_kl(samples[:, :weights], sight.prior_std)}
        return seen | kl

    def _plain(
        self, parameters: Params, hidden: Tensor, sight: SampleRequest
    ) -> tuple[Samples, Callable[[Samples, bool], LastLayerGrads]]:
        """What is seen, and what takes its gradient back before the last layer."""
        last, _ = self._last
        mapped = self._last_layer(parameters, hidden)
        seen, pull_back = _pull_back(lambda mapped: self._look(mapped.tanh(), sight), mapped)

        def back(gradient: Samples, norm: bool) -> LastLayerGrads:
            delta = right = pull_back(gradient)
            grad_hidden = product(delta, parameters[last].T)
            if "left" in parameters:
                grad_hidden = grad_hidden + product(product(delta, parameters["right"].T), parameters["left"])
                right = torch.cat([parameters["right"], delta])
            grad_last = ((hidden @ hidden.T) * (delta @ delta.T)).sum() if norm else None  # ‖Hᵀ Δ‖², without Hᵀ Δ
            return LastLayerGrads(grad_hidden.to(hidden.dtype), delta.to(hidden.dtype).sum(0), hidden, right, grad_last)

        return seen, back

    def _fuses(self, hidden: Tensor, sight: SampleRequest) -> bool:
        return self.rank > 0 and not sight.padded and fused_kernels_fit(hidden)

    def _fused(
        self, parameters: Params, hidden: Tensor, sight: SampleRequest, *, steps: bool = True
    ) -> tuple[Samples, Callable[[Samples, bool], LastLayerGrads]]:
        """The same by kernels of our own, on a GPU; without `steps`, to be differentiated instead."""
        last, bias = (parameters[name] for name in self._last)
        weights = weight_count(self.network)
        wanted = LastLayerSpec(sight.fit, weights, sight.prior_std, VARIANCE_FLOOR, self.rank if steps else 0)
        fit, kl, back = squash(hidden, last, bias, parameters.get("left"), parameters.get("right"), wanted)
        if kl is None:
            return {"fit": fit}, lambda gradient, norm: back(gradient["fit"], None, norm)
        seen = {"fit": fit, "moment_kl": kl - moment_log_bias(len(hidden), weights)}
        return seen, lambda gradient, norm: back(gradient["fit"], gradient["moment_kl"], norm)


def _pull_back(function: Callable[[Any], Any], at: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The function's value, and what turns a gradient of the value into one of what it was taken at."""
    value, pull_back, *_ = vjp(function, at)
    return value, lambda gradient: pull_back(gradient)[0]


class _Start(torch.autograd.Function):
    """(mean + scale·shift with zeros behind each row, ‖mean‖²).

    The mean may be millions of parameters: the sum is written in its place and type, and the two gradients are added,
    in one pass each.
    """

    @staticmethod
    def forward(mean: Tensor, shift: Tensor, constants: tuple[float, int, torch.dtype | None]) -> tuple[Tensor, Tensor]:
        scale, padding, dtype = constants
        if _starts_fused(mean):
            from fewsure.kernels.triton import generator as kernels

            return kernels.start(mean, shift.contiguous(), scale, padding, dtype or mean.dtype)
        *rows, columns = mean.shape
        padded = mean.new_empty(*rows, columns + padding, dtype=dtype or mean.dtype)
        torch.add(mean, shift, alpha=scale, out=padded[..., :columns])
        padded[..., columns:] = 0
        return padded, torch.linalg.vector_norm(mean).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        mean, _, (ctx.scale, _, _) = inputs
        ctx.fuses = _starts_fused(mean)  # backward may run in a thread of its own, which does not see what is allowed
        ctx.save_for_backward(mean)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_padded: Tensor | None, grad_squares: Tensor | None) -> tuple[Any, ...]:
        (mean,) = ctx.saved_tensors
        if grad_padded is None:
            return None if grad_squares is None else 2 * grad_squares * mean, None, None
        grad_sum = grad_padded[..., : mean.shape[-1]]
        grad_shift = ctx.scale * grad_sum if ctx.needs_input_grad[1] else None
        if grad_squares is not None and ctx.fuses:
            return grad_start(grad_padded, mean, grad_squares), grad_shift, None
        grad_mean = grad_sum.to(mean.dtype) if grad_squares is None else torch.addcmul(grad_sum, mean, 2 * grad_squares)
        return grad_mean, grad_shift, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], mean: Tensor, shift: Tensor, constants: Any) -> Any:
        each = [
            _Start.apply(  # type: ignore[no-untyped-call]
                mean if in_dims[0] is None else mean.select(in_dims[0], index),
                shift if in_dims[1] is None else shift.select(in_dims[1], index),
                constants,
            )
            for index in range(info.batch_size)
        ]
        return tuple(torch.stack(parts) for parts in zip(*each, strict=True)), (0, 0)


def _starts_fused(mean: Tensor) -> bool:
    """Whether a kernel of our own is worth it: torch takes twice as long where types and strides differ."""
    return mean.dim() == 2 and mean.numel() >= LARGE and fused_kernels_fit(mean)
