"""Where in your own code an error arose: file, line and function, instead of a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from pathlib import Path

from wayfare.errors import WayfareError

_PACKAGE = Path(__file__).resolve().parents[1]
# Folders of installed libraries.
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


def described(error: BaseException, folders: Collection[Path]) -> str:
    """An error in one line, after its place in these folders."""
    text = str(error)
    what = text if isinstance(error, WayfareError) else f"{type(error).__name__}: {text}".removesuffix(": ")
    # A syntax error names its place itself.
    place = None if isinstance(error, SyntaxError) else place_of(error, folders)
    return what if place is None else f"{place}: {what}"


def place_of(error: BaseException, folders: Collection[Path]) -> str | None:
    """The innermost frame of an error in these folders, or of its cause: `mine.py, line 12, in forward`."""
    if error.__cause__ is not None and (place := place_of(error.__cause__, folders)) is not None:
        return place
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename).resolve()
        is_own = _LIBRARIES.isdisjoint(file.parts) and not file.is_relative_to(_PACKAGE)
        if is_own and any(file.is_relative_to(folder) for folder in folders):
            function = "" if frame.name.startswith("<") else f", in {frame.name}"
            return f"{file.name}, line {frame.lineno}{function}"
    return None
