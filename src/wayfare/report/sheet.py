"""Pages for pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wayfare.errors import InputError, UnavailableError


def new_figure(width_in: float, height_in: float) -> Any:
    """An empty page."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("pictures need matplotlib: pip install 'wayfare[report]'") from None
    # Without pyplot there is no global state and no window.
    return Figure(figsize=(width_in, height_in), facecolor="white")


def save_figure(figure: Any, file: Path | str) -> None:
    """Write a page in the format of the file's name, without the frame's upper and right side."""
    for axes in figure.axes:
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: the picture cannot be written: {error}") from None
