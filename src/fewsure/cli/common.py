"""The options that all commands have, and how a command reads its arguments."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fewsure.cli.options import Parser, add_options, from_namespace
from fewsure.core.places import DATA_VARIABLE
from fewsure.errors import FewsureError


@dataclass(frozen=True, kw_only=True)
class Common:
    """The options of every command."""

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


Options = TypeVar("Options", bound=Common)


def parse(name: str, kind: type[Options], arguments: list[str], document: str | None) -> Options:
    """The options of a command, which is explained by a docstring."""
    return parse_groups(name, kind, arguments, document)[0]


def parse_groups(
    name: str, kind: type[Options], arguments: list[str], document: str | None, **defaults: Any
) -> tuple[Options, dict[str, Any]]:
    """The options of a command, and groups of further options by title, each a dataclass with the default values."""
    parser = Parser(f"fewsure {name}", document)
    add_options(parser, kind)
    for title, group in defaults.items():
        add_options(parser, type(group), defaults=group, title=title)
    namespace = parser.parse_all(arguments)
    groups = {title: from_namespace(type(group), namespace) for title, group in defaults.items()}
    return from_namespace(kind, namespace), groups


def peek(name: str, kind: type[Options], arguments: list[str]) -> Options:
    """The options of a command among arguments that also hold options of groups."""
    parser = Parser(f"fewsure {name}", None, add_help=False)
    add_options(parser, kind)
    return from_namespace(kind, parser.parse_known_args(arguments)[0])


def require_examples(name: str, path: Path | None) -> Path:
    """The path of an option that must name a file or a folder of examples."""
    if path is None or not path.exists():
        came = "got none" if path is None else f"{path} is not there"
        raise FewsureError(f"expected --{name} to be a file or a folder of examples, but {came}")
    return path
