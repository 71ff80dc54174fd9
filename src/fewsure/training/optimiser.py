"""Adam on named groups of meta-parameters, with its state as plain tensors that a checkpoint can hold."""

import torch
from torch import Tensor

from fewsure.types import Parts


class Optimiser:
    """Updates meta-parameters in place from gradients that are handed to it."""

    def __init__(self, meta: Parts) -> None:
        self._leaves = {f"{part}/{name}": value for part, params in meta.items() for name, value in params.items()}
        device = next(iter(self._leaves.values())).device
        self._lr = torch.zeros((), device=device)
        # Fused, Adam passes over the parameters once, and can scale a gradient or leave everything as it is.
        self._adam = torch.optim.Adam(
            list(self._leaves.values()), lr=self._lr, fused=True, capturable=device.type == "cuda"
        )
        self._norms = torch.zeros(len(self._leaves), device=device)

    def set_learning_rate(self, lr: float) -> None:
        """The learning rate of the steps that follow."""
        self._lr.fill_(lr)

    def step(self, gradient: Parts, clip_norm: float | None = None, sound: Tensor | None = None) -> Tensor:
        """One step of Adam; the gradient's norm over all groups, before it is scaled down to at most `clip_norm`.

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
        self._adam.grad_scale = torch.where(norm.isfinite(), shrink, 1).float()  # type: ignore[attr-defined]
        self._adam.found_inf = (~wanted).float()  # type: ignore[attr-defined]
        self._adam.step()
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
            for moment, value in self._adam.state[leaf].items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take up a state that `state` returned."""
        for key, value in state.items():
            name, moment = key.rsplit("/", 1)
            self._adam.state[self._leaves[name]][moment] = value


def optimiser_shapes(meta: Parts) -> dict[str, torch.Size]:
    """The shape of each tensor of an optimiser's state, after its first step on these meta-parameters."""
    shapes: dict[str, torch.Size] = {}
    for part, params in meta.items():
        for name, value in params.items():
            moments = {"step": torch.Size(()), "exp_avg": value.shape, "exp_avg_sq": value.shape}
            shapes |= {f"{part}/{name}/{moment}": shape for moment, shape in moments.items()}
    return shapes
