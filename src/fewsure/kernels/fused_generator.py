"""The kernels of SImPa's generator as functions that `torch.func` can batch and differentiate once."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fewsure.core.devices import LARGE
from fewsure.core.vectorise import for_components, stack_components
from fewsure.kernels.fused import fused_kernels_fit
from fewsure.kernels.grouped import Grouped, OnceDifferentiable
from fewsure.types import Params


class LastLayerSpec(NamedTuple):
    """The results that `last_layer` is to have."""

    fit: int
    """k, samples that are returned."""
    weights: int
    """n, columns of the layer that are no padding."""
    prior_std: float | None
    """σ of the prior, if the KL is wanted."""
    floor: float
    """Added to variances."""
    rank: int = 0
    """Rows that `right` will have in the end, if a step is to follow; 0 if the result is to be differentiated."""


class LastLayerGrads(NamedTuple):
    """Gradients of a step, from δ, the gradient before tanh; the layer's own is Σ rowᵀ (row of right)."""

    hidden: Tensor
    bias: Tensor
    rows: Tensor
    """The hidden units, or multiples of them, that belong to the new rows of `right`."""
    right: Tensor
    """The factors `right`, with new rows below."""
    squared_norm: Tensor | None
    """The squared norm of the layer's own gradient, if it is wanted."""


PullBack = Callable[[Tensor, Tensor | None, bool], LastLayerGrads]
"""(gradient of the samples, of the KL, whether the norm is wanted) → gradients of a step."""


def last_layer(
    hidden: Tensor, last: Tensor, bias: Tensor, left: Tensor | None, right: Tensor | None, wanted: LastLayerSpec
) -> tuple[Tensor, Tensor | None, PullBack]:
    """tanh(h W + b + (h leftᵀ) right) of samples h (K, S, hidden): the first of them, the KL of all, and the way back.

    All tensors have a leading K of components. New rows are written into `right`, which has room for all steps from
    the first one on.
    """
    layers = (hidden.unbind(), last.unbind(), bias.unbind())
    lefts, rights = ([None] * len(hidden) if factor is None else factor.unbind() for factor in (left, right))
    found = [_last_layer(*each, wanted) for each in zip(*layers, lefts, rights, strict=True)]
    fit, kl = stack_components([(fit, kl) for fit, kl, _ in found])

    def pull_back(grad_fit: Tensor, grad_kl: Tensor | None, norm: bool) -> LastLayerGrads:
        grads_kl = [None] * len(found) if grad_kl is None else grad_kl.unbind()
        each = zip(found, grad_fit.unbind(), grads_kl, strict=True)
        grads: LastLayerGrads = stack_components([back(fit, kl, norm) for (*_, back), fit, kl in each])
        return grads

    return fit, kl, pull_back


def _last_layer(
    hidden: Tensor, last: Tensor, bias: Tensor, left: Tensor | None, right: Tensor | None, wanted: LastLayerSpec
) -> tuple[Tensor, Tensor | None, PullBack]:
    grouped = [None if tensor is None else tensor.unsqueeze(0) for tensor in (bias, left, right)]
    hidden = hidden.unsqueeze(0)
    fit, kl, grad_bias, delta, store = _LastLayer.apply(hidden, last, *grouped, wanted)  # type: ignore[no-untyped-call]

    def pull_back(grad_fit: Tensor, grad_kl: Tensor | None, norm: bool) -> LastLayerGrads:
        grad_kl = None if grad_kl is None else grad_kl.unsqueeze(0)
        tensors = (grad_fit.unsqueeze(0), grad_kl, hidden, last, *grouped[1:], fit, grad_bias, delta, store)
        found = _LastLayerBackward.apply(*tensors, norm)  # type: ignore[no-untyped-call]
        grad_hidden, whole_bias, rows, squared_norm = (tensor.squeeze(0) for tensor in found)
        return LastLayerGrads(grad_hidden, whole_bias, rows, store.squeeze(0), squared_norm if norm else None)

    return fit.squeeze(0), None if wanted.prior_std is None else kl.squeeze(0), pull_back


def split_samples(samples: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first samples (K, S, N) in full, and all of them; nobody else may use the gradient of all."""
    first, every = _SplitSamples.apply(samples, count)  # type: ignore[no-untyped-call]
    return first, every


def start(
    mean: Params, shift: Params, scale: float, padding: Mapping[str, int], rounded: Mapping[str, torch.dtype]
) -> tuple[Params, Tensor]:
    """(mean + scale·shift, some with zeros behind each row or of another type; ‖mean‖², (K,)), of K components."""
    started, squares = {}, []
    for name, value in mean.items():
        columns, dtype = padding.get(name, 0), rounded.get(name, value.dtype)
        if value.dim() == 3 and value[0].numel() >= LARGE and fused_kernels_fit(value):
            constants = (scale, columns, dtype)
            started[name], squared = for_components(lambda *one: _Start.apply(*one, constants), value, shift[name])  # type: ignore[no-untyped-call]  # noqa: B023
        else:
            moved = functional.pad(torch.add(value, shift[name], alpha=scale), (0, columns))
            started[name], squared = moved.to(dtype), value.square().flatten(1).sum(1)
        squares.append(squared)
    return started, torch.stack(squares).sum(0)


class _LastLayer(Grouped):
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
        kept, request = store if wanted.rank else None, (wanted.fit, wanted.weights, wanted.prior_std, wanted.floor)
        fit, kl, grad_bias = kernels.tanh_samples(mapped, bias, inner, right, *request, kept, rank)
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
    def backward(ctx: Any, grad_fit: Tensor | None, grad_kl: Tensor | None, *_: Any) -> tuple[Any, ...]:
        _, last, *_, fit, _, delta, _ = ctx.saved_tensors
        grad_fit = torch.zeros_like(fit) if grad_fit is None else grad_fit  # an objective may use one of them alone
        if ctx.wanted.prior_std is None:
            grad_kl = None
        elif grad_kl is None:
            grad_kl = fit.new_zeros(len(fit))
        found = _LastLayerBackward.apply(grad_fit, grad_kl, *ctx.saved_tensors, False)  # type: ignore[no-untyped-call]
        grad_hidden, grad_bias, rows, _ = found
        grad_last = rows.flatten(0, 1).T.to(last.dtype) @ delta.flatten(0, 1)
        return grad_hidden, grad_last, grad_bias, None, None, None

    @classmethod
    def shared(cls, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[int, ...]:
        return (1,)


class _LastLayerBackward(OnceDifferentiable, Grouped):
    """A step that is differentiated no more; it completes rows of `delta` and of `store`, where there is one."""

    @staticmethod
    def forward(
        grad_fit: Tensor,
        grad_kl: Tensor | None,
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
        count, grad_kl = fit.shape[1], None if grad_kl is None else grad_kl.contiguous()
        used = None if left is None or right is None else right[:, : left.shape[1]]
        few = used is not None and count == samples and samples * used.shape[1] <= kernels.FEW
        rank, kept = 0 if used is None else used.shape[1], store if store.numel() else None
        grad_fit, right = grad_fit.contiguous(), used if few else None
        grad_bias, grad_inner = kernels.add_fit_gradient(grad_fit, grad_kl, fit, grad_bias, delta, kept, rank, right)
        grad_hidden, grad_factors, rows = (delta.flatten(0, 1) @ last.T).view(hidden.shape), None, hidden
        if left is not None and used is not None:
            grad_inner = delta @ used.mT if grad_inner is None else grad_inner
            grad_factors = grad_inner.to(last.dtype) @ left.to(last.dtype)
        if grad_kl is not None:
            grad_hidden, rows = kernels.scale_rows(grad_hidden, grad_factors, hidden.contiguous(), grad_kl, count)
        else:
            grad_hidden = (grad_hidden if grad_factors is None else grad_hidden + grad_factors).to(hidden.dtype)
        if not norm:
            return grad_hidden, grad_bias, rows, grad_bias.new_empty(groups)
        return grad_hidden, grad_bias, rows, ((rows @ rows.mT) * (delta @ delta.mT)).sum((1, 2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @classmethod
    def shared(cls, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[int, ...]:
        return (3,)


class _SplitSamples(Grouped):
    @staticmethod
    def forward(samples: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return samples[:, :count].to(torch.float32, copy=True), samples.view(samples.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        samples, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(samples)

    @staticmethod
    def backward(ctx: Any, grad_first: Tensor | None, grad_every: Tensor | None) -> tuple[Any, ...]:
        if grad_first is None:
            return grad_every, None
        if grad_every is None:
            grad_every = torch.zeros_like(ctx.saved_tensors[0])
        (found,) = _SplitSamplesBackward.apply(grad_first, grad_every, None)  # type: ignore[no-untyped-call]
        return found, None


class _SplitSamplesBackward(OnceDifferentiable, Grouped):
    @staticmethod
    def forward(grad_first: Tensor, grad_every: Tensor, _: None) -> tuple[Tensor]:
        grad_every[:, : grad_first.shape[1]] += grad_first  # a pass over all of them is saved
        return (grad_every.view(grad_every.shape),)


class _Start(torch.autograd.Function):
    """One pass each way: a mean may be millions of numbers, and torch takes twice as long where types differ."""

    @staticmethod
    def forward(mean: Tensor, shift: Tensor, constants: tuple[float, int, torch.dtype]) -> tuple[Tensor, Tensor]:
        from fewsure.kernels.triton import generator as kernels

        return kernels.start(mean, shift.contiguous(), *constants)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        mean, _, (ctx.scale, _, _) = inputs
        ctx.save_for_backward(mean)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_padded: Tensor | None, grad_squares: Tensor | None) -> tuple[Any, ...]:
        (mean,) = ctx.saved_tensors
        if grad_padded is None:
            return None if grad_squares is None else 2 * grad_squares * mean, None, None
        grad_sum = grad_padded[..., : mean.shape[-1]]
        grad_shift = ctx.scale * grad_sum if ctx.needs_input_grad[1] else None
        if grad_squares is None:
            return grad_sum.to(mean.dtype), grad_shift, None
        grad_mean = _StartBackward.apply(grad_padded, mean, grad_squares)  # type: ignore[no-untyped-call]
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


class _StartBackward(OnceDifferentiable):
    @staticmethod
    def forward(grad_padded: Tensor, mean: Tensor, grad_squares: Tensor) -> Tensor:
        from fewsure.kernels.triton import generator as kernels

        return kernels.grad_start(grad_padded.contiguous(), mean, grad_squares)
