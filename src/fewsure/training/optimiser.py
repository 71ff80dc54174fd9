"""The optimiser of named groups of meta-parameters, with its state as plain tensors that a checkpoint can hold."""

from typing import Any, Literal

import torch
from torch import Tensor

from fewsure.training import muon
from fewsure.types import Parts

OptimiserName = Literal["adam", "adamw", "muon", "sgd"]


BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Adam's, as its authors propose."""


class Fused:
    """Adam, AdamW or SGD by torch's fused kernels, which pass over the parameters once.

    They can scale a gradient, or leave everything as it is. Torch's own optimisers would import its compiler, which
    takes longer than the rest of a start.
    """

    def __init__(self, leaves: list[Tensor], lr: Tensor, name: OptimiserName, weight_decay: float, momentum: float):
        self._name, self._momentum = name, momentum
        self._options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "maximize": False}
        self.state: dict[Tensor, dict[str, Tensor]] = {leaf: {} for leaf in leaves}
        self.grad_scale = self.found_inf = torch.zeros(())

    @torch.no_grad()
    def step(self) -> None:
        """One step, divided by `grad_scale`; nothing where `found_inf`."""
        if self.state:
            grads = [leaf.grad for leaf in self.state]
            options = self._options | {"grad_scale": self.grad_scale, "found_inf": self.found_inf}
            (self._descend if self._name == "sgd" else self._adapt)(list(self.state), grads, options)

    def _descend(self, leaves: list[Tensor], grads: list[Any], options: dict[str, Any]) -> None:
        buffers = self._moments("momentum_buffer") if self._momentum else []
        options |= {"momentum": self._momentum, "dampening": 0.0, "nesterov": False, "is_first_step": False}
        torch._fused_sgd_(leaves, grads, buffers, **options)

    def _adapt(self, leaves: list[Tensor], grads: list[Any], options: dict[str, Any]) -> None:
        for leaf, state in self.state.items():
            state.setdefault("step", torch.zeros((), device=leaf.device))
        steps = [state["step"] for state in self.state.values()]
        moments = self._moments("exp_avg"), self._moments("exp_avg_sq")
        options |= {"beta1": BETAS[0], "beta2": BETAS[1], "eps": EPSILON, "amsgrad": False}
        torch._foreach_add_(steps, 1)
        (torch._fused_adam_ if self._name == "adam" else torch._fused_adamw_)(
            leaves, grads, *moments, [], steps, **options
        )
        torch._foreach_sub_(steps, [self.found_inf] * len(steps))

    def _moments(self, name: str) -> list[Tensor]:
        return [state.setdefault(name, torch.zeros_like(leaf)) for leaf, state in self.state.items()]


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
        leaves = list(self._leaves.values())
        matrices = [leaf for leaf in leaves if name == "muon" and muon.fits(leaf)]
        others = [leaf for leaf in leaves if not any(leaf is matrix for matrix in matrices)]
        self._parts: list[Fused | muon.Muon] = [Fused(others, self._lr, name, weight_decay, momentum)]
        self._parts += [muon.Muon(matrices, self._lr, weight_decay)] if matrices else []
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
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up a state that `state` returned."""
        for key, value in state.items():
            name, moment = key.rsplit("/", 1)
            leaf = self._leaves[name]
            next(part for part in self._parts if leaf in part.state).state[leaf][moment] = value


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
