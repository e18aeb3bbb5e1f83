"""Checks the text of every figure that a test draws: words, not markup."""

from __future__ import annotations

import re
from typing import Any

import pytest

# What a library leaves where it meant to set a formula.
_MARKUP = re.compile(r"\\[a-z]|mathdefault")


def words_of(figure: Any) -> list[str]:
    """All text of a figure: titles, axis labels, ticks, legends."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def check_words(figure: Any) -> None:
    """Fail if a figure shows markup."""
    for words in words_of(figure):
        assert not _MARKUP.search(words), words


def check_every_picture(patch: pytest.MonkeyPatch) -> None:
    """Check the text of every figure when it is written."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    write = Figure.savefig

    def checked(self: Figure, *args: Any, **options: Any) -> None:
        assert not rcParams["text.parse_math"], "names may have a dollar in them: draw on a sheet of report/canvas.py"
        check_words(self)
        write(self, *args, **options)

    patch.setattr(Figure, "savefig", checked)
