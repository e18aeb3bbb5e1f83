"""SIGINT and SIGTERM: every handler that asks work under way to stop, and what it tells."""

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
    """The answer to a first Ctrl-C, at once: a round may take long, and who hears nothing presses again."""
    _log.warning("stopping: what is under way is written down first (Ctrl-C again stops at once)")


class StopRequest:
    """SIGINT and SIGTERM ask a run to stop after its round; a second SIGINT does at once what it always did.

    A second SIGTERM changes nothing: whoever ends many processes may send it twice, and the run is about to end.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Only the main thread may have handlers. A worker of a pool, which ignores a signal, keeps ignoring it.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back(signal.SIGINT, signal.SIGTERM)

    def pass_on(self) -> None:
        """Raise the signal that came, if one did: with the handlers given back it does what it does in any program."""
        if self.signal is not None:
            signal.raise_signal(self.signal)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._give_back(signal.SIGINT)
        if number == signal.SIGINT:
            say_stopping()

    def _give_back(self, *numbers: int) -> None:
        for number in numbers:
            if number in self._before:
                signal.signal(number, self._before.pop(number))


class Interrupts:
    """Ctrl-C while workers are busy: the first does what it always did, later ones only hasten the end.

    Raised again in the middle of the end, it would leave workers behind that write into pipes which nobody reads.
    """

    def __init__(self) -> None:
        self.again = False
        self._stopping = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        # Only the main thread may have handlers. A process that ignores interrupts keeps ignoring them.
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
def interrupts_wait() -> Generator[None, None, None]:
    """A process that is started here takes no interrupt, from its first instant; ours is delivered afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting the tracker would let interrupts in again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_at_signals() -> threading.Event:
    """Set when the process is asked to end, by SIGTERM or an interrupt; a second interrupt ends it at once."""
    stop, asked = threading.Event(), SimpleQueue[int]()

    def on_signal(number: int, _: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Not `stop.set()`: the signal may have come while this very thread holds the event's lock, which would then
        # wait for itself. This queue may be used in a handler.
        asked.put(number)

    def pass_on() -> None:
        asked.get()
        stop.set()

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop


def exit_at_sigterm() -> Callable[[], None]:
    """SIGTERM ends the program in order, as an interrupt does, until what is returned is called."""
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

    def give_back() -> None:
        if before is not None:
            signal.signal(signal.SIGTERM, before)

    return give_back


@contextmanager
def interrupts_ignored() -> Generator[None]:
    """For a moment: in a notebook the next Ctrl-C has to be heard again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


def leave_interrupts_to_the_parent() -> None:
    """An interrupt at the keyboard goes to a whole group of processes; in a worker it is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
