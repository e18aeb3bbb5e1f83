"""Rates per device, so that no bundle takes the server from the others.

The server hears every device through subscriptions of its own, with a credit that the broker counts: after so many
messages it forwards no more of them until the server extends the credit. So a flood ends at the broker, which is fast,
and never fills the connection that all devices share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from wayfare.field.runtime.connect import FieldClient

_RETRY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the server does for one device at most, on average and at once."""

    questions_per_s: float = 20.0  # of one kind: the state of an update, or the end of an exchange
    questions_burst: int = 100
    parts_per_s: float = 200.0  # requests for parts of a model
    parts_burst: int = 400
    bytes_per_s: float = 25e6  # in each direction
    bytes_burst: float = 256e6


@dataclass(slots=True)
class TokenBucket:
    per_s: float
    burst: float
    clock: Callable[[], float] = time.monotonic
    _left: float = field(init=False)
    _at_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._at_s = self.burst, self.clock()

    def take(self, amount: float) -> bool:
        """Take tokens if there are enough."""
        if self.wait_s(amount) > 0:
            return False
        self._left -= amount
        return True

    def wait_s(self, amount: float) -> float:
        """The time until there are enough tokens, or the bucket is full."""
        now_s = self.clock()
        self._left, self._at_s = min(self._left + (now_s - self._at_s) * self.per_s, self.burst), now_s
        return max(min(amount, self.burst) - self._left, 0.0) / self.per_s


@dataclass(slots=True)
class _Heard:
    bucket: TokenBucket
    subscription: Subscription | None = None
    heard: int = 0
    limit: int = 0


class FairSubscriptions:
    """One subscription per device and kind of question, each with its credit."""

    def __init__(self, client: FieldClient, rates: Rates) -> None:
        self._client, self._rates = client, rates
        self._heard: dict[str, tuple[_Heard, Callable[[Msg], Awaitable[None]]]] = {}
        self._low: set[str] = set()  # subjects whose credit is half used up
        self._some_low = asyncio.Event()

    async def hear(self, device: str, kind: str, on_message: Callable[[Msg], Awaitable[None]]) -> None:
        """Start to hear one kind of question of a device; a second call changes nothing."""
        subject, rates = f"up.{device}.{kind}", self._rates
        if subject in self._heard:
            return
        pace = rates.parts_per_s, rates.parts_burst
        if kind != "part":
            pace = rates.questions_per_s, rates.questions_burst
        heard = _Heard(TokenBucket(*pace))

        async def counted(message: Msg) -> None:
            heard.heard += 1
            if 2 * (heard.limit - heard.heard) <= heard.bucket.burst:
                self._low.add(subject)
                self._some_low.set()
            await on_message(message)

        self._heard[subject] = heard, counted
        await self._extend(subject)

    async def keep_credit(self) -> None:
        """Extend credits as fast as the rates allow, until cancelled."""
        while True:
            await self._some_low.wait()
            # While credits are extended, messages may use them up again.
            low, self._low = self._low, set()
            refused = {subject for subject in sorted(low) if not await self._extend(subject)}
            self._low |= refused
            if not self._low:
                self._some_low.clear()
            await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        for heard, _ in self._heard.values():
            if heard.subscription is not None and heard.heard < heard.limit:
                await heard.subscription.unsubscribe()

    async def _extend(self, subject: str) -> bool:
        """Extend a credit if the rate allows it."""
        heard, on_message = self._heard[subject]
        credit = int(heard.bucket.burst)
        if not heard.bucket.take(credit if heard.subscription is None else credit / 2):
            return False
        if heard.subscription is None or heard.heard >= heard.limit:
            # The broker has forgotten a subscription whose credit is used up.
            heard.heard, heard.limit = 0, credit
            heard.subscription = await self._client.subscribe(subject, cb=on_message)
        else:
            heard.limit += credit // 2
        await heard.subscription.unsubscribe(limit=heard.limit)
        return True
