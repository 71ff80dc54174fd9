"""The kernels as functions that `torch.func` can batch and differentiate once, and the switch that allows them."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

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
    return _ALLOWED.get() and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def conv_block(x: Tensor, weight: Tensor, *, of_input: bool) -> Tensor:
    """One block of conv4 without bias: images (N, H, W, C), weights (O, C, 3, 3) → (N, H/2, W/2, O).

    `of_input` says whether the gradient of the images is wanted.
    """
    pooled, *_ = _ConvBlock.apply(x.float().unsqueeze(0), weight.float().unsqueeze(0), of_input)  # type: ignore[no-untyped-call]
    return torch.squeeze(pooled, 0)


def moment_kl(samples: Tensor, prior_std: float, floor: float) -> Tensor:
    """The KL of samples (S, n) as `fewsure.kernels.moments` has it."""
    kl, *_ = _MomentKl.apply(samples.unsqueeze(0), (prior_std, floor))  # type: ignore[no-untyped-call]
    return torch.squeeze(kl, 0)


Activation = Literal["none", "relu", "tanh"]


def layer(x: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    """act(x W + b): x (R, K), W (K, N), b (N) → (R, N); x and W of one type."""
    groups = (tensor.unsqueeze(0) for tensor in (x, weight, bias))
    (y,) = _Layer.apply(*groups, activation)  # type: ignore[no-untyped-call]
    return torch.squeeze(y, 0)


def critic(samples: Tensor, prior: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """E_q[φ] − ln E_p[e^φ] of a φ-network with ReLU, from samples of q (S, K) and of p (R, K), all of one type."""
    groups = [tensor.unsqueeze(0) for tensor in (samples, prior, *weights, *biases)]
    estimate, *_ = _Critic.apply(*groups, None)  # type: ignore[no-untyped-call]
    return torch.squeeze(estimate, 0)


def hand_out(samples: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first samples (S, N) in full, and all of them; the gradient of all must be nobody else's."""
    first, every = _HandOut.apply(samples.unsqueeze(0), count)  # type: ignore[no-untyped-call]
    return first.squeeze(0), every.squeeze(0)


def of_start(of_padded: Tensor, mean: Tensor, of_squares: Tensor) -> Tensor:
    """The gradient of a matrix from those of itself with zeros behind each row, and of its squared norm."""
    found: Tensor = _OfStart.apply(of_padded, mean, of_squares)  # type: ignore[no-untyped-call]
    return found


def step(parameter: Tensor, gradient: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """(parameter − lr·gradient, the same rounded as the gradient is). The gradient is a constant."""
    flat = (tensor.reshape(1, -1).contiguous() for tensor in (parameter, gradient))
    found = _Step.apply(*flat, lr)  # type: ignore[no-untyped-call]
    stepped, rounded = (tensor.view(parameter.shape) for tensor in found)
    return stepped, rounded


class Squash(NamedTuple):
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


class Back(NamedTuple):
    """What a step makes of the gradient δ of what tanh is taken of; the layer's own is Σ rowᵀ (row of right)."""

    of_hidden: Tensor
    of_bias: Tensor
    rows: Tensor
    """The hidden units, or multiples of them, that belong to the new rows of `right`."""
    right: Tensor
    """The factors `right`, with new rows below."""
    of_last: Tensor | None
    """The squared norm of the layer's gradient, if it is wanted."""


def squash(
    hidden: Tensor, last: Tensor, bias: Tensor, left: Tensor | None, right: Tensor | None, wanted: Squash
) -> tuple[Tensor, Tensor | None, Callable[[Tensor, Tensor | None, bool], Back]]:
    """tanh(h W + b + (h leftᵀ) right) of samples h (S, hidden): the first of them, the KL of all, and the way back.

    The way back takes the gradients of both, and whether the norm is wanted. The new rows are written into `right`,
    which has room for all steps from the first one on.
    """
    grouped = [None if tensor is None else tensor.unsqueeze(0) for tensor in (bias, left, right)]
    hidden = hidden.unsqueeze(0)
    fit, kl, of_bias, delta, store = _Squash.apply(hidden, last, *grouped, wanted)  # type: ignore[no-untyped-call]

    def back(of_fit: Tensor, of_kl: Tensor | None, norm: bool) -> Back:
        of_kl = None if of_kl is None else of_kl.unsqueeze(0)
        gradients, factors = (of_fit.unsqueeze(0), of_kl), grouped[1:]
        found = _Back.apply(*gradients, hidden, last, *factors, fit, of_bias, delta, store, norm)  # type: ignore[no-untyped-call]
        of_hidden, of_layer_bias, rows, of_last = (tensor.squeeze(0) for tensor in found)
        return Back(of_hidden, of_layer_bias, rows, store.squeeze(0), of_last if norm else None)

    return fit.squeeze(0), None if wanted.prior_std is None else kl.squeeze(0), back


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


class _Layer(torch.autograd.Function):
    """Groups are networks. Those of the weights may be fewer, each then for several groups of inputs in a row."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> tuple[Tensor]:
        from fewsure.kernels import layers

        groups = len(x) // len(weight)
        bias = bias.expand(len(x), -1) if len(bias) == 1 else bias.repeat_interleave(groups, 0) if groups > 1 else bias
        return (layers.activate_(_products(x, weight), bias, activation),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor]) -> None:
        x, weight, _, ctx.activation = inputs
        ctx.save_for_backward(x, weight, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        of_input, of_weight, of_bias, _ = ctx.needs_input_grad
        constants = (ctx.activation, of_input, of_weight, of_bias)
        dx, dw, db = _LayerBackward.apply(gradient, *ctx.saved_tensors, constants)  # type: ignore[no-untyped-call]
        return dx if of_input else None, dw if of_weight else None, db if of_bias else None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        one_for_all = tuple(place for place in (1, 2) if in_dims[place] is None and len(inputs[place]) == 1)
        return _batched(_Layer, info.batch_size, in_dims, inputs, shared=one_for_all if len(one_for_all) == 2 else ())


class _LayerBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, weight: Tensor, y: Tensor, constants: tuple[Activation, bool, bool, bool]
    ) -> tuple[Tensor, ...]:
        from fewsure.kernels import layers

        activation, of_input, of_weight, of_bias = constants
        dz, db = layers.deactivate(gradient.contiguous(), y.contiguous(), activation, sums=of_bias)
        groups = len(weight)
        if of_bias and groups < len(x):
            db = db.view(groups, -1, db.shape[1]).sum(1)
        dx = _products(dz, weight.mT) if of_input else dz.new_empty(len(x), 0)
        if not of_weight:
            return dx, dz.new_empty(groups, 0), db
        rows, deltas = (tensor.reshape(groups, -1, tensor.shape[-1]) for tensor in (x, dz))
        return dx, rows.mT @ deltas, db

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("a fused layer can be differentiated once; second order takes the plain path")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_LayerBackward, info.batch_size, in_dims, inputs)


def _products(x: Tensor, weight: Tensor) -> Tensor:
    """x (G, R, K) times each group's weights, where one of them may be for several groups: (G, R, N)."""
    if len(weight) == len(x):
        return torch.bmm(x, weight)
    if len(weight) == 1:
        return (x.flatten(0, 1) @ weight[0]).view(*x.shape[:2], -1)
    if len(x) == 1:
        return torch.bmm(x.expand(len(weight), -1, -1), weight)
    return torch.bmm(x, weight.repeat_interleave(len(x) // len(weight), 0))


class _Critic(torch.autograd.Function):
    """Groups are tasks; the samples of the prior and the φ-network may be one for all of them.

    Takes samples of q and of p, the layers' weights, their biases, and None.
    """

    @staticmethod
    def forward(samples: Tensor, prior: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        from fewsure.kernels import layers

        weights, biases = _halves(inputs[:-1])

        def hidden_units(x: Tensor) -> list[Tensor]:
            units = [x]
            for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                z = _products(units[-1], weight)
                bias = bias.expand(len(z), -1) if len(bias) < len(z) else bias
                units.append(layers.activate_(z, bias, "relu" if number + 1 < len(weights) else "none"))
            return units[1:]

        *on_samples, of_samples = hidden_units(samples)
        *on_prior, of_prior = (units.expand(len(samples), -1, -1) for units in hidden_units(prior))
        logs = of_prior.squeeze(-1).float().log_softmax(1)
        normaliser = of_prior[:, 0, 0].float() - logs[:, 0]  # ln Σ e^φ
        estimate = of_samples.squeeze(-1).float().mean(1) - (normaliser - math.log(prior.shape[1]))
        return estimate, logs, *on_samples, *on_prior

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:-1], *saved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        of_samples, _, *of_network, _ = ctx.needs_input_grad
        wanted = (of_samples, any(of_network), len(of_network) // 2)
        found = _CriticBackward.apply(gradient, *ctx.saved_tensors, wanted)  # type: ignore[no-untyped-call]
        on_samples, *on_network = found
        if not any(of_network):
            on_network = [None] * len(of_network)
        return on_samples if of_samples else None, None, *on_network, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        network = [place for place in range(2, len(inputs) - 1) if in_dims[place] is None and len(inputs[place]) == 1]
        one_for_all = network if len(network) == len(inputs) - 3 else []  # its layers are all shared, or none
        if in_dims[1] is None and len(inputs[1]) == 1:
            one_for_all.append(1)
        return _batched(_Critic, info.batch_size, in_dims, inputs, shared=tuple(one_for_all))


class _CriticBackward(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, samples: Tensor, prior: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        from fewsure.kernels import layers

        *tensors, (of_samples, of_network, count) = inputs
        weights, logs, units = tensors[:count], tensors[2 * count], tensors[2 * count + 1 :]
        groups, several = samples.shape[:2]
        on_samples, on_prior = _halves(units)
        sides = [([samples, *on_samples], (gradient / several)[:, None].expand(-1, several))]
        if of_network:
            sides.append(([prior, *on_prior], -gradient[:, None] * logs.exp()))
        of_weights: list[Tensor] = []
        of_biases: list[Tensor] = []
        of_inputs = gradient.new_empty(groups, 0)
        for inputs_of, of_outputs in sides:
            delta = of_outputs.to(samples.dtype).unsqueeze(-1)
            sums = of_outputs.sum(1, keepdim=True)
            for place, number in enumerate(reversed(range(count))):
                x = inputs_of[number].expand(groups, -1, -1)
                if of_network and len(of_weights) < count:
                    of_weights.append(torch.bmm(x.mT, delta))
                    of_biases.append(sums)
                elif of_network:
                    of_weights[place].baddbmm_(x.mT, delta)
                    of_biases[place] += sums
                if number:
                    before = _products(delta, weights[number].mT)
                    delta, sums = layers.deactivate(before, x.contiguous(), "relu", sums=of_network)
            if of_samples and inputs_of is sides[0][0]:
                of_inputs = _products(delta, weights[0].mT)
        if not of_network:
            return of_inputs, *(gradient.new_empty(groups, 0) for _ in range(2 * count))
        on_network = (*reversed(of_weights), *reversed(of_biases))
        one_for_all = len(weights[0]) < groups
        return of_inputs, *(found.sum(0, keepdim=True) if one_for_all else found for found in on_network)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("the fused φ-network can be differentiated once; second order takes the plain path")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_CriticBackward, info.batch_size, in_dims, inputs)


def _halves(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    middle = len(items) // 2
    return list(items[:middle]), list(items[middle:])


class _HandOut(torch.autograd.Function):
    @staticmethod
    def forward(samples: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return samples[:, :count].to(torch.float32, copy=True), samples.view(samples.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        samples, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(samples)

    @staticmethod
    def backward(ctx: Any, of_first: Tensor | None, of_every: Tensor | None) -> tuple[Any, ...]:
        if of_first is None:
            return of_every, None
        if of_every is None:
            of_every = torch.zeros_like(ctx.saved_tensors[0])
        (found,) = _HandOutBackward.apply(of_first, of_every, None)  # type: ignore[no-untyped-call]
        return found, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_HandOut, info.batch_size, in_dims, inputs)


class _HandOutBackward(torch.autograd.Function):
    @staticmethod
    def forward(of_first: Tensor, of_every: Tensor, _: None) -> tuple[Tensor]:
        of_every[:, : of_first.shape[1]] += of_first  # a pass over all of them is saved
        return (of_every.view(of_every.shape),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("samples are handed out for one derivative; second order takes the plain path")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_HandOutBackward, info.batch_size, in_dims, inputs)


class _OfStart(torch.autograd.Function):
    @staticmethod
    def forward(of_padded: Tensor, mean: Tensor, of_squares: Tensor) -> Tensor:
        from fewsure.kernels import generator as kernels

        return kernels.of_start(of_padded.contiguous(), mean, of_squares)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("a fused start can be differentiated once; second order takes the plain path")


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(parameter: Tensor, gradient: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        from fewsure.kernels import layers

        return layers.step(parameter, gradient, lr)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, of_stepped: Tensor | None, of_rounded: Tensor | None) -> tuple[Any, ...]:
        if of_rounded is not None:
            of_rounded = of_rounded.float() if of_stepped is None else of_stepped + of_rounded
        return of_stepped if of_rounded is None else of_rounded, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_Step, info.batch_size, in_dims, inputs)


class _Squash(torch.autograd.Function):
    """Groups are tasks; the layer W is one for all of them."""

    @staticmethod
    def forward(
        hidden: Tensor, last: Tensor, bias: Tensor, left: Tensor | None, right: Tensor | None, wanted: Squash
    ) -> tuple[Tensor, ...]:
        from fewsure.kernels import generator as kernels

        groups, samples, _ = hidden.shape
        hidden = hidden.to(last.dtype)
        mapped = (hidden.flatten(0, 1) @ last).view(groups, samples, -1)
        inner, rank = (None, 0) if left is None else (hidden @ left.mT.to(last.dtype), left.shape[1])
        store = right
        if wanted.rank and right is None:
            store = mapped.new_empty(groups, wanted.rank, mapped.shape[2])
        kept, look = store if wanted.rank else None, (wanted.fit, wanted.weights, wanted.prior_std, wanted.floor)
        fit, kl, of_bias = kernels.squash(mapped, bias, inner, right, *look, kept, rank)
        kl = of_bias.new_empty(groups) if kl is None else kl
        store = store.view(store.shape) if wanted.rank and store is not None else of_bias.new_empty(groups, 0)
        return fit, kl, of_bias, mapped, store

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
        of_hidden, of_bias, rows, _ = found
        of_last = rows.flatten(0, 1).T.to(last.dtype) @ delta.flatten(0, 1)
        return of_hidden, of_last, of_bias, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_Squash, info.batch_size, in_dims, inputs, shared=(1,))


class _Back(torch.autograd.Function):
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
        of_bias: Tensor,
        delta: Tensor,
        store: Tensor,
        norm: bool,
    ) -> tuple[Tensor, ...]:
        from fewsure.kernels import generator as kernels

        groups, samples, _ = hidden.shape
        count, of_kl = fit.shape[1], None if of_kl is None else of_kl.contiguous()
        used = None if left is None or right is None else right[:, : left.shape[1]]
        few = used is not None and count == samples and samples * used.shape[1] <= kernels.FEW
        rank, kept = 0 if used is None else used.shape[1], store if store.numel() else None
        of_fit, right = of_fit.contiguous(), used if few else None
        of_bias, on_right = kernels.merge(of_fit, of_kl, fit, of_bias, delta, kept, rank, right)
        of_hidden, of_factors, rows = (delta.flatten(0, 1) @ last.T).view(hidden.shape), None, hidden
        if left is not None and used is not None:
            on_right = delta @ used.mT if on_right is None else on_right
            of_factors = on_right.to(last.dtype) @ left.to(last.dtype)
        if of_kl is not None:
            of_hidden, rows = kernels.weigh(of_hidden, of_factors, hidden.contiguous(), of_kl, count)
        else:
            of_hidden = (of_hidden if of_factors is None else of_hidden + of_factors).to(hidden.dtype)
        if not norm:
            return of_hidden, of_bias, rows, of_bias.new_empty(groups)
        return of_hidden, of_bias, rows, ((rows @ rows.mT) * (delta @ delta.mT)).sum((1, 2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("a fused step of the generator is first order; second order takes the plain path")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return _batched(_Back, info.batch_size, in_dims, inputs, shared=(3,))


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
