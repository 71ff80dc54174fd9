"""The kernels of networks as functions that `torch.func` can batch and differentiate once, and the switch for all."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from fewsure.kernels.grouped import Grouped, OnceDifferentiable

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
    return _ALLOWED.get() and _made_for(x)


def _made_for(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def conv_block(x: Tensor, weight: Tensor, *, input_gradient: bool) -> Tensor:
    """One block of conv4 without bias: images (N, H, W, C), weights (O, C, 3, 3) → (N, H/2, W/2, O).

    `input_gradient` says whether the gradient of the images is wanted.
    """
    pooled, *_ = _ConvBlock.apply(x.float().unsqueeze(0), weight.float().unsqueeze(0), input_gradient)  # type: ignore[no-untyped-call]
    return torch.squeeze(pooled, 0)


def moment_kl(samples: Tensor, prior_std: float, floor: float) -> Tensor:
    """The KL of samples (…, S, n) as `fewsure.kernels.triton.moments` has it, (…)."""
    groups = samples.reshape(-1, *samples.shape[-2:])
    kl, *_ = _MomentKl.apply(groups, (prior_std, floor))  # type: ignore[no-untyped-call]
    return torch.reshape(kl, samples.shape[:-2])


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


def step(parameter: Tensor, gradient: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """(parameter − lr·gradient, the same rounded as the gradient is). The gradient is a constant."""
    flat = (tensor.reshape(1, -1).contiguous() for tensor in (parameter, gradient))
    found = _Step.apply(*flat, lr)  # type: ignore[no-untyped-call]
    stepped, rounded = (tensor.view(parameter.shape) for tensor in found)
    return stepped, rounded


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


class _ConvBlock(Grouped):
    """Each tensor has a leading dimension of groups, into which a batch that `vmap` adds is folded."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, input_gradient: bool) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import conv_block as kernels

        return kernels.forward(x.contiguous(), w, _precision())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w, ctx.input_gradient = inputs
        _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)  # saved tensors have no gradient, not even zeros
        ctx.save_for_backward(x, w, *saved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        found = _ConvBlockBackward.apply(gradient, *ctx.saved_tensors, ctx.input_gradient)  # type: ignore[no-untyped-call]
        return (*found, None)


class _ConvBlockBackward(OnceDifferentiable, Grouped):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import conv_block as kernels

        *tensors, input_gradient = inputs
        gradient, x, w, y, mean, scale = tensors
        gradient, x = gradient.contiguous(), x.contiguous()
        return kernels.backward(gradient, x, w, y, mean, scale, _precision(), input_gradient=input_gradient)


class _MomentKl(Grouped):
    @staticmethod
    def forward(samples: Tensor, constants: tuple[float, float]) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import moments

        return moments.forward(samples.contiguous(), *constants)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        samples, ctx.constants = inputs
        _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)  # saved tensors have no gradient, not even zeros
        ctx.save_for_backward(samples, *saved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        (found,) = _MomentKlBackward.apply(gradient, *ctx.saved_tensors, ctx.constants)  # type: ignore[no-untyped-call]
        return found, None


class _MomentKlBackward(OnceDifferentiable, Grouped):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import moments

        *tensors, (prior_std, _) = inputs
        gradient, samples, mean, variance = (tensor.contiguous() for tensor in tensors)
        return (moments.backward(gradient, samples, mean, variance, prior_std),)


class _Layer(Grouped):
    """Groups are networks. Those of the weights may be fewer, each then for several groups of inputs in a row."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> tuple[Tensor]:
        from fewsure.kernels.triton import layers

        groups = len(x) // len(weight)
        bias = bias.expand(len(x), -1) if len(bias) == 1 else bias.repeat_interleave(groups, 0) if groups > 1 else bias
        return (layers.activate_(_products(x, weight), bias, activation),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor]) -> None:
        x, weight, _, ctx.activation = inputs
        ctx.save_for_backward(x, weight, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        constants = (ctx.activation, wants_x, wants_weight, wants_bias)
        dx, dw, db = _LayerBackward.apply(gradient, *ctx.saved_tensors, constants)  # type: ignore[no-untyped-call]
        return dx if wants_x else None, dw if wants_weight else None, db if wants_bias else None, None

    @classmethod
    def shared(cls, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[int, ...]:
        one_for_all = tuple(place for place in (1, 2) if in_dims[place] is None and len(inputs[place]) == 1)
        return one_for_all if len(one_for_all) == 2 else ()


class _LayerBackward(OnceDifferentiable, Grouped):
    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, weight: Tensor, y: Tensor, constants: tuple[Activation, bool, bool, bool]
    ) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import layers

        activation, wants_x, wants_weight, wants_bias = constants
        dz, db = layers.deactivate(gradient.contiguous(), y.contiguous(), activation, sums=wants_bias)
        groups = len(weight)
        if wants_bias and groups < len(x):
            db = db.view(groups, -1, db.shape[1]).sum(1)
        dx = _products(dz, weight.mT) if wants_x else dz.new_empty(len(x), 0)
        if not wants_weight:
            return dx, dz.new_empty(groups, 0), db
        rows, deltas = (tensor.reshape(groups, -1, tensor.shape[-1]) for tensor in (x, dz))
        return dx, rows.mT @ deltas, db


def _products(x: Tensor, weight: Tensor) -> Tensor:
    """x (G, R, K) times each group's weights, where one of them may be for several groups: (G, R, N)."""
    if len(weight) == len(x):
        return torch.bmm(x, weight)
    if len(weight) == 1:
        return (x.flatten(0, 1) @ weight[0]).view(*x.shape[:2], -1)
    if len(x) == 1:
        return torch.bmm(x.expand(len(weight), -1, -1), weight)
    return torch.bmm(x, weight.repeat_interleave(len(x) // len(weight), 0))


class _Critic(Grouped):
    """Groups are tasks; the samples of the prior and the φ-network may be one for all of them.

    Takes samples of q and of p, the layers' weights, their biases, and None.
    """

    @staticmethod
    def forward(samples: Tensor, prior: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import layers

        weights, biases = _halves(inputs[:-1])

        def hidden_units(x: Tensor) -> list[Tensor]:
            units = [x]
            for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                z = _products(units[-1], weight)
                bias = bias.expand(len(z), -1) if len(bias) < len(z) else bias
                units.append(layers.activate_(z, bias, "relu" if number + 1 < len(weights) else "none"))
            return units[1:]

        *units_q, phi_q = hidden_units(samples)
        *units_p, phi_p = (units.expand(len(samples), -1, -1) for units in hidden_units(prior))
        logs = phi_p.squeeze(-1).float().log_softmax(1)
        normaliser = phi_p[:, 0, 0].float() - logs[:, 0]  # ln Σ e^φ
        estimate = phi_q.squeeze(-1).float().mean(1) - (normaliser - math.log(prior.shape[1]))
        return estimate, logs, *units_q, *units_p

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, *saved = output
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:-1], *saved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
        wants_samples, _, *wants_layers, _ = ctx.needs_input_grad
        wanted = (wants_samples, any(wants_layers), len(wants_layers) // 2)
        found = _CriticBackward.apply(gradient, *ctx.saved_tensors, wanted)  # type: ignore[no-untyped-call]
        grad_samples, *grad_layers = found
        if not any(wants_layers):
            grad_layers = [None] * len(wants_layers)
        return grad_samples if wants_samples else None, None, *grad_layers, None

    @classmethod
    def shared(cls, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[int, ...]:
        one_for_all = [
            place for place in range(1, len(inputs) - 1) if in_dims[place] is None and len(inputs[place]) == 1
        ]
        prior, network = one_for_all[: one_for_all[:1] == [1]], range(2, len(inputs) - 1)
        return tuple(one_for_all if set(network) <= set(one_for_all) else prior)  # its layers are all shared, or none


class _CriticBackward(OnceDifferentiable, Grouped):
    @staticmethod
    def forward(gradient: Tensor, samples: Tensor, prior: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        from fewsure.kernels.triton import layers

        *tensors, (wants_samples, wants_layers, count) = inputs
        weights, logs, units = tensors[:count], tensors[2 * count], tensors[2 * count + 1 :]
        groups, several = samples.shape[:2]
        units_q, units_p = _halves(units)
        sides = [([samples, *units_q], (gradient / several)[:, None].expand(-1, several))]
        if wants_layers:
            sides.append(([prior, *units_p], -gradient[:, None] * logs.exp()))
        grad_weights: list[Tensor] = []
        grad_biases: list[Tensor] = []
        grad_samples = gradient.new_empty(groups, 0)
        for layer_inputs, grad_phi in sides:
            delta = grad_phi.to(samples.dtype).unsqueeze(-1)
            sums = grad_phi.sum(1, keepdim=True)
            for place, number in enumerate(reversed(range(count))):
                x = layer_inputs[number].expand(groups, -1, -1)
                if wants_layers and len(grad_weights) < count:
                    grad_weights.append(torch.bmm(x.mT, delta))
                    grad_biases.append(sums)
                elif wants_layers:
                    grad_weights[place].baddbmm_(x.mT, delta)
                    grad_biases[place] += sums
                if number:
                    before = _products(delta, weights[number].mT)
                    delta, sums = layers.deactivate(before, x.contiguous(), "relu", sums=wants_layers)
            if wants_samples and layer_inputs is sides[0][0]:
                grad_samples = _products(delta, weights[0].mT)
        if not wants_layers:
            return grad_samples, *(gradient.new_empty(groups, 0) for _ in range(2 * count))
        grad_layers = (*reversed(grad_weights), *reversed(grad_biases))
        one_for_all = len(weights[0]) < groups
        return grad_samples, *(grad.sum(0, keepdim=True) if one_for_all else grad for grad in grad_layers)


def _halves(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    middle = len(items) // 2
    return list(items[:middle]), list(items[middle:])


class _Step(Grouped):
    @staticmethod
    def forward(parameter: Tensor, gradient: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        from fewsure.kernels.triton import layers

        return layers.step(parameter, gradient, lr)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_stepped: Tensor | None, grad_rounded: Tensor | None) -> tuple[Any, ...]:
        if grad_rounded is not None:
            grad_rounded = grad_rounded.float() if grad_stepped is None else grad_stepped + grad_rounded
        return grad_stepped if grad_rounded is None else grad_rounded, None, None
