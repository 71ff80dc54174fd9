"""The figures that the paper prints, to stand beside our own."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from fewsure.report.styles import display_name, setting

Result = Mapping[str, Any]
"""An evaluation as `evaluate` returns it, or the paper's figures in its shape, which lack most intervals."""

REFERENCE: Mapping[str, Mapping[str, Result]] = tomllib.loads(
    resources.files("fewsure.report").joinpath("reference.toml").read_text(encoding="utf-8")
)
"""Kind of task → our name of a method → the paper's figures."""


def printed_for(result: Result) -> Result | None:
    """The paper's figures for the method and tasks of an evaluation, if it prints them.

    >>> printed_for({"algorithm": "simpa", "data": "sine-line", "shot": 5})["mse"]
    {'mean': 1.58}
    >>> printed_for({"algorithm": "simpa", "data": "sine-line", "shot": 10}) is None
    True
    >>> printed_for({"algorithm": "simpa", "data": "omniglot", "way": 5, "shot": 1})["label"]
    'paper: SImPa'
    """
    algorithm = result["algorithm"]
    printed = REFERENCE.get(setting(result), {}).get(algorithm)
    return printed and {**printed, "label": f"paper: {display_name(algorithm)}"}


def printed_once(results: Sequence[Result]) -> list[Result | None]:
    """For each result the paper's figures that follow it: those of its method, at the method's first result only."""
    found: list[Result | None] = []
    for result in results:
        printed = printed_for(result)
        found.append(None if printed in found else printed)
    return found
