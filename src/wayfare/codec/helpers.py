"""Processes that compute profiles of updates beside a run on a GPU, so that its host handles other contacts meanwhile.

A profile takes a large part of the host's time in a contact, nearly all of it in Python and NumPy, and threads of one
process would take turns. Helpers run the same code on the same numbers, so results are bit-identical. Without a free
helper, or if one fails, the host computes the profile itself.

One process imports everything, then forks the others. It does not import the user's main module, unlike those of
`multiprocessing`. A helper ends when its connection closes, also if the run is killed.
"""

from __future__ import annotations

import atexit
import mmap
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from multiprocessing.connection import Connection
from weakref import finalize

import numpy as np

from wayfare.codec.widths import profile
from wayfare.control.rate_distortion import Profile
from wayfare.control.spectrum import Layout, Sight, Spectrum
from wayfare.waiting import Arriving

# As many as contacts that are under way at a time.
_MOST = 8
# Runs that need fewer profiles together would end before the helpers are ready.
_MANY_PROFILES = 256
# Room for the numbers of one update.
_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Helper:
    connection: Connection
    numbers: mmap.mmap  # memory that both processes see

    def begin(self, sight: Sight, statistics: int) -> None:
        found = sight.found
        np.frombuffer(self.numbers, found.dtype, len(found))[:] = found
        self.connection.send_bytes(_request(sight.layout, found.dtype.str, len(found), statistics))


@dataclass(slots=True)
class _Pool:
    connections: list[Connection] = field(default_factory=list)
    # Those that still have to send something for which nobody waits: that they are ready, or an unused profile.
    owing: list[_Helper] = field(default_factory=list)
    free: list[_Helper] = field(default_factory=list)
    expected: int = 0  # profiles of all runs so far
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def taken(self) -> _Helper | None:
        """A free helper, if there is one."""
        with self.lock:
            self.welcome()
            return self.free.pop() if self.free else None

    def expect(self, profiles: int) -> None:
        with self.lock:
            self.expected += profiles
            if self.process is None and self.expected >= _MANY_PROFILES and hasattr(os, "memfd_create"):
                self.start(min(_MOST, len(os.sched_getaffinity(0)) - 1))

    def welcome(self) -> None:
        """Use helpers again that no longer owe anything."""
        for helper in [each for each in self.owing if each.connection.poll()]:
            self.owing.remove(helper)
            if _received(helper) is not None:
                self.free.append(helper)

    def start(self, count: int) -> None:
        """Start helpers, which are ready some seconds later."""
        if count < 1 or not sys.executable:
            return
        pairs = [socket.socketpair() for _ in range(count)]
        memories = [os.memfd_create("wayfare") for _ in pairs]
        for memory in memories:
            os.ftruncate(memory, _BYTES)
        theirs = [(there.fileno(), memory) for (_, there), memory in zip(pairs, memories, strict=True)]
        code = f"from wayfare.codec.helpers import serve; serve({theirs})"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[each for both in theirs for each in both],
                # Ctrl-C is for the run, and helpers have nothing to say.
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""},
            )
            self.connections = [Connection(here.detach()) for here, _ in pairs]
            numbers = [mmap.mmap(memory, _BYTES) for memory in memories]
            self.owing = list(map(_Helper, self.connections, numbers))
        except OSError:
            # The host can do without.
            pass
        finally:
            for (here, there), memory in zip(pairs, memories, strict=True):
                here.close()
                there.close()
                os.close(memory)

    def end(self) -> None:
        for connection in self.connections:
            connection.close()
        if self.process is not None:
            # It may still be importing, and it has nothing to lose.
            self.process.kill()
            self.process.wait()


_pool = _Pool()
atexit.register(lambda: _pool.end())


def expect(profiles: int) -> None:
    """Start helpers for a run on a GPU that needs this many profiles, if that pays.

    Devices in the field need none: their contacts are rare and leave nothing to do meanwhile.
    """
    _pool.expect(profiles)


def begun(see: Callable[[], Spectrum], statistics: int) -> Arriving[Profile]:
    """Begin to compute a profile in another process, if one is free."""
    here = Arriving(partial(_computed, see, statistics))
    if not isinstance(see, Sight) or see.found.nbytes > _BYTES:
        return here
    helper = _pool.taken()
    if helper is None:
        return here
    try:
        helper.begin(see, statistics)
    except OSError:
        return here

    def read() -> Profile:
        unread.detach()
        found = _received(helper)
        if not isinstance(found, Profile):
            return here()
        _pool.free.append(helper)
        return found

    # A rule may decide without the profile.
    unread = finalize(read, _pool.owing.append, helper)
    unread.atexit = False
    # `Connection.poll` takes 3 us, this 0.5 us.
    answers = select.poll()
    answers.register(helper.connection.fileno(), select.POLLIN)
    return Arriving(read, lambda: bool(answers.poll(0)))


@lru_cache
def _request(layout: Layout, kind: str, count: int, statistics: int) -> bytes:
    """The same for all contacts of a run."""
    return pickle.dumps((layout, kind, count, statistics))


def _received(helper: _Helper) -> object:
    """The answer of a helper; None if it has ended."""
    try:
        return helper.connection.recv()
    except (EOFError, OSError):
        return None


def _computed(see: Callable[[], Spectrum], statistics: int) -> Profile:
    return profile(see(), statistics)


def serve(pairs: list[tuple[int, int]]) -> None:
    """Serve one pair of connection and memory, and every other one in a copy of this process."""
    while len(pairs) > 1:
        others, last = pairs[:-1], pairs[-1:]
        pairs, closed = (last, others) if os.fork() == 0 else (others, last)
        # Nobody would notice the end of a process if another one held its connection.
        for number in chain.from_iterable(closed):
            os.close(number)
    connection, numbers = Connection(pairs[0][0]), mmap.mmap(pairs[0][1], _BYTES)
    try:
        connection.send("ready")
        while True:
            layout, kind, count, statistics = connection.recv()
            found = profile(Sight(np.frombuffer(numbers, kind, count), layout)(), statistics)
            # The host needs them next.
            _ = found.curve.log_slopes
            connection.send(found)
    except (EOFError, OSError):
        return
