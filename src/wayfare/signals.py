"""Handlers of SIGINT and SIGTERM that stop running work cleanly."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from queue import SimpleQueue
from types import FrameType
from typing import Any

_log = logging.getLogger("wayfare")


def say_stopping() -> None:
    """Answer the first Ctrl-C at once: a round may take long, and a user without an answer presses again."""
    _log.warning("stopping: writing checkpoints first (press Ctrl-C again to stop at once)")


class StopRequest:
    """Stop a run after its round on SIGINT or SIGTERM; a second SIGINT has its usual effect at once.

    A second SIGTERM has no effect: process managers may send it twice, and the run is about to end.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Only the main thread may set handlers. A pool worker that ignores a signal keeps ignoring it.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore(signal.SIGINT, signal.SIGTERM)

    def raise_again(self) -> None:
        """Raise the received signal, if any, after the handlers were restored, so that it has its usual effect."""
        if self.signal is not None:
            signal.raise_signal(self.signal)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore(signal.SIGINT)
        if number == signal.SIGINT:
            say_stopping()

    def _restore(self, *numbers: int) -> None:
        for number in numbers:
            if number in self._before:
                signal.signal(number, self._before.pop(number))


class Interrupts:
    """Handle Ctrl-C while workers are busy: the first has its usual effect, later ones only set `again`.

    A second KeyboardInterrupt during the shutdown would leave workers behind that write into pipes without a reader.
    """

    def __init__(self) -> None:
        self.again = False
        self._stopping = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        # Only the main thread may set handlers. A process that ignores interrupts keeps ignoring them.
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._before = signal.signal(signal.SIGINT, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._stopping:
            self.again = True
            return
        self._stopping = True
        say_stopping()
        self._before(number, frame)


@contextmanager
def interrupts_deferred() -> Generator[None, None, None]:
    """Block SIGINT: a process started here never receives it, and this process receives it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting the tracker later would unblock interrupts.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_at_signals() -> threading.Event:
    """An event that SIGTERM or an interrupt sets; a second interrupt ends the process at once."""
    stop, asked = threading.Event(), SimpleQueue[int]()

    def on_signal(number: int, _: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Not `stop.set()`: this thread may hold the event's lock when the signal arrives, and would deadlock.
        # SimpleQueue is safe in a handler.
        asked.put(number)

    def wait_for_signal() -> None:
        asked.get()
        stop.set()

    threading.Thread(target=wait_for_signal, name="signals", daemon=True).start()
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop


def exit_at_sigterm() -> Callable[[], None]:
    """Make SIGTERM end the program cleanly, as an interrupt does. The returned function restores the handler."""
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

    def restore() -> None:
        if before is not None:
            signal.signal(signal.SIGTERM, before)

    return restore


@contextmanager
def interrupts_ignored() -> Generator[None]:
    """Ignore SIGINT inside the block only: in a notebook the next Ctrl-C must work again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def ignore_interrupts() -> None:
    """Ignore SIGINT in a worker: Ctrl-C reaches the whole process group, and the parent handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
