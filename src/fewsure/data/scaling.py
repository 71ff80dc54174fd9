"""The scale of data, learned before training: the form of an example, and the centre and spread of its numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fewsure.data.encoding import Column
from fewsure.errors import FewsureError

ROUNDING = 1e-6
"""By which a pixel may miss the range from 0 to 1."""


@dataclass(frozen=True)
class Scale:
    """Networks see x′ = (x − x_mean) / x_std and y′ = (y − y_mean) / y_std. The scale is stored with a run.

    Means and standard deviations are those of the rows of the training tasks. An input that never varies keeps its
    spread of 1. Images are not scaled beyond x / 255.
    """

    shape: tuple[int, ...]
    """The shape of an example."""
    columns: tuple[str, ...] = ()
    """Names of the inputs, where they have any."""
    x_mean: tuple[float, ...] = ()
    """The mean of each input; empty where inputs are taken as they are."""
    x_std: tuple[float, ...] = ()
    """The standard deviation of each input."""
    y_mean: float = 0.0
    """The mean of the target."""
    y_std: float = 1.0
    """The standard deviation of the target, in the user's unit."""
    encoding: tuple[Column, ...] = ()
    """The columns of a table that the inputs come from, as training saw them; empty where they are no table's."""

    @property
    def in_double(self) -> bool:
        """Whether examples come in double precision: a user's own columns, unlike features and images."""
        return bool(self.x_mean)

    def inputs(self, x: Tensor) -> Tensor:
        """Examples (N, *shape) as networks see them; the bytes of images become numbers in [0, 1].

        >>> Scale((2,), x_mean=(1.0, 0.0), x_std=(2.0, 1.0)).inputs(torch.tensor([[5.0, 3.0]]))
        tensor([[2., 3.]])
        """
        scaled = x.to(torch.get_default_dtype())
        if not self.x_mean:
            return scaled / 255 if x.dtype == torch.uint8 and len(self.shape) == 3 else scaled
        # In double precision: a year or a time stamp has no digits to spare.
        mean, std = (torch.tensor(values, dtype=torch.float64, device=x.device) for values in (self.x_mean, self.x_std))
        return ((x.double() - mean) / std).to(scaled.dtype)

    def targets(self, y: Tensor) -> Tensor:
        """Targets as networks see them."""
        return ((y.double() - self.y_mean) / self.y_std).to(torch.get_default_dtype())

    def values(self, y: Tensor) -> Tensor:
        """Predicted targets in the user's unit.

        >>> Scale((1,), y_mean=10.0, y_std=2.0).values(torch.tensor([0.5]))
        tensor([11.], dtype=torch.float64)
        """
        return y.double() * self.y_std + self.y_mean


@dataclass(frozen=True)
class LengthScale(Scale):
    """x′ is (x − x_mean) / x_std made as long as `length`."""

    length: float = 1.0
    in_double = False

    def inputs(self, x: Tensor) -> Tensor:
        """Examples (N, D) as networks see them.

        >>> LengthScale((2,), x_mean=(1.0, 0.0), x_std=(1.0, 1.0), length=10.0).inputs(torch.tensor([[4.0, 4.0]]))
        tensor([[6., 8.]])
        """
        return self.length * functional.normalize(super().inputs(x), dim=-1)


def learn_scale(
    x: NDArray[Any], y: NDArray[Any] | None = None, columns: Sequence[str] = (), encoding: Sequence[Column] = ()
) -> Scale:
    """The scale of training rows x (N, *D), and of their targets y (N,) if they have any.

    >>> learn_scale(np.array([[0.0, 7.0], [2.0, 7.0]]))
    Scale(shape=(2,), columns=(), x_mean=(1.0, 7.0), x_std=(1.0, 1.0), y_mean=0.0, y_std=1.0, encoding=())
    """
    shape = tuple(int(size) for size in x.shape[1:])
    mean, std = (x.mean(0), _spread(x)) if x.ndim == 2 else (np.empty(0), np.empty(0))
    target = {} if y is None else {"y_mean": float(y.mean()), "y_std": float(_spread(y))}
    return Scale(shape, tuple(columns), tuple(mean.tolist()), tuple(std.tolist()), encoding=tuple(encoding), **target)


def _spread(values: NDArray[Any]) -> NDArray[Any]:
    std = np.asarray(values.std(0))
    return np.where(std > 1e-12 * (1 + np.abs(values).max(0)), std, 1.0)


def require_pixels(x: Tensor | NDArray[Any], what: str) -> None:
    """Refuse pixels that are neither bytes nor numbers in [0, 1]: a network would see them in another range.

    >>> require_pixels(np.full((1, 3, 2, 2), 255.0), "`x`")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fewsure.errors.FewsureError: expected pixels of `x` as bytes (uint8) or as numbers from 0 to 1, but got float64 ...
    """
    kind = str(x.dtype).removeprefix("torch.")
    least, most = float(x.min()), float(x.max())
    if kind != "uint8" and not (least >= -ROUNDING and most <= 1 + ROUNDING):
        raise FewsureError(
            f"expected pixels of {what} as bytes (uint8) or as numbers from 0 to 1, but got {kind} from {least:g} to "
            f"{most:g}; convert with astype('uint8'), or divide by 255"
        )
