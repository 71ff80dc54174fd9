"""Functions of tensors with a leading dimension of groups (tasks, networks), into which `vmap` folds its batch."""

from typing import Any

import torch


class Grouped(torch.autograd.Function):
    """Its last argument is no tensor; the others, and all results, have the groups first."""

    @classmethod
    def shared(cls, in_dims: tuple[int | None, ...], inputs: tuple[Any, ...]) -> tuple[int, ...]:
        """The places of tensors that are one for all groups, and stay as they are."""
        return ()

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        """Fold the batch into the groups, apply, and unfold."""
        *tensors, constants = inputs
        shared, folded = cls.shared(in_dims, inputs), []
        for place, (tensor, dim) in enumerate(zip(tensors, in_dims, strict=False)):
            if tensor is None or place in shared:
                folded.append(tensor)
                continue
            batch_first = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            folded.append(batch_first.flatten(0, 1))
        outputs = cls.apply(*folded, constants)  # type: ignore[no-untyped-call]
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0,) * len(outputs)


class OnceDifferentiable(torch.autograd.Function):
    """A gradient that is not differentiated again."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Refused."""
        raise RuntimeError("fused kernels can be differentiated once; second order takes the plain path")
