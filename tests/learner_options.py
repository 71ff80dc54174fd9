"""Writes the options that a Learner takes by name, so that editors complete them: `python tests/learner_options.py`."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fewsure.algorithms import ALGORITHMS
from fewsure.core.config import Range, field_types, is_learned, optional
from fewsure.data import DATA
from fewsure.selection import auto
from fewsure.training.experiment import Training

FILE = Path(__file__).resolve().parents[1] / "src" / "fewsure" / "learner" / "options.py"
HEAD = '''"""Options that a Learner takes by name, for editors: `python tests/learner_options.py` writes this file."""

from collections.abc import Sequence
from typing import Literal, TypedDict

Method = Literal[
{methods}]


class Options(TypedDict, total=False):
    """Options of all methods, data, networks and trainings; `fewsure train METHOD --help` explains each."""

'''


def module() -> str:
    """The text of the module."""
    head = HEAD.replace("{methods}", "".join(f'    "{name}",\n' for name in (auto.NAME, *ALGORITHMS)))
    return head + "".join(f"    {name}: {written(hints)}\n" for name, hints in sorted(options().items()))


def options() -> dict[str, list[Any]]:
    """Name → the types that it has in methods, data, networks and trainings."""
    found: dict[str, list[Any]] = {}
    for name, hint in fields():
        found.setdefault(name, []).append(hint)
    return found


def fields() -> Iterator[tuple[str, Any]]:
    kinds = [*ALGORITHMS.values(), *(one for kind in DATA.values() for one in (kind.data, kind.network)), Training]
    for kind in dict.fromkeys(kinds):
        hints = field_types(kind)
        for field in dataclasses.fields(kind):
            if field.name in hints and not is_learned(field):
                yield field.name, hints[field.name]
    yield from (("budget", float), ("budget", str), ("methods", tuple[str, ...]))  # of `auto`


def written(hints: list[Any]) -> str:
    """Types as an annotation: what a user may give in place of lists and ranges, too."""
    members = [optional(hint)[0] for hint in hints]
    choices = [choice for hint in members if get_origin(hint) is Literal for choice in get_args(hint)]
    words = [word for hint in members if get_origin(hint) is not Literal for word in one(hint)]
    if choices:
        quoted = ", ".join(f'"{choice}"' for choice in dict.fromkeys(choices))
        words.append(f"Literal[{quoted}]")
    words += ["None"] if any(optional(hint)[1] for hint in hints) else []
    return " | ".join(dict.fromkeys(words))


def one(hint: Any) -> list[str]:
    if hint == Range:
        return ["int", "tuple[int, int]", "str"]
    if get_origin(hint) is tuple:
        return [f"Sequence[{get_args(hint)[0].__name__}]"]
    return [hint.__name__]


if __name__ == "__main__":
    FILE.write_text(module(), encoding="utf-8")
