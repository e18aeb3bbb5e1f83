"""What tests of the field share: a real broker or a clear skip, and an end to everything."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from wayfare.field.fleet.needs import broker_program

Result = TypeVar("Result")
LIMIT_S = 60.0


def needs_broker() -> None:
    """Skip, in one clear line, where there is no nats-server; continuous integration counts that as a failure.

    Tests that call this carry the mark ``system``.
    """
    if broker_program() is None:
        pytest.skip("needs nats-server (Debian: apt-get install nats-server)")


def finish(work: Coroutine[Any, Any, Result], limit_s: float = LIMIT_S) -> Result:
    """Run to the end, but not for ever: what hangs between machines hangs for good."""
    return asyncio.run(asyncio.wait_for(work, limit_s))
