"""The kernels of SImPa's generator as functions that `torch.func` can batch and differentiate once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewsure.kernels.grouped import Grouped, OnceDifferentiable


class LastLayerSpec(NamedTuple):
    """What `squash` is to do."""

    fit: int
    """k, samples that are handed out."""
    weights: int
    """n, columns of the layer that are no padding."""
    prior_std: float | None
    """σ of the prior, if the KL is wanted."""
    floor: float
    """Added to variances."""
    rank: int = 0
    """Rows that `right` will have in the end, if a step is to follow; 0 if the result is to be differentiated."""


class LastLayerGrads(NamedTuple):
    """What a step makes of the gradient δ of what tanh is taken of; the layer's own is Σ rowᵀ (row of right)."""

    grad_hidden: Tensor
    grad_bias: Tensor
    rows: Tensor
    """The hidden units, or multiples of them, that belong to the new rows of `right`."""
    right: Tensor
    """The factors `right`, with new rows below."""
    grad_last: Tensor | None
    """The squared norm of the layer's gradient, if it is wanted."""


def squash(
    hidden: Tensor, last: Tensor, bias: Tensor, left: Tensor | None, right: Tensor | None, wanted: LastLayerSpec
) -> tuple[Tensor, Tensor | None, Callable[[Tensor, Tensor | None, bool], LastLayerGrads]]:
    """tanh(h W + b + (h leftᵀ) right) of samples h (S, hidden): the first of them, the KL of all, and the way back.

    The way back takes the gradients of both, and whether the norm is wanted. The new rows are written into `right`,
    which has room for all steps from the first one on.
    """
    grouped = [None if tensor is None else tensor.unsqueeze(0) for tensor in (bias, left, right)]
    hidden = hidden.unsqueeze(0)
    fit, kl, grad_bias, delta, store = _Squash.apply(hidden, last, *grouped, wanted)  # type: ignore[no-untyped-call]

    def back(of_fit: Tensor, of_kl: Tensor | None, norm: bool) -> LastLayerGrads:
        of_kl = None if of_kl is None else of_kl.unsqueeze(0)
        gradients, factors = (of_fit.unsqueeze(0), of_kl), grouped[1:]
        found = _Back.apply(*gradients, hidden, last, *factors, fit, grad_bias, delta, store, norm)  # type: ignore[no-untyped-call]
        grad_hidden, of_layer_bias, rows, grad_last = (tensor.squeeze(0) for tensor in found)
        return LastLayerGrads(grad_hidden, of_layer_bias, rows, store.squeeze(0), grad_last if norm else None)

    return fit.squeeze(0), None if wanted.prior_std is None else kl.squeeze(0), back


def split_samples(samples: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first samples (S, N) in full, and all of them; the gradient of all must be nobody else's."""
    first, every = _HandOut.apply(samples.unsqueeze(0), count)  # type: ignore[no-untyped-call]
    return first.squeeze(0), every.squeeze(0)


def grad_start(grad_padded: Tensor, mean: Tensor, grad_squares: Tensor) -> Tensor:
    """The gradient of a matrix from those of itself with zeros behind each row, and of its squared norm."""
    found: Tensor = _OfStart.apply(grad_padded, mean, grad_squares)  # type: ignore[no-untyped-call]
    return found


class _Squash(Grouped):
    """Groups are tasks; the layer W is one for all of them."""

    @staticmethod
    def forward(
        hidden: Tensor, last: Tensor, bias: Tensor, left: Tensor | None, right: Tensor | None, wanted: LastLayerSpec
    ) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import generator as kernels

        groups, samples, _ = hidden.shape
        hidden = hidden.to(last.dtype)
        mapped = (hidden.flatten(0, 1) @ last).view(groups, samples, -1)
        inner, rank = (None, 0) if left is None else (hidden @ left.mT.to(last.dtype), left.shape[1])
        store = right
        if wanted.rank and right is None:
            store = mapped.new_empty(groups, wanted.rank, mapped.shape[2])
        kept, look = store if wanted.rank else None, (wanted.fit, wanted.weights, wanted.prior_std, wanted.floor)
        fit, kl, grad_bias = kernels.squash(mapped, bias, inner, right, *look, kept, rank)
        kl = grad_bias.new_empty(groups) if kl is None else kl
        store = store.view(store.shape) if wanted.rank and store is not None else grad_bias.new_empty(groups, 0)
        return fit, kl, grad_bias, mapped, store

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        hidden, last, _, left, right, ctx.wanted = inputs
        fit, _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, last, left, right, fit, *saved)

    @staticmethod
    def backward(ctx: Any, of_fit: Tensor | None, of_kl: Tensor | None, *_: Any) -> tuple[Any, ...]:
        _, last, *_, fit, _, delta, _ = ctx.saved_tensors
        of_fit = torch.zeros_like(fit) if of_fit is None else of_fit  # an objective may look at one of them alone
        if ctx.wanted.prior_std is None:
            of_kl = None
        elif of_kl is None:
            of_kl = fit.new_zeros(len(fit))
        found = _Back.apply(of_fit, of_kl, *ctx.saved_tensors, False)  # type: ignore[no-untyped-call]
        grad_hidden, grad_bias, rows, _ = found
        grad_last = rows.flatten(0, 1).T.to(last.dtype) @ delta.flatten(0, 1)
        return grad_hidden, grad_last, grad_bias, None, None, None

    @classmethod
    def shared(cls, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[int, ...]:
        return (1,)


class _Back(OnceDifferentiable, Grouped):
    """A step that is differentiated no more; it completes rows of `delta` and of `store`, where there is one."""

    @staticmethod
    def forward(
        of_fit: Tensor,
        of_kl: Tensor | None,
        hidden: Tensor,
        last: Tensor,
        left: Tensor | None,
        right: Tensor | None,
        fit: Tensor,
        grad_bias: Tensor,
        delta: Tensor,
        store: Tensor,
        norm: bool,
    ) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import generator as kernels

        groups, samples, _ = hidden.shape
        count, of_kl = fit.shape[1], None if of_kl is None else of_kl.contiguous()
        used = None if left is None or right is None else right[:, : left.shape[1]]
        few = used is not None and count == samples and samples * used.shape[1] <= kernels.FEW
        rank, kept = 0 if used is None else used.shape[1], store if store.numel() else None
        of_fit, right = of_fit.contiguous(), used if few else None
        grad_bias, on_right = kernels.merge(of_fit, of_kl, fit, grad_bias, delta, kept, rank, right)
        grad_hidden, of_factors, rows = (delta.flatten(0, 1) @ last.T).view(hidden.shape), None, hidden
        if left is not None and used is not None:
            on_right = delta @ used.mT if on_right is None else on_right
            of_factors = on_right.to(last.dtype) @ left.to(last.dtype)
        if of_kl is not None:
            grad_hidden, rows = kernels.weigh(grad_hidden, of_factors, hidden.contiguous(), of_kl, count)
        else:
            grad_hidden = (grad_hidden if of_factors is None else grad_hidden + of_factors).to(hidden.dtype)
        if not norm:
            return grad_hidden, grad_bias, rows, grad_bias.new_empty(groups)
        return grad_hidden, grad_bias, rows, ((rows @ rows.mT) * (delta @ delta.mT)).sum((1, 2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @classmethod
    def shared(cls, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[int, ...]:
        return (3,)


class _HandOut(Grouped):
    @staticmethod
    def forward(samples: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return samples[:, :count].to(torch.float32, copy=True), samples.view(samples.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        samples, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(samples)

    @staticmethod
    def backward(ctx: Any, broadcast: Tensor | None, of_every: Tensor | None) -> tuple[Any, ...]:
        if broadcast is None:
            return of_every, None
        if of_every is None:
            of_every = torch.zeros_like(ctx.saved_tensors[0])
        (found,) = _HandOutBackward.apply(broadcast, of_every, None)  # type: ignore[no-untyped-call]
        return found, None


class _HandOutBackward(OnceDifferentiable, Grouped):
    @staticmethod
    def forward(broadcast: Tensor, of_every: Tensor, _: None) -> tuple[Tensor]:
        of_every[:, : broadcast.shape[1]] += broadcast  # a pass over all of them is saved
        return (of_every.view(of_every.shape),)


class _OfStart(OnceDifferentiable):
    @staticmethod
    def forward(grad_padded: Tensor, mean: Tensor, grad_squares: Tensor) -> Tensor:
        from fewsure.kernels.triton import generator as kernels

        return kernels.grad_start(grad_padded.contiguous(), mean, grad_squares)
