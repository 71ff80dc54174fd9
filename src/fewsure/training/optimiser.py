"""The optimiser of named groups of meta-parameters, with its state as plain tensors that a checkpoint can hold."""

from typing import Any, Literal

import torch
from torch import Tensor

from fewsure.types import Parts

OptimiserName = Literal["adam", "adamw", "sgd"]
MOMENTS = {"adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""Tensors of each optimiser's state that have the shape of a meta-parameter."""


class Optimiser:
    """Updates meta-parameters in place from gradients that are handed to it."""

    def __init__(
        self,
        meta: Parts,
        device: torch.device,
        *,
        name: OptimiserName = "adam",
        weight_decay: float = 0.0,
        momentum: float = 0.9,
    ) -> None:
        self._leaves = {f"{part}/{name}": value for part, params in meta.items() for name, value in params.items()}
        self._lr = torch.zeros((), device=device)
        # Fused, an optimiser passes over the parameters once, and can scale a gradient or leave everything as it is.
        options: dict[str, Any] = {"lr": self._lr, "weight_decay": weight_decay, "fused": True}
        leaves = list(self._leaves.values()) or [torch.zeros((), device=device)]  # a method may have nothing to learn
        if name == "sgd":
            self._torch: torch.optim.Optimizer = torch.optim.SGD(leaves, momentum=momentum, **options)
        else:
            kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
            self._torch = kind(leaves, capturable=device.type == "cuda", **options)
        self._norms = torch.zeros(len(self._leaves), device=device)

    def set_learning_rate(self, lr: float) -> None:
        """The learning rate of the steps that follow."""
        self._lr.fill_(lr)

    def step(self, gradient: Parts, clip_norm: float | None = None, sound: Tensor | None = None) -> Tensor:
        """One step; the gradient's norm over all groups, before it is scaled down to at most `clip_norm`.

        If the gradient is not finite, or `sound` is false, nothing changes. That is decided on the device, without
        waiting for it.
        """
        gradients = {f"{part}/{name}": value for part, params in gradient.items() for name, value in params.items()}
        self._norms = torch.stack([torch.linalg.vector_norm(gradients[name]) for name in self._leaves])
        norm: Tensor = torch.linalg.vector_norm(self._norms)
        for name, leaf in self._leaves.items():
            leaf.grad = gradients[name].contiguous()
        shrink = torch.ones_like(norm) if clip_norm is None else (norm / clip_norm).clamp(min=1)
        wanted = norm.isfinite() if sound is None else norm.isfinite() & sound
        self._torch.grad_scale = torch.where(norm.isfinite(), shrink, 1).float()  # type: ignore[attr-defined]
        self._torch.found_inf = (~wanted).float()  # type: ignore[attr-defined]
        self._torch.step()
        return norm

    @property
    def names(self) -> list[str]:
        """`group/name` of each tensor of meta-parameters."""
        return list(self._leaves)

    @property
    def norms(self) -> Tensor:
        """The norm of the last gradient in each of them."""
        return self._norms

    def state(self) -> dict[str, Tensor]:
        """`{group/name/moment: tensor}`, empty before the first step."""
        return {
            f"{name}/{moment}": value
            for name, leaf in self._leaves.items()
            for moment, value in self._torch.state[leaf].items()
            if value is not None
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up a state that `state` returned."""
        for key, value in state.items():
            name, moment = key.rsplit("/", 1)
            self._torch.state[self._leaves[name]][moment] = value


def optimiser_shapes(meta: Parts, name: OptimiserName, momentum: float) -> dict[str, torch.Size]:
    """The shape of each tensor of an optimiser's state, after its first step on these meta-parameters."""
    moments = MOMENTS[name] if name != "sgd" or momentum else ()
    shapes: dict[str, torch.Size] = {}
    for part, params in meta.items():
        for leaf, value in params.items():
            shapes |= {f"{part}/{leaf}/{moment}": value.shape for moment in moments}
            shapes |= {f"{part}/{leaf}/step": torch.Size(())} if name != "sgd" else {}
    return shapes
