"""Comparisons and studies in Python and in notebooks: tables, data frames, curves and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, ParamSpec

from rich.console import Console

from wayfare import studies
from wayfare.errors import InputError, UnavailableError
from wayfare.report.figures import Format, score_curves
from wayfare.report.study_tables import plain_table, study_notes, study_table, study_title
from wayfare.report.write import write_report
from wayfare.studies.export import evaluation_rows, run_rows
from wayfare.studies.results import StudyResults
from wayfare.studies.sweeping import Sweep

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Picture:
    file: Path

    def _repr_png_(self) -> bytes | None:
        return self.file.read_bytes() if self.file.suffix == ".png" else None

    def _repr_svg_(self) -> str | None:
        return self.file.read_text(encoding="utf-8") if self.file.suffix == ".svg" else None


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownResults(StudyResults):
    """Results that display themselves as a table, printed or in a notebook."""

    @classmethod
    def of(cls, results: StudyResults) -> ShownResults:
        return cls(**{field.name: getattr(results, field.name) for field in fields(StudyResults)})

    def __repr__(self) -> str:
        console = Console(file=StringIO(), width=100, force_jupyter=False, color_system=None)
        with console.capture() as printed:
            console.print(study_table(self, width=console.width))
        return printed.get().strip("\n")

    def _repr_html_(self) -> str:
        headings, *rows = plain_table(self)
        lines = [f"<caption>{escape(study_title(self))}</caption>", _row("th", headings)]
        lines += [_row("td", row) for row in rows]
        notes = "<br>".join(escape(str(note)) for note in study_notes(self))
        return f"<table>{''.join(lines)}</table><p>{notes}</p>"

    def frame(self) -> Any:
        """A pandas DataFrame with one row per run: its settings and all measures."""
        return _frame(run_rows(self))

    def evaluations_frame(self) -> Any:
        """A pandas DataFrame with one row per evaluation of each run."""
        return _frame(evaluation_rows(self))

    def plot(self, file: Path | str | None = None) -> Picture:
        """Plot the score against rounds, with a line per scheme; default: ``curves.png`` in the results' folder."""
        if self.manifest.axes:
            raise InputError(f"{self.folder}: plot() needs a study of one point; `report()` draws all points")
        if not self.results:
            raise InputError(f"{self.folder}: contains no finished run to plot")
        target = self.folder / "curves.png" if file is None else Path(file)
        score_curves(self.schemes, self.runs, target)
        return Picture(target)

    def report(self, out: Path | str | None = None, *, figures: Format | None = None) -> list[Path]:
        """Write the report: page, Markdown and figures. Returns the files, the page first."""
        return write_report(self.folder, None if out is None else Path(out), figures=figures)


def _comparing(call: Callable[P, StudyResults]) -> Callable[P, ShownResults]:
    @wraps(call)
    def shown(*given: P.args, **named: P.kwargs) -> ShownResults:
        return ShownResults.of(call(*given, **named))

    return shown


def _sweeping(call: Callable[P, Sweep]) -> Callable[P, Sweep]:
    @wraps(call)
    def shown(*given: P.args, **named: P.kwargs) -> Sweep:
        done = call(*given, **named)
        return replace(done, results=ShownResults.of(done.results))

    return shown


compare = _comparing(studies.compare)
"""Like `wayfare.studies.compare`, with results that a notebook displays."""
sweep = _sweeping(studies.sweep)
"""Like `wayfare.studies.sweep`, with results that a notebook displays."""


def _frame(rows: Sequence[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        raise UnavailableError("data frames need pandas: pip install pandas") from None
    return pandas.DataFrame(rows)


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"
