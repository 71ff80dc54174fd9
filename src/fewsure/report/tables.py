"""A table of text: in a terminal, in a pipe, and on a Markdown page."""

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

ABSENT = "–"


def interval(mean: Mapping[str, float], digits: int = 4) -> str:
    """A mean and the half-width of its interval, if there is one.

    >>> interval({"mean": 0.5, "ci95": 0.01}), interval({"mean": 0.5}, digits=2)
    ('0.5000 ± 0.0100', '0.50')
    """
    return " ± ".join(f"{mean[name]:.{digits}f}" for name in ("mean", "ci95") if name in mean)


class Table(NamedTuple):
    """Lines in columns."""

    title: str
    headers: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()
    """The columns that are aligned on the right."""
    aside: frozenset[int] = frozenset()
    """The rows that are not the headline: the paper's, or with observation noise added or left out."""
    bold: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells that matter most."""
    notes: Sequence[str] = ()
    """Lines below the table."""

    def text(self) -> str:
        """In columns of plain text, without the title and the notes."""
        lines = [self.headers, *self.rows]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column in self.right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table on a Markdown page."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headers, ["---"] * len(headers), *rows))


def print_tables(tables: Sequence[Table], *, titled: bool = False) -> None:
    """Print tables below each other: ruled in a terminal, plain text in a pipe or a file.

    Their titles stand above them where there are several, or where `titled` asks for them.
    """
    console = Console(file=sys.stdout, highlight=False)
    for number, table in enumerate(tables):
        title = table.title if titled or len(tables) > 1 else ""
        if not console.is_terminal:
            print("\n" * (number > 0) + (f"{title}\n" if title else "") + "\n".join([table.text(), *table.notes]))
            continue
        if title:
            console.print(Text(title, style="italic"))
        # Three characters stand between two columns, where plain text has two, and one at each end.
        if max(map(len, table.text().splitlines())) + len(table.headers) + 1 <= console.width:
            console.print(_ruled(table))
        else:
            for row in range(len(table.rows)):
                console.print(_card(table, row))
        for note in table.notes:
            console.print(Text(note))


def _ruled(table: Table) -> RichTable:
    """As rich draws it. Text is text: nothing in it is taken for markup."""
    ruled = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(table.headers):
        ruled.add_column(Text(header), justify="right" if number in table.right else "left", no_wrap=True)
    for row in range(len(table.rows)):
        ruled.add_row(*_cells(table, row), style=_style(table, row))
    return ruled


def _card(table: Table, row: int) -> RichTable:
    """A row on its own, one line for each column: for a terminal that is narrower than the table."""
    name, *cells = _cells(table, row)
    card = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    card.add_column(Text(table.headers[0]))
    card.add_column(name)
    for header, cell in zip(table.headers[1:], cells, strict=True):
        card.add_row(Text(header), Text(cell.plain.strip(), style=cell.style), style=_style(table, row))
    return card


def _cells(table: Table, row: int) -> list[Text]:
    return [
        Text(cell.rstrip(), style="bold" if (row, column) in table.bold else "")
        for column, cell in enumerate(table.rows[row])
    ]


def _style(table: Table, row: int) -> str:
    return "dim" if row in table.aside else ""
