"""Arrays of any kind → what networks see, with errors that a newcomer can act on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewsure.data.encoding import read_columns
from fewsure.data.io.frames import Frame, is_frame
from fewsure.data.io.table_files import Columns
from fewsure.data.own.image_features import ImageFeatures
from fewsure.data.protocol import Data
from fewsure.data.scaling import Scale, require_pixels
from fewsure.errors import FewsureError

USUAL_TARGETS = {"regression": "y", "classification": "label"}
"""The column with what is known, where training names none."""


def require_one_group(table: Columns, column: str, known: str | None) -> str:
    """The one group of a table's rows, by a column with their groups; `known` is the group that it must be."""
    groups = sorted(set(table.text[column]), key=lambda group: group != known)
    if known is not None and groups != [known]:
        raise FewsureError(
            f"{table.where}: expected rows of the support's group, {known!r}, but `{column}` has {groups[-1]!r}; "
            "predict each group from its own support, or all with --group-column"
        )
    if len(groups) > 1:
        two = " and ".join(map(repr, sorted(groups)[:2]))
        raise FewsureError(
            f"{table.where}: expected rows of one group, but `{column}` has {two}; adapt to each group by itself, or "
            "predict all with predict_groups or --group-column"
        )
    return groups[0]


def read_given(x: Any, data: Data) -> tuple[Frame | None, Any]:
    """A DataFrame and its inputs; (None, x) of another kind of x. A run on arrays takes its columns as they are.

    A run on features of images takes a list of image files, too.
    """
    scale = data.fitted_scale
    if isinstance(data, ImageFeatures) and isinstance(x, (list, tuple)) and isinstance(next(iter(x), 0), (str, Path)):
        return None, data.features_of([Path(one) for one in x])
    if not is_frame(x):
        return None, x
    frame = Frame(x)
    return frame, read_columns(frame.columns, scale.columns, scale.encoding) if scale.columns else x


def frame_targets(frame: Frame | None, name: str | None) -> list[Any]:
    """The known numbers or labels that a DataFrame has beside its inputs."""
    if frame is None or name is None:
        raise FewsureError("expected `y`, a number or a label for each example of x; only a table's run finds it in x")
    if name not in frame.columns.names:
        raise FewsureError(
            f"{frame.columns.where}: expected a column `{name}` with the known values, but it has "
            f"{', '.join(frame.columns.names)}; add it, or give y"
        )
    return frame.values(name)


def read_inputs(x: Any, scale: Scale, name: str, *, least: int = 1) -> Tensor:
    """Examples (N, *shape) as networks see them, `least` or more; `name` is what errors call them."""
    values = _numbers(x, name)
    shape = tuple(values.shape)
    if scale.shape == (1,) and values.ndim == 1:
        values = values.unsqueeze(1)
    if tuple(values.shape[1:]) != scale.shape or values.ndim == 0:
        raise FewsureError(
            f"expected `{name}` of shape ({', '.join(['N', *map(str, scale.shape)])}), as in training, but got {shape}"
            f"{_advice(shape, scale)}"
        )
    if len(values) < least:
        raise FewsureError(f"expected `{name}` to hold at least 1 example, but got none")
    _require_finite(values, name)
    if len(scale.shape) == 3:
        require_pixels(values, f"`{name}`")
    return scale.inputs(values)


def read_targets(y: Any, examples: int) -> Tensor:
    """Numbers (N,) to predict, in the user's unit."""
    values = _numbers(y, "y")
    values = values.squeeze(1) if values.ndim == 2 and values.shape[1] == 1 else values
    if tuple(values.shape) != (examples,):
        raise FewsureError(
            f"expected `y` of shape ({examples},), a number for each example of x, but got {tuple(values.shape)}"
        )
    _require_finite(values, "y")
    return values.double()


def _numbers(values: Any, name: str) -> Tensor:
    if isinstance(values, torch.Tensor):
        tensor = values.detach()
        if tensor.is_complex():
            raise FewsureError(f"expected `{name}` to be real numbers, but got {tensor.dtype}")
        return tensor
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except ValueError as error:
        raise FewsureError(f"expected `{name}` to be an array, but its rows differ in length") from error
    if array.dtype.kind not in "fiub":
        what = "text" if array.dtype.kind in "US" else f"values of type {array.dtype}"
        raise FewsureError(f"expected `{name}` to be numbers, but got {what}; encode what is no number first")
    # A copy: torch takes writable arrays of native byte order only.
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def _require_finite(values: Tensor, name: str) -> None:
    if values.is_floating_point():
        wrong = (~values.isfinite()).flatten(1).any(1) if values.ndim > 1 else ~values.isfinite()
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise FewsureError(
                f"expected finite numbers in `{name}`, but example {row} has NaN or infinity; fill it in, or leave the "
                "example out"
            )


def _advice(shape: tuple[int, ...], scale: Scale) -> str:
    """The likeliest fault, and how to put it right."""
    if shape == scale.shape:
        return "; a single example needs a first dimension, x[None]"
    if len(scale.shape) == 3 and len(shape) == 4:
        if (shape[3], shape[1], shape[2]) == scale.shape:
            return "; channels come before height and width, x.transpose(0, 3, 1, 2)"
        return f"; resize images to {scale.shape[1]} × {scale.shape[2]} pixels first"
    columns = f" ({', '.join(scale.columns[:8])})" if scale.columns else ""
    if len(scale.shape) == 1 and len(shape) == 2:
        return f"; give the same {scale.shape[0]} inputs{columns} in the same order"
    return ""
