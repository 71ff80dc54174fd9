"""Dataclasses of options on the command line: a field is an option, its docstring is the help, its type the parser."""

import argparse
import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from fewsure.core.config import Range, field_types, is_learned, optional, range_text, read_range
from fewsure.errors import FewsureError, nearest

Options = TypeVar("Options")
SHOWN = {int: "N", float: "X", str: "NAME", Path: "PATH"}


class Parser(argparse.ArgumentParser):
    """An argument parser whose every error is one line that says what to do."""

    def __init__(self, program: str, description: str | None, *, add_help: bool = True) -> None:
        super().__init__(
            prog=program,
            usage=f"{program} [options]",
            description=inspect.cleandoc(description or ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=add_help,
        )

    def error(self, message: str) -> NoReturn:
        raise FewsureError(f"{message}; see `{self.prog} --help`")

    def parse_all(self, arguments: list[str]) -> argparse.Namespace:
        """Parse every argument; an unknown option is named with its nearest neighbour."""
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            near = nearest(unknown[0].partition("=")[0], known)
            self.error(f"unknown argument {unknown[0]!r}" + (f", did you mean {near}?" if near else ""))
        return namespace


def add_options(parser: Parser, kind: type, *, defaults: Any = None, title: str | None = None) -> None:
    """Add a dataclass's fields to a parser: those without any default are positional, the others options."""
    group: Any = parser.add_argument_group(title, first_line(kind)) if title else parser
    documents, types = field_documents(kind), field_types(kind)
    for field in dataclasses.fields(kind):
        default = getattr(defaults, field.name) if defaults is not None else field.default
        if is_learned(field):
            parser.set_defaults(**{field.name: default})
            continue
        settings, help_text = _parsing(types[field.name]), documents.get(field.name, "")
        if default is dataclasses.MISSING:
            settings["metavar"] = field.name.rstrip("s").upper()
            group.add_argument(field.name, **settings, help=_escape(help_text))
            parser.usage = f"{parser.prog} {settings['metavar']}{' …' if 'nargs' in settings else ''} [options]"
        elif types[field.name] is bool:
            action = argparse.BooleanOptionalAction if default or defaults is not None else "store_true"
            shown = f" (default: {'on' if default else 'off'})" if defaults is not None else ""
            group.add_argument(
                flag_of(field.name), dest=field.name, action=action, default=default, help=_escape(help_text + shown)
            )
        else:
            shown = _shown(default, types[field.name])
            help_text += f" (default: {shown})" if shown else ""
            group.add_argument(
                flag_of(field.name), dest=field.name, **settings, default=default, help=_escape(help_text)
            )


def from_namespace(kind: type[Options], namespace: argparse.Namespace) -> Options:
    """The dataclass whose options a parser has read."""
    values = {field.name: getattr(namespace, field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def first_line(kind: type) -> str:
    """The first paragraph of a docstring as one line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


@cache
def field_documents(kind: type) -> Mapping[str, str]:
    """The string that stands below each field in the source, those of base classes included."""
    documents = {
        name: text
        for base in kind.__bases__
        if dataclasses.is_dataclass(base)
        for name, text in field_documents(base).items()
    }
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                documents[name] = " ".join(text.split())
    return documents


def flag_of(name: str) -> str:
    """The option of a field."""
    return "--" + name.rstrip("_").replace("_", "-")  # `from_`, since `from` is a word of Python


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def _shown(default: Any, hint: Any) -> str:
    if default is None:
        return "none"
    if optional(hint)[0] == Range:
        return range_text(default)
    return " ".join(str(value) for value in default) if isinstance(default, tuple) else str(default)


def _parsing(hint: Any) -> dict[str, Any]:
    hint, may_be_none = optional(hint)
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is tuple:
        members = get_args(hint)
        count = "+" if members[-1] is Ellipsis else len(members)
        return {"nargs": count, "type": members[0], "metavar": SHOWN[members[0]]}
    if hint is bool:
        return {}

    read, name, shown = (
        (read_range, "number or range", "N or N-M") if hint == Range else (hint, hint.__name__, SHOWN[hint])
    )

    def parse(text: str) -> Any:
        return None if may_be_none and text == "none" else read(text)

    parse.__name__ = name  # argparse names it in its errors
    return {"type": parse, "metavar": shown}
