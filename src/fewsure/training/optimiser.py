"""The optimiser of named groups of meta-parameters, with its state as plain tensors that a checkpoint can hold."""

from typing import Any, Literal

import torch
from torch import Tensor

from fewsure.training import muon
from fewsure.types import Parts

OptimiserName = Literal["adam", "adamw", "muon", "sgd"]


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
        matrices = [leaf for leaf in leaves if name == "muon" and muon.fits(leaf)]
        others = [leaf for leaf in leaves if not any(leaf is matrix for matrix in matrices)]
        if name == "sgd":
            parts: list[Any] = [torch.optim.SGD(others, momentum=momentum, **options)]
        else:
            kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
            parts = [kind(others, capturable=device.type == "cuda", **options)]
        self._parts = parts + ([muon.Muon(matrices, self._lr, weight_decay)] if matrices else [])
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
        for part in self._parts:
            part.grad_scale = torch.where(norm.isfinite(), shrink, 1).float()
            part.found_inf = (~wanted).float()
            part.step()
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
            for part in self._parts
            if leaf in part.state
            for moment, value in part.state[leaf].items()
            if value is not None
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up a state that `state` returned."""
        for key, value in state.items():
            name, moment = key.rsplit("/", 1)
            leaf = self._leaves[name]
            part = next(part for part in reversed(self._parts) if leaf in part.state or part is self._parts[0])
            part.state[leaf][moment] = value


def optimiser_shapes(meta: Parts, name: OptimiserName, momentum: float) -> dict[str, torch.Size]:
    """The shape of each tensor of an optimiser's state, after its first step on these meta-parameters."""
    shapes: dict[str, torch.Size] = {}
    for part, params in meta.items():
        for leaf, value in params.items():
            if name == "sgd" or (name == "muon" and muon.fits(value)):
                moments = {"momentum_buffer": value.shape} if name == "muon" or momentum else {}
            else:
                moments = {"exp_avg": value.shape, "exp_avg_sq": value.shape, "step": torch.Size(())}
            shapes |= {f"{part}/{leaf}/{moment}": shape for moment, shape in moments.items()}
    return shapes
