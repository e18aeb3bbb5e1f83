"""Several jobs at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

_Job = TypeVar("_Job")


async def windowed(work: Callable[[_Job], Coroutine[Any, Any, None]], jobs: Iterable[_Job], window: int) -> None:
    """Run jobs in order, at most ``window`` at a time. The first failure cancels all."""
    room = asyncio.Semaphore(window)

    async def one(job: _Job) -> None:
        try:
            await work(job)
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as group:
            remaining = iter(jobs)
            while True:
                await room.acquire()
                try:
                    job = next(remaining)
                except StopIteration:
                    break
                group.create_task(one(job))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
