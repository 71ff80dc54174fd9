"""The kernels as functions that `torch.func` can batch and differentiate once, and the switch that allows them."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

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


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


class _ConvBlock(torch.autograd.Function):
    """Each tensor has a leading dimension of groups, into which a batch that `vmap` adds is folded."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, of_input: bool) -> tuple[Tensor, ...]:
        from fewsure.kernels import conv_block as kernels

        return kernels.forward(x.contiguous(), w.contiguous(), _precision())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, ctx.of_input = inputs
        _, *saved = output
        ctx.mark_non_differentiable(*saved)
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
        gradient, x, w, y, mean, scale = (tensor.contiguous() for tensor in tensors)
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


def _batched(function: Any, size: int, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """Fold the batch into the groups, apply, and unfold. The last input is no tensor."""
    *tensors, constants = inputs
    folded = []
    for tensor, dim in zip(tensors, in_dims, strict=False):
        batch_first = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        folded.append(batch_first.flatten(0, 1))
    outputs = function.apply(*folded, constants)
    return tuple(output.unflatten(0, (size, -1)) for output in outputs), (0,) * len(outputs)
