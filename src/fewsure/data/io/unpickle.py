"""Published data files that are pickles, read without running anything that they name.

A pickle is a program: it may import any function and call it. Here it can only build arrays of numbers and strings,
dicts, lists, tuples, strings, bytes and numbers. Any other request is refused by name.
"""

import csv
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from fewsure.errors import FewsureError

PLAIN_KINDS = "biufSU"
"""Kinds of elements that are bytes and nothing else: truth values, numbers and strings of a fixed length."""


def load(stream: IO[bytes], where: str) -> Any:
    """The value of a pickle. Python 2's strings become text, in Latin-1; `where` names the file in errors."""
    try:
        return _Unpickler(stream, encoding="latin1").load()
    except _Refused as refused:
        raise FewsureError(
            f"{where} is not what was published: expected arrays, dicts, lists, strings and numbers, "
            f"but it tried to {refused}; do not open it with other tools, fetch it from its source"
        ) from refused
    except Exception as error:  # a damaged pickle can raise anything
        raise FewsureError(
            f"{where} is damaged or no pickle ({type(error).__name__}: {error}); fetch it again"
        ) from error


def load_fields(stream: IO[bytes], where: str, *names: str) -> list[Any]:
    """The values of a pickled dict under these names, which must be there."""
    content = load(stream, where)
    if not isinstance(content, dict):
        raise FewsureError(f"expected {where} to hold a dict with {', '.join(names)}, but got {type(content).__name__}")
    fields = {as_text(key): value for key, value in content.items()}
    for name in names:
        if name not in fields:
            raise FewsureError(f"expected {where} to hold {', '.join(names)}, but got {', '.join(sorted(fields))}")
    return [fields[name] for name in names]


@contextmanager
def published_layout(where: str | Path) -> Iterator[None]:
    """Blame the file for an error in the block, which takes its content apart."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, csv.Error) as error:
        raise FewsureError(f"{where} is not in the published layout ({error}); fetch it again") from error


def as_text(value: object) -> str:
    """A name as text, whichever Python wrote it.

    >>> as_text(b"n01532829"), as_text("n01532829")
    ('n01532829', 'n01532829')
    """
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _Refused(Exception):
    """The pickle asked for something that no data file needs."""


class _ElementType:
    """Stands for numpy's dtype while a pickle is read: the code and byte order of elements, nothing else."""

    def __init__(self, code: str, *_: object) -> None:
        self._code = code
        self._order = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._order = state[1]

    def resolve(self) -> np.dtype[Any]:
        dtype = np.dtype(self._code)
        if dtype.kind not in PLAIN_KINDS + "O" or self._order not in ("<", ">", "|", "="):
            raise _Refused(f"build an array of {self._code!r}")
        return dtype if self._order == "|" else dtype.newbyteorder(cast(Any, self._order))


class _Array(np.ndarray[Any, Any]):
    """An array whose content comes from a pickle, checked before numpy takes it over."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, element, columns_first, content = state
        dtype = element.resolve()
        if dtype.hasobject:
            # Strings of varying length. numpy takes as many elements as the shape says without counting them.
            plain = isinstance(content, list) and all(isinstance(value, (str, bytes)) for value in content)
            if not plain or len(content) != prod(shape):
                raise _Refused("build an array of Python objects other than strings")
        else:
            content = _as_bytes(content)
        super().__setstate__((1, shape, dtype, cast(Any, bool(columns_first)), content))


_NDARRAY = object()
"""Stands for numpy.ndarray, which a pickle may name but not call."""


def _reconstruct(kind: object, shape: object, code: object) -> NDArray[Any]:
    if kind is not _NDARRAY:
        raise _Refused(f"build an array of type {kind}")
    return _Array((0,), np.uint8)


def _from_buffer(buffer: bytes, element: _ElementType, shape: tuple[int, ...], order: str) -> NDArray[Any]:
    return np.frombuffer(buffer, element.resolve()).reshape(shape, order="F" if order == "F" else "C")


def _scalar(element: _ElementType, content: bytes | str) -> Any:
    return np.frombuffer(_as_bytes(content), element.resolve(), count=1)[0]


def _as_bytes(content: Any) -> Any:
    """Python 2 did not tell text from bytes."""
    return content.encode("latin1") if isinstance(content, str) else content


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into pickles that Python 2 can read."""
    if encoding != "latin1":
        raise _Refused(f"encode text as {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _ElementType,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # how Python 3 writes empty bytes for Python 2
}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    _ALLOWED[f"{_core}.multiarray", "scalar"] = _scalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _from_buffer

_PythonUnpickler: Any = pickle._Unpickler
"""The reader that is written in Python: with the other one, a few bytes can claim any amount of memory."""


class _Unpickler(_PythonUnpickler):  # type: ignore[misc]
    dispatch: ClassVar[dict[int, Any]] = dict(_PythonUnpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _Refused(f"import {module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, identifier: object) -> Any:
        raise _Refused(f"load the outside object {identifier!r}")

    def load_build(self) -> None:
        target = self.stack[-2]
        if not isinstance(target, (_Array, _ElementType)):
            raise _Refused(f"set attributes of {target!r}")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build
