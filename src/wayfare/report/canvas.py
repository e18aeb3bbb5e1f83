"""Figures with a common style: wide for a screen, or one column of a journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from wayfare.errors import InputError, ScenarioError, UnavailableError

Bounds: TypeAlias = tuple[float | None, float | None]

PERCENT: Bounds = (0.0, 100.0)
POSITIVE: Bounds = (0.0, None)

BUDGET = "energy budget"
BUDGET_LINE: dict[str, Any] = {"color": "#444444", "ls": ":", "lw": 1.2, "zorder": 1.5}
"""The line of the energy budget in every figure."""

COLUMN_IN = 3.5
"""The width of one column of an IEEE journal, 88.9 mm."""

_PLAIN: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar in a name must not start a formula
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}
_PANELS: dict[Any, Any] = _PLAIN | {
    "axes.titlesize": 11,
    "grid.alpha": 1.0,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
}
# Text stays text in SVG and PDF, and is readable in print.
_COLUMN: dict[Any, Any] = _PLAIN | {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}

_FORMATS = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp", ".eps", ".ps", ".tif", ".tiff")


def checked_picture(option: str, file: Path) -> Path:
    """Check the suffix of a figure's file before the work starts."""
    if file.suffix.lower() not in _FORMATS:
        raise ScenarioError(option, str(file), f"must end in one of {', '.join(_FORMATS)}")
    return file


def column_figure(file: Path, *, height_in: float = 2.5) -> AbstractContextManager[Any]:
    return _figure(file, (COLUMN_IN, height_in), dpi=300, style=_COLUMN)


def wide_figure(file: Path | str, *, width_in: float = 7.2, height_in: float = 4.0) -> AbstractContextManager[Any]:
    """A figure for a screen, written when the block ends."""
    return _figure(file, (width_in, height_in), dpi=150, style=_PLAIN)


@contextmanager
def panels_figure(file: Path | str, size_in: tuple[float, float], title: str, **edges: float) -> Iterator[Any]:
    """A figure for a screen with a title; `edges` are the margins of its panels as shares of its size."""
    with _figure(file, size_in, dpi=150, style=_PANELS, layout=None) as figure:
        figure.subplots_adjust(**edges)
        figure.suptitle(title, x=edges["left"], ha="left", fontsize=13, fontweight="bold")
        yield figure


def keep_within(axes: Any, *, x: Bounds = (None, None), y: Bounds = (None, None)) -> None:
    """Limit axes to possible values: no accuracy above 100 %, no energy below 0 J."""
    for (least, most), limits, set_limits in ((x, axes.get_xlim, axes.set_xlim), (y, axes.get_ylim, axes.set_ylim)):
        low, high = limits()
        set_limits(low if least is None else max(low, least), high if most is None else min(high, most))


def headline(figure: Any, *lines: str) -> None:
    if any(lines):
        figure.suptitle("\n".join(filter(None, lines)), x=0.01, ha="left", fontsize="medium", color="#444444")


def legend_below(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=2.2, columnspacing=1.2)


def legend_beside(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=9, handlelength=2.2)


@contextmanager
def _figure(
    file: Path | str,
    size_in: tuple[float, float],
    *,
    dpi: int,
    style: dict[Any, Any],
    layout: Literal["constrained"] | None = "constrained",
) -> Iterator[Any]:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("figures need matplotlib: pip install 'wayfare[report]'") from None
    with rc_context(style):
        # Without pyplot, matplotlib has no global state and opens no window.
        figure = Figure(figsize=size_in, layout=layout)
        yield figure
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
            _plain_numbers(axis)
        try:
            figure.savefig(file, dpi=dpi)
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot write the figure: {error}") from None


def _plain_numbers(axis: Any) -> None:
    """Write 0.01 at the ticks of a logarithmic axis: matplotlib writes formulas there, which `_PLAIN` disables."""
    from matplotlib.ticker import LogFormatter

    class PlainNumbers(LogFormatter):
        def __call__(self, x: float, pos: Any = None) -> str:
            return _number(x) if super().__call__(x, pos) else ""

    if isinstance(axis.get_major_formatter(), LogFormatter):
        axis.set_major_formatter(PlainNumbers())
    if isinstance(axis.get_minor_formatter(), LogFormatter):
        axis.set_minor_formatter(PlainNumbers())


def _number(value: float) -> str:
    return f"{value:,.10g}" if 1e-4 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"
