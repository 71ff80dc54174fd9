"""Docstrings as Markdown: examples (`>>>`) and lines that are laid out with spaces keep their form."""

import re
from typing import Any

import griffe

LAID_OUT = re.compile(r"\S {3,}\S|^ {2,}\S")


def as_markdown(docstring: str) -> str:
    r"""Fence the paragraphs that Markdown would run together.

    >>> as_markdown("Adds.\n\n>>> 1 + 1\n2")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```'
    """
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", docstring):
        lines = paragraph.splitlines()
        if lines and lines[0].startswith(">>>"):
            paragraph = f"```pycon\n{paragraph}\n```"
        elif _is_laid_out(lines):
            paragraph = f"```text\n{paragraph}\n```"
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _is_laid_out(lines: list[str]) -> bool:
    if not lines or lines[0].lstrip().startswith("|") or all(line.startswith("    ") for line in lines):
        return False  # a table, or a block already
    return any(LAID_OUT.search(line) for line in lines) and not lines[0].startswith("- ")


class Docstrings(griffe.Extension):
    """Applies it to all."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
