"""Frozen dataclasses of options ↔ plain values, as JSON, TOML and the command line hold them."""

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fewsure.errors import FewsureError, require_known

Options = TypeVar("Options")
LEARNED = {"option": False}
"""Metadata of a field that a record holds, but that is learned from data instead of given as an option."""
UNRECORDED = {"option": False, "record": False}
"""Metadata of a field that lives in Python alone."""
Range = int | tuple[int, int]
"""A whole number, or the least and the most of several: 5 or (1, 10), as text `5` or `1-10`."""


def to_record(options: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values.

    >>> from fewsure.networks.mlp import MlpOptions
    >>> to_record(MlpOptions())
    {'hidden': [40, 40], 'activation': 'relu', 'active_inputs': None}
    """
    return {name: _plain(getattr(options, name)) for name in field_types(type(options))}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_record(value)
    return [_plain(member) for member in value] if isinstance(value, tuple) else value


def from_record(kind: type[Options], values: Mapping[str, Any], *, source: str, partial: bool = False) -> Options:
    """Build a dataclass from plain values, checking every name and type. `partial` leaves defaults for what is absent.

    >>> from fewsure.networks.mlp import MlpOptions
    >>> from_record(MlpOptions, {"hidden": [8], "activation": "silu"}, source="config.json", partial=True)
    MlpOptions(hidden=(8,), activation='silu', active_inputs=None)
    """
    hints = field_types(kind)
    for name in values:
        if name not in hints:
            raise FewsureError(f"{source}: unknown option `{name}`; expected {', '.join(hints)}")
    missing = [name for name in hints if name not in values]
    if missing and not partial:
        raise FewsureError(f"{source}: option `{missing[0]}` is missing; was it written by another version?")
    return kind(**{name: checked(hints[name], value, f"{source}: {name}") for name, value in values.items()})


def normalise_fields(options: Any) -> None:
    """Check every field of a new dataclass of options, and give it the form that a record's would have.

    For `__post_init__` of what users make themselves: paths become text, lists tuples, numpy's numbers Python's.
    """
    for name, hint in field_types(type(options)).items():
        object.__setattr__(options, name, checked(hint, getattr(options, name), name))


def field_types(kind: type) -> dict[str, Any]:
    """Name → type of each field of a dataclass that a record holds."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.metadata.get("record", True)}


def is_learned(field: "dataclasses.Field[Any]") -> bool:
    """Whether a field of a dataclass of options is learned from data, so that a user cannot give it."""
    return not field.metadata.get("option", True)


def optional(hint: Any) -> tuple[Any, bool]:
    """(T, True) of `T | None`, else (hint, False)."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return reduce(or_, (member for member in members if member is not type(None))), type(None) in members


def ends(value: Range) -> tuple[int, int]:
    """The least and the most of a range.

    >>> ends(5), ends((1, 10))
    ((5, 5), (1, 10))
    """
    return (value, value) if isinstance(value, int) else value


def range_text(value: Range) -> str:
    """A range as the command line has it.

    >>> range_text(5), range_text((1, 10))
    ('5', '1-10')
    """
    return "-".join(map(str, sorted(set(ends(value)))))


def read_range(value: Any) -> Range:
    """A range as it was given; a ValueError if it is not a range.

    >>> read_range("1-10"), read_range([3, 3]), read_range("7")
    ((1, 10), 3, 7)
    """
    parts = value.split("-") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    if not 1 <= len(parts) <= 2 or any(isinstance(part, (bool, float)) for part in parts):
        raise ValueError(value)
    least, most = int(parts[0]), int(parts[-1])
    if not 0 <= least <= most:
        raise ValueError(value)
    return least if least == most else (least, most)


def checked(hint: Any, value: Any, where: str) -> Any:
    """The value of an option as its type has it; refused, with the name `where`, if it is of another type."""
    hint, may_be_none = optional(hint)
    if hasattr(value, "tolist"):  # a number or an array of numpy
        value = value.tolist()
    if may_be_none and value in (None, "none"):  # TOML has no null
        return None
    if hint == Range:
        try:
            return read_range(value)
        except (ValueError, TypeError) as error:
            raise FewsureError(
                f"expected `{where}` to be a whole number or a range, 5 or 1-10, but got {value!r}"
            ) from error
    if get_origin(hint) is Literal:
        require_known(where, str(value), get_args(hint))
        return value
    if get_origin(hint) is tuple:
        members = get_args(hint)
        fixed = len(members) if members[-1] is not Ellipsis else None
        if not isinstance(value, (list, tuple)) or fixed not in (None, len(value)):
            raise FewsureError(
                f"expected `{where}` to be a list of {fixed or 'any number of'} values, but got {value!r}"
            )
        return tuple(checked(members[0], member, where) for member in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return from_record(hint, value, source=where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise FewsureError(f"expected `{where}` to be a number that is not larger than any float") from error
    if hint is str and isinstance(value, Path):
        return str(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise FewsureError(f"expected `{where}` to be of type {hint.__name__}, but got {value!r}")
    return value


def from_json(text: str) -> Any:
    """The value of a JSON text. Any fault of the text is a ValueError, also nesting that is too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_record(path: Path, expected_format: int, advice: str) -> dict[str, Any]:
    """The JSON object in a file that says its format; anything else is refused in one line, which ends in advice."""
    try:
        record: dict[str, Any] = dict(from_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise FewsureError(f"{path} cannot be read ({error}); {advice}") from error
    if record.get("format") != expected_format:
        raise FewsureError(
            f"{path} has format {record.get('format')!r} (version {record.get('version')}), but this version reads "
            f"{expected_format}; {advice}"
        )
    return record


def finite(value: Any) -> Any:
    """A JSON value in which numbers that are not finite, for which JSON has no word, are null.

    >>> finite({"limit": float("inf"), "terms": [0.5, float("nan")]})
    {'limit': None, 'terms': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {name: finite(member) for name, member in value.items()}
    if isinstance(value, list):
        return [finite(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
