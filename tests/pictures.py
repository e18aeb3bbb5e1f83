"""Every picture that a test draws is read: its words are words, and not the formulas they were made of."""

from __future__ import annotations

import re
from typing import Any

import pytest

# What a library leaves where it meant to set a formula.
_MARKUP = re.compile(r"\\[a-z]|mathdefault")


def words_of(figure: Any) -> list[str]:
    """All that a drawn figure says: titles, names of axes, ticks, legends."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def check_words(figure: Any) -> None:
    """Fail where a picture shows markup."""
    for words in words_of(figure):
        assert not _MARKUP.search(words), words


def check_every_picture(patch: pytest.MonkeyPatch) -> None:
    """Look at the words of every figure when it is written."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    write = Figure.savefig

    def checked(self: Figure, *args: Any, **options: Any) -> None:
        assert not rcParams["text.parse_math"], "names may have a dollar in them: draw on a sheet of report/canvas.py"
        check_words(self)
        write(self, *args, **options)

    patch.setattr(Figure, "savefig", checked)
