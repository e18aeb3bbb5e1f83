"""Being told how a fetch goes."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Shows progress, or does not."""

    def begin(self, what: str, done: int, total: int | None) -> None:
        """Something of so many bytes begins (None: nobody knows how many), with some of them there already."""

    def advance(self, count: int) -> None: ...

    def note(self, text: str) -> None: ...


class Quiet:
    """Shows nothing."""

    def begin(self, what: str, done: int, total: int | None) -> None:
        """Nothing."""

    def advance(self, count: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
