"""Columns of a table, and their layout in a terminal without truncated numbers or names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    # Records import PyTorch, and plans do not need it.
    from wayfare.records import SchemeSummary

# A controller with a queue may exceed the budget slightly; this does not count as over budget.
OVER_BUDGET = 1.03
ENERGY = "energy\nJ"
SCHEME = "scheme"
# Below an energy that has the mark of `plainly`.
BUDGET_NOTE = "of all transmissions; marked if more than 3 % over budget"

_NAME_WIDTH, _FOLDED_WIDTH, _LONGEST_PIECE = 14, 11, 20


class Note(NamedTuple):
    """A line below a table: a term, and its meaning."""

    term: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.term}: {self.meaning}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    heading: str
    cells: list[str]
    left: bool = False
    marked: Sequence[bool] = ()  # highlighted cells: the best score, energy over the budget

    @property
    def width(self) -> int:
        return max(len(line) for text in (self.heading, *self.cells) for line in text.split("\n"))

    def is_marked(self, row: int) -> bool:
        return any(self.marked[row : row + 1])


def of_one_size(schemes: Sequence[SchemeSummary]) -> bool:
    """Whether updates have the same entries, as they do unless some schemes send class statistics."""
    return len({scheme.parameters for scheme in schemes}) == 1


def has_kept_share(schemes: Sequence[SchemeSummary]) -> bool:
    """Whether shares of an update mean something and compare: class statistics are sent once."""
    return of_one_size(schemes) and not any(scheme.sums for scheme in schemes)


def over_budget(scheme: SchemeSummary) -> bool:
    """Whether a scheme exceeds its budget by more than a queue explains."""
    return scheme.energy_joules_mean > OVER_BUDGET * scheme.budget_joules


def plainly(column: Column) -> Column:
    """The column with an exclamation mark after energy over the budget, for text without colour."""
    if column.heading != ENERGY:
        return column
    cells = [f"{text}{'!' if column.is_marked(row) else ''}" for row, text in enumerate(column.cells)]
    return replace(column, cells=cells)


def in_terminal(columns: Sequence[Column]) -> list[Column]:
    """Columns for a terminal: long names wrap, and marks are visible without colour."""
    return [
        replace(column, cells=[_folded(name) for name in column.cells]) if column.heading == SCHEME else plainly(column)
        for column in columns
    ]


def total_width(columns: Sequence[Column], gap: int = 1) -> int:
    return sum(column.width for column in columns) + gap * (len(columns) - 1)


def side_by_side(columns: Sequence[Column], width: int, gap: int = 1) -> list[list[Column]]:
    """Groups of columns that fit into a window; each starts with the first column, which names the rows."""
    first, *others = columns
    groups = [[first]]
    for column in others:
        if len(groups[-1]) > 1 and total_width([*groups[-1], column], gap) > width:
            groups.append([first])
        groups[-1].append(column)
    return groups


def rich_table(columns: Sequence[Column], rows: Sequence[int], *, headed: bool = True, indent: str = "") -> Table:
    """A table of some rows, with columns wide enough for all rows."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan", show_header=headed)
    for index, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if column.left else "right"
        width = column.width + (0 if index else len(indent))
        table.add_column(column.heading, justify=justify, min_width=width, no_wrap=True)
    for row in rows:
        name, *cells = (Text(column.cells[row], _style(column, row)) for column in columns)
        name.plain = "\n".join(indent + line for line in name.plain.split("\n"))
        table.add_row(name, *cells)
    return table


def rich_notes(notes: Sequence[Note], warnings: Sequence[Note] = ()) -> Table:
    """Notes and warnings for a terminal; a long meaning wraps beside its term."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for style, some in (("dim", notes), ("yellow", warnings)):
        for note in some:
            grid.add_row(Text(note.term, style, no_wrap=True), Text(note.meaning, style))
    return grid


def _style(column: Column, row: int) -> str:
    if column.heading == SCHEME:
        return "bold"
    return "" if not column.is_marked(row) else "red" if column.heading == ENERGY else "bold"


def _folded(name: str) -> str:
    """Wrap a long name at a space or before a colon, else after a hyphen or underscore."""
    lines, width = [""], _NAME_WIDTH if len(name) <= _NAME_WIDTH else _FOLDED_WIDTH
    for piece in re.findall(r" ?(?:\+ )?[^: ]+| ?:[^: ]*", name) or [name]:
        apart = " " if piece.startswith(" ") else ""
        piece = piece.strip()
        if not lines[-1] or len(lines[-1] + apart + piece) <= width:
            lines[-1] += apart * bool(lines[-1]) + piece
        else:
            lines.append(f"  {piece}")
    return "\n".join(part for line in lines for part in _pieces(line))


def _pieces(line: str, longest: int = _LONGEST_PIECE) -> list[str]:
    pieces = []
    while len(line) > longest:
        end = max(line.rfind("-", 0, longest), line.rfind("_", 0, longest)) + 1
        end = end if len(line[:end].strip()) > 1 else longest
        pieces.append(line[:end])
        line = f"  {line[end:]}"
    return [*pieces, line]
