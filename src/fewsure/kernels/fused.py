"""The kernels as functions that `torch.func` can batch and differentiate once, and the switch that allows them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOST_SAMPLES = 128
"""Samples of a posterior that `squash` can take."""

_ALLOWED: ContextVar[bool] = ContextVar("fused kernels", default=False)


@contextmanager
def fused_kernels(allowed: bool) -> Iterator[None]:
    """Let networks use kernels that can be differentiated once: not where a gradient is differentiated again."""
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def fused_kernels_fit(x: Tensor) -> bool:
    """Whether they are allowed here and made for tensors like x."""
    return _ALLOWED.get() and x.is_cuda and x.dtype == torch.float32 and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def conv_block(x: Tensor, weight: Tensor, *, of_input: bool) -> Tensor:
    """One block of conv4 without bias: images (N, H, W, C), weights (O, C, 3, 3) → (N, H/2, W/2, O).

    `of_input` says whether the gradient of the images is wanted.
    """
    pooled, *_ = _ConvBlock.apply(x.unsqueeze(0), weight.unsqueeze(0), of_input)  # type: ignore[no-untyped-call]
    return torch.squeeze(pooled, 0)


def moment_kl(samples: Tensor, prior_std: float, floor: float) -> Tensor:
    """The KL of samples (S, n) as `fewsure.kernels.moments` has it."""
    kl, *_ = _MomentKl.apply(samples.unsqueeze(0), (prior_std, floor))  # type: ignore[no-untyped-call]
    return torch.squeeze(kl, 0)


class Squash(NamedTuple):
    """What `squash` is to do."""

    fit: int
    """Samples that are handed out."""
    weights: int
    """n, columns of the layer that are no padding."""
    rank: int
    """Rows that `right` will have in the end."""
    prior_std: float | None
    """σ of the prior, if the KL is wanted."""
    floor: float
    """Added to variances."""


class Deltas(NamedTuple):
    """The gradient δ of what tanh is taken of, and what a step makes of it."""

    delta: Tensor
    of_bias: Tensor
    """Its sum over the samples."""
    on_right: Tensor | None
    """Its products with the factors `right`, if there are any."""
    right: Tensor
    """Those factors, with δ below."""


def squash(
    hidden: Tensor, last: Tensor, bias: Tensor, left: Tensor | None, right: Tensor | None, wanted: Squash
) -> tuple[Tensor, Tensor | None, Callable[[Tensor, Tensor | None], Deltas]]:
    """tanh(h W + b + (h leftᵀ) right) of samples h (S, hidden): the first of them, the KL of all, and the way back.

    The way back takes the gradients of both, and writes δ into `right`, which from then on has room for all steps.
    """
    factors = [None if factor is None else factor.unsqueeze(0) for factor in (left, right)]
    fit, kl, kl_delta = _Squash.apply(hidden.unsqueeze(0), last, bias.unsqueeze(0), *factors, wanted)  # type: ignore[no-untyped-call]
    rank, shape = 0 if left is None else len(left), (len(hidden), last.shape[1])

    def deltas(of_fit: Tensor, of_kl: Tensor | None) -> Deltas:
        of_kl = None if of_kl is None else of_kl.unsqueeze(0)
        constants = (rank, wanted.rank, shape)
        found = _Deltas.apply(of_fit.unsqueeze(0), of_kl, fit, kl_delta, factors[1], constants)  # type: ignore[no-untyped-call]
        delta, of_bias, on_right, appended = (tensor.squeeze(0) for tensor in found)
        return Deltas(delta, of_bias, on_right if rank else None, appended)

    return fit.squeeze(0), None if wanted.prior_std is None else kl.squeeze(0), deltas


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


class _ConvBlock(torch.autograd.Function):
    """Each tensor has a leading dimension of groups, into which a batch that `vmap` adds is folded."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, of_input: bool) -> tuple[Tensor, ...]:
        from fewsure.kernels import conv_block as kernels

        return kernels.forward(x.contiguous(), w, _precision())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, ctx.of_input = inputs
        _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)  # what is saved has no gradient, not even one of zeros
        ctx.save_for_backward(x, w, *saved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        found = _ConvBlockBackward.apply(gradient, *ctx.saved_tensors, ctx.of_input)  # type: ignore[no-untyped-call]
        return (*found, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_ConvBlock, info.batch_size, in_dims, inputs)


class _ConvBlockBackward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        from fewsure.kernels import conv_block as kernels

        *tensors, of_input = inputs
        gradient, x, w, y, mean, scale = tensors
        gradient, x = gradient.contiguous(), x.contiguous()
        return kernels.backward(gradient, x, w, y, mean, scale, _precision(), of_input=of_input)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("the fused block of conv4 can be differentiated once; second order takes the plain path")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_ConvBlockBackward, info.batch_size, in_dims, inputs)


class _MomentKl(torch.autograd.Function):
    @staticmethod
    def forward(samples: Tensor, constants: tuple[float, float]) -> tuple[Tensor, ...]:
        from fewsure.kernels import moments

        return moments.forward(samples.contiguous(), *constants)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        samples, ctx.constants = inputs
        _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)  # what is saved has no gradient, not even one of zeros
        ctx.save_for_backward(samples, *saved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        (found,) = _MomentKlBackward.apply(gradient, *ctx.saved_tensors, ctx.constants)  # type: ignore[no-untyped-call]
        return found, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_MomentKl, info.batch_size, in_dims, inputs)


class _MomentKlBackward(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        from fewsure.kernels import moments

        *tensors, (prior_std, _) = inputs
        gradient, samples, mean, variance = (tensor.contiguous() for tensor in tensors)
        return (moments.backward(gradient, samples, mean, variance, prior_std),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("the fused KL can be differentiated once; second order takes the plain path")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_MomentKlBackward, info.batch_size, in_dims, inputs)


class _Squash(torch.autograd.Function):
    """Groups are tasks; the layer W is one for all of them."""

    @staticmethod
    def forward(
        hidden: Tensor, last: Tensor, bias: Tensor, left: Tensor | None, right: Tensor | None, wanted: Squash
    ) -> tuple[Tensor, ...]:
        from fewsure.kernels import generator as kernels

        groups, samples, _ = hidden.shape
        mapped = (hidden.flatten(0, 1) @ last).view(groups, samples, -1)
        inner = None if left is None else hidden @ left.transpose(1, 2)
        fit, kl = kernels.squash(mapped, bias, inner, right, wanted.fit, wanted.weights, wanted.prior_std, wanted.floor)
        return (fit, fit.new_empty(groups), fit.new_empty(groups, 0)) if kl is None else (fit, kl, mapped)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        hidden, last, _, left, right, ctx.wanted = inputs
        fit, _, kl_delta = output
        ctx.mark_non_differentiable(kl_delta)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, last, left, right, fit, kl_delta)

    @staticmethod
    def backward(ctx: Any, of_fit: Tensor, of_kl: Tensor | None, _: Any) -> tuple[Any, ...]:
        hidden, last, left, right, fit, kl_delta = ctx.saved_tensors
        of_kl = None if ctx.wanted.prior_std is None else of_kl
        constants = (0 if left is None else left.shape[1], 0, (hidden.shape[1], last.shape[1]))
        delta, of_bias, on_right, _ = _Deltas.apply(of_fit, of_kl, fit, kl_delta, right, constants)  # type: ignore[no-untyped-call]
        rows = delta.flatten(0, 1)
        of_hidden = (rows @ last.T).view(hidden.shape)
        of_hidden = of_hidden if left is None else of_hidden + on_right @ left
        return of_hidden, hidden.flatten(0, 1).T @ rows, of_bias, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_Squash, info.batch_size, in_dims, inputs, shared=(1,))


class _Deltas(torch.autograd.Function):
    """A step that is differentiated no more."""

    @staticmethod
    def forward(
        of_fit: Tensor,
        of_kl: Tensor | None,
        fit: Tensor,
        kl_delta: Tensor,
        right: Tensor | None,
        constants: tuple[int, int, tuple[int, int]],
    ) -> tuple[Tensor, ...]:
        from fewsure.kernels import generator as kernels

        rank, space, shape = constants
        of_fit, of_kl = of_fit.contiguous(), None if of_kl is None else of_kl.contiguous()
        *found, appended = kernels.deltas(of_fit, of_kl, fit, kl_delta, right, rank, space, (len(fit), *shape))
        return *found, appended.view(appended.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("a fused step of the generator is first order; second order takes the plain path")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_Deltas, info.batch_size, in_dims, inputs)


def _batched(
    function: Any, size: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...], shared: tuple[int, ...] = ()
) -> tuple[Any, Any]:
    """Fold the batch into the groups, apply, and unfold. The last input is no tensor, `shared` ones have no groups."""
    *tensors, constants = inputs
    folded = []
    for number, (tensor, dim) in enumerate(zip(tensors, in_dims, strict=False)):
        if tensor is None or number in shared:
            folded.append(tensor)
            continue
        batch_first = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        folded.append(batch_first.flatten(0, 1))
    outputs = function.apply(*folded, constants)
    return tuple(output.unflatten(0, (size, -1)) for output in outputs), (0,) * len(outputs)
