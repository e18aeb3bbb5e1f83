"""Credits of devices for questions to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from wayfare.field.runtime.connect import FieldClient
from wayfare.field.runtime.fairness import FairSubscriptions, Rates


class Flooding:
    """A broker whose messages use up every extended credit before the server has noted that it extended it."""

    def __init__(self) -> None:
        self.subscriptions = self.delivered = 0

    async def subscribe(self, subject: str, cb: Callable[[Any], Awaitable[None]]) -> Flooding:
        self.subscriptions, self.delivered, self.answer = self.subscriptions + 1, 0, cb
        return self

    async def unsubscribe(self, limit: int) -> None:
        is_extended = self.delivered > 0
        while is_extended and self.delivered < limit:
            await self.deliver()

    async def deliver(self) -> None:
        self.delivered += 1
        await self.answer(None)


def test_a_device_that_uses_up_its_credit_at_once_is_heard_again() -> None:
    async def story() -> None:
        broker = Flooding()
        fair = FairSubscriptions(cast(FieldClient, broker), Rates(questions_per_s=1e4, questions_burst=10))

        async def answer(message: object) -> None:
            await asyncio.sleep(0)

        await fair.hear("bus-1", "ask", answer)
        keeping = asyncio.ensure_future(fair.keep_credit())
        for _ in range(5):
            await broker.deliver()
        while broker.subscriptions < 2:
            await asyncio.sleep(0.01)
        keeping.cancel()

    asyncio.run(asyncio.wait_for(story(), 5))
