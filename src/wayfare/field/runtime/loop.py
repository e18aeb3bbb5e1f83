"""How the server's process runs: its event loop and its memory."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Coroutine
from typing import Any

# Parameters of `mallopt` in glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 256 << 20


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in uvloop, which takes less CPU time for TLS than asyncio; Windows does not have it."""
    keep_freed_memory()
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def future_of(event: threading.Event) -> asyncio.Future[None]:
    """A future of the running loop that is done when an event is set: a thread waits for it, and nothing polls."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not future.done():
            future.set_result(None)

    def wait() -> None:
        event.wait()
        # The loop may have ended before.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end)

    threading.Thread(target=wait, name="stop", daemon=True).start()
    return future


def keep_freed_memory() -> None:
    """Let this process reuse the memory of large vectors.

    By default glibc returns them to the system at once, which clears every page again: 13 ms for an exchange of 780,000
    entries. All threads share one heap, because other heaps are too small. Other C libraries have no such settings.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        for parameter, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _KEPT_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES)):
            library.mallopt(parameter, value)
