"""The generator's last layer, which holds nearly all of its parameters, and of which a task never needs a copy.

Its gradient is a sum of outer products, one per generated sample, of the hidden units h and the gradient δ before tanh.
After K steps of size η with S samples each

    W_task = W − η Σ_k H_kᵀ Δ_k,        H_k (S, hidden), Δ_k (S, n),

so a task holds all −η H_k, one below the other, as `left` and all Δ_k as `right`, of rank K·S. Then

    h W_task = h W + (h leftᵀ) right        with one W for all tasks.

This is exact for first and second order. It pays while K·S is less
than the number of hidden units; beyond that, a task has its own copy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp

from fewsure.core.gradient import clip_scale, scale, squared_norm
from fewsure.kernels.fused_generator import LastLayerGrads, LastLayerSpec
from fewsure.kernels.fused_generator import last_layer as fused_last_layer
from fewsure.networks.mlp import layer, product
from fewsure.theory.divergences import VARIANCE_FLOOR, moment_log_bias
from fewsure.theory.sample_kl import KlEstimate
from fewsure.types import Params

Samples = dict[str, Tensor]
"""The part that an objective uses of S samples of w, of each of K components.

`fit` (K, k, n) are the first samples, `kl` (K,) a closed form of the KL of all. `all` (K, S, N ≥ n) has the zeros that
pad the last layer."""


class SampleRequest(NamedTuple):
    """The part of S samples that an objective uses."""

    fit: int
    """k: the first so many."""
    kl: KlEstimate = KlEstimate()
    """The KL that is estimated: its closed form is among the samples, a critic looks at all of them."""


PullBack = Callable[[Samples, bool], LastLayerGrads]
"""(gradient of an objective in the samples, whether the norm of W's gradient is wanted) → gradients of the layer."""


class LastLayer(NamedTuple):
    """tanh(h W_task + b) of hidden units h (K, S, hidden); all parameters have a leading K of components."""

    weight: Tensor
    bias: Tensor
    left: Tensor | None
    right: Tensor | None

    def means(self, hidden: Tensor) -> Tensor:
        """G(z), (K, S, N)."""
        if self.left is None:
            return layer(hidden, self.weight, self.bias, "tanh")
        return self._mapped(hidden).tanh()

    def generate(self, hidden: Tensor, pick: Callable[[Tensor], Samples]) -> tuple[Samples, PullBack]:
        """The samples that are picked from G(z), and the way back of their gradient."""
        samples, pull_back = with_pull_back(lambda mapped: pick(mapped.tanh()), self._mapped(hidden))

        def grads(gradient: Samples, norm: bool) -> LastLayerGrads:
            delta = right = pull_back(gradient)
            grad_hidden = product(delta, self.weight.mT)
            if self.left is not None and self.right is not None:
                grad_hidden = grad_hidden + product(product(delta, self.right.mT), self.left)
                right = torch.cat([self.right, delta], -2)
            squared = ((hidden @ hidden.mT) * (delta @ delta.mT)).sum((-2, -1)) if norm else None  # ‖Hᵀ Δ‖²
            return LastLayerGrads(grad_hidden.to(hidden.dtype), delta.to(hidden.dtype).sum(-2), hidden, right, squared)

        return samples, grads

    def generate_fused(
        self, hidden: Tensor, request: SampleRequest, weights: int, rank: int
    ) -> tuple[Samples, PullBack]:
        """`generate` by kernels of our own, for the moments' KL or none; see `LastLayerSpec` for the numbers."""
        prior_std = request.kl.prior_std if request.kl.moments else None
        wanted = LastLayerSpec(request.fit, weights, prior_std, VARIANCE_FLOOR, rank)
        fit, kl, pull_back = fused_last_layer(hidden, *self, wanted)
        samples = {"fit": fit}
        if kl is not None:
            samples["kl"] = kl - moment_log_bias(hidden.shape[-2], weights)
        return samples, lambda gradient, norm: pull_back(gradient["fit"], gradient.get("kl"), norm)

    def factors(self, rows: Tensor, right: Tensor, lr: float) -> Params:
        """`left` and `right` after a step."""
        added = -lr * rows
        return {"left": added if self.left is None else torch.cat([self.left, added], -2), "right": right}

    def _mapped(self, hidden: Tensor) -> Tensor:
        mapped = product(hidden, self.weight)
        mapped = mapped + self.bias.unsqueeze(-2).to(mapped.dtype)
        if self.left is None or self.right is None:
            return mapped
        return mapped + product(product(hidden, self.left.mT), self.right)


def clipped(grads: LastLayerGrads, others: Params, limit: float) -> tuple[Tensor, Params]:
    """(the rows, the gradients of the generator's other parameters), scaled down where their norm exceeds the limit."""
    assert grads.squared_norm is not None
    factor = clip_scale(grads.squared_norm + squared_norm(others, dims=1), limit)
    return scale({"rows": grads.rows}, factor)["rows"], scale(others, factor)


def with_pull_back(function: Callable[[Any], Any], at: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The function's value, and the map from a gradient of the value to the gradient at its argument."""
    value, pull_back, *_ = vjp(function, at)
    return value, lambda gradient: pull_back(gradient)[0]
