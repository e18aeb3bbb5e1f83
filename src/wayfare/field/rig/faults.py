"""Injected faults: cut links and kill devices, server and broker at random times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from wayfare.field.rig.broker import Broker
from wayfare.field.rig.processes import Member
from wayfare.field.rig.proxy import Link

KINDS = ("link cut", "link silent", "device killed", "server killed", "broker killed")
_SHARES = (0.3, 0.1, 0.25, 0.2, 0.15)
# The maximum time to the next fault, and to its repair: about as long as an exchange.
_MOST_WAIT_S, _MOST_REPAIR_S = 0.2, 0.3


class Faults:
    """A number of faults, spread evenly over the contacts of a plan."""

    def __init__(
        self,
        count: int,
        rng: np.random.Generator,
        links: Sequence[Link],
        devices: Sequence[Member],
        server: Member,
        broker: Broker,
    ) -> None:
        self.left, self.done = count, Counter[str]()
        self._rng, self._links, self._devices, self._server, self._broker = rng, links, devices, server, broker

    async def strike(self, met: Sequence[int], contacts_left: int, is_over: Callable[[], bool]) -> None:
        """Inject this contact's share of the faults, one after the other, while it lasts."""
        # Slightly more, because faults after the end of the exchange do not count.
        due = -(-3 * self.left // (2 * max(contacts_left, 1)))
        for _ in range(min(due, self.left)):
            await asyncio.sleep(float(self._rng.uniform(0, _MOST_WAIT_S)))
            if is_over():
                return
            await self._one(KINDS[int(self._rng.choice(len(KINDS), p=_SHARES))], met, is_over)

    async def _one(self, kind: str, met: Sequence[int], is_over: Callable[[], bool]) -> None:
        repair_s = float(self._rng.uniform(0, _MOST_REPAIR_S))
        device = int(self._rng.choice(met))
        if kind.startswith("link"):
            link = self._links[device]
            up_bps, down_bps = link.up.rate_bps, link.down.rate_bps
            link.close(silently=kind == "link silent")
            # A short silence would not be noticed.
            await asyncio.sleep(repair_s if kind == "link cut" else 4 * repair_s)
            link.close()
            if not is_over():
                link.open(up_bps, down_bps)
        elif kind == "broker killed":
            await asyncio.to_thread(self._broker.kill)
            await asyncio.sleep(repair_s)
            await asyncio.to_thread(self._broker.start)
        else:
            member = self._server if kind == "server killed" else self._devices[device]
            if not member.check():
                return
            await asyncio.to_thread(member.kill)
            await asyncio.sleep(repair_s)
            await asyncio.to_thread(member.start)
        self.left -= 1
        self.done[kind] += 1
