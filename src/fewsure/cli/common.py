"""What all commands share: their common options, and how a dataclass of options becomes a command."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from fewsure.cli.options import Parser, add_options, from_namespace
from fewsure.core.places import DATA_VARIABLE


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every command takes."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` …; `auto` takes a GPU if there is one."""
    json: bool = False
    """Print the result as JSON on standard output, and no progress."""
    debug: bool = False
    """Show the traceback of an error."""
    data_root: Path | None = None
    """Where data sets are looked for, each in a folder of its name; `none` for $FEWSURE_DATA, or the platform's folder
    for data."""

    def __post_init__(self) -> None:
        if self.data_root is not None:  # the one place where the option takes effect
            os.environ[DATA_VARIABLE] = str(self.data_root)


class Command(NamedTuple):
    """A command of the command line."""

    options: type[Common]
    """Its docstring is the command's help, and the docstrings of its fields are those of its options."""
    call: Callable[[list[str]], None]
    """Parses the arguments behind the command's name, does the work and prints the result."""


Options = TypeVar("Options", bound=Common)


def parse(name: str, kind: type[Options], arguments: list[str], description: str | None = None) -> Options:
    """Read the arguments of a command; `description` in place of its docstring for `--help`."""
    parser = Parser(f"fewsure {name}", description or kind.__doc__ or "")
    add_options(parser, kind)
    return from_namespace(kind, parser.parse_all(arguments))


def command(name: str, kind: type[Options], call: Callable[[Options], None]) -> Command:
    """A command whose options do not depend on one another."""
    return Command(kind, lambda arguments: call(parse(name, kind, arguments)))
