"""Labels as the user gave them ↔ class numbers 0, 1, …"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewsure.errors import FewsureError

Form = str
"""The container that labels came in: `list`, or the name of a torch or numpy dtype, such as `torch.int64` or `<U3`."""


@dataclass(frozen=True)
class Labels:
    """The classes of a task in the order of their numbers, and the form in which labels go back to the user.

    Classes are in sorted order, so that their numbers do not depend on the order of the examples.
    """

    classes: tuple[Hashable, ...]
    form: Form

    def take(self, numbers: Tensor) -> Any:
        """The labels with these class numbers: a list, a numpy array or a tensor, as labels were given.

        >>> Labels(("cat", "dog"), "list").take(torch.tensor([1, 0]))
        ['dog', 'cat']
        """
        found = [self.classes[number] for number in numbers.tolist()]
        if self.form == "list":
            return found
        kind, _, name = self.form.partition(".")
        if kind == "torch":
            return torch.tensor(found, dtype=getattr(torch, name))
        return np.array(found, dtype=np.dtype(self.form))

    def chosen(self, member: Tensor) -> list[list[Hashable]]:
        """The classes of each row of `member` (N, C) that are true there."""
        return [[self.classes[number] for number in row.nonzero().flatten().tolist()] for row in member]


def read_labels(y: Any, fixed: Sequence[str] = ()) -> tuple[Labels, Tensor]:
    """The classes of some labels, and the number (N,) of each label's class.

    The names of `fixed` classes have the order of their numbers, whether a label has them or not.

    >>> read_labels(["dog", "cat", "dog"])[1], read_labels([1, 1], fixed=["0", "1"])[1]
    (tensor([1, 0, 1]), tensor([1, 1]))
    """
    values, form = _values(y)
    for row, value in enumerate(values):
        if not isinstance(value, Hashable):
            raise FewsureError(
                f"expected labels of shape (N,), one name or number for each example, but label {row} is a "
                f"{type(value).__name__}"
            )
        if value is None or value != value:
            raise FewsureError(f"expected a label for each example, but label {row} is {value}; leave the example out")
    classes = _fixed(values, fixed) if fixed else _ordered(list(dict.fromkeys(values)))
    number = {label: index for index, label in enumerate(classes)}
    return Labels(tuple(classes), form), torch.tensor([number[value] for value in values], dtype=torch.long)


def _values(y: Any) -> tuple[list[Any], Form]:
    if hasattr(y, "to_numpy"):
        y = y.to_numpy()
    if isinstance(y, torch.Tensor):
        flat = y.squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y
        return flat.tolist() if flat.ndim == 1 else _refuse(y.shape), str(y.dtype)
    if isinstance(y, np.ndarray):
        flat_array = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        return flat_array.tolist() if y.ndim and flat_array.ndim == 1 else _refuse(y.shape), y.dtype.str
    if isinstance(y, str) or not isinstance(y, Sequence):
        raise FewsureError(f"expected labels as a list, an array or a tensor, but got {type(y).__name__}")
    return list(y), "list"


def _fixed(values: list[Any], names: Sequence[str]) -> list[Any]:
    """The fixed classes as the labels have them. A class that no label has is of the others' type.

    True and false are called 1 and 0 where training read them from a table.
    """
    of_table = not {"True", "False"} & {*names}
    seen = {
        str(int(value) if isinstance(value, bool) and of_table else value): value for value in dict.fromkeys(values)
    }
    other = [name for name in seen if name not in names]
    if other:
        raise FewsureError(f"expected labels among {', '.join(names)}, as in training, but got {other[0]!r}")
    kinds = {type(value) for value in values}
    kind: Any = kinds.pop() if len(kinds) == 1 else str
    read = (lambda name: name in ("True", "1")) if kind is bool else kind if kind in (int, float) else str
    return [seen.get(name, read(name)) for name in names]


def _refuse(shape: Sequence[int]) -> list[Any]:
    raise FewsureError(
        f"expected labels of shape (N,), one for each example, but got {tuple(shape)}; of one-hot rows, give argmax(1)"
    )


def _ordered(classes: list[Any]) -> list[Any]:
    try:
        return sorted(classes)
    except TypeError:  # labels that do not compare, such as 1 and "other"
        return sorted(classes, key=lambda label: (type(label).__name__, repr(label)))
