"""How far long work is, for whoever listens: the library tells, the command line draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Listener: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, and how much of how much is done."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def tell(what: str, done: int, total: int) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def duration_text(seconds: float) -> str:
    """A time for people, to two figures or so."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
