"""The contacts of a plan on one machine, in accelerated time: links that open, close and limit the rate."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from wayfare.errors import FieldError
from wayfare.field.faults import Faults
from wayfare.field.proxy import Link
from wayfare.simulator import World

_LOOK_EVERY_S = 0.01


class Conductor:
    """Plays a plan. With ``patient``, time stands still until the exchanges of a round are over."""

    def __init__(
        self,
        world: World,
        links: Sequence[Link],
        stores: Sequence[Path],
        *,
        speedup: float,
        check: Callable[[], None],
        stalled_s: float = 120.0,
    ) -> None:
        self._world, self._links, self._stores = world, links, [Glance(store) for store in stores]
        self._speedup, self._check, self._stalled_s = speedup, check, stalled_s

    async def patiently(self, faults: Faults | None, on_round: Callable[[int], None]) -> None:
        """Round by round. Everyone met in a round is in reach until everyone has exchanged; rounds without pass."""
        meets = self._world.meets
        rounds = np.unique(meets.round)
        for place, round_ in enumerate(rounds):
            rows = np.flatnonzero(meets.round == round_).tolist()
            met = [int(device) for device in meets.device[rows]]
            for row, device in zip(rows, met, strict=True):
                self._links[device].open(uplink_bps=self._rate_bps(row))

            def is_over(met: Sequence[int] = met, round_: int = int(round_)) -> bool:
                return all(self._stores[device].finished_round() >= round_ for device in met)

            striking = None
            if faults is not None:
                striking = asyncio.ensure_future(faults.strike(met, len(rounds) - place, is_over))
            began_s, least_s = time.monotonic(), float(meets.contact_s[rows].max()) / self._speedup
            while not is_over() or time.monotonic() - began_s < least_s:
                self._check()
                if time.monotonic() - began_s > self._stalled_s:
                    missing = [device for device in met if self._stores[device].finished_round() < round_]
                    raise FieldError(
                        f"round {round_}: devices {missing} did not exchange within {self._stalled_s:g} s; "
                        "what they have is safe in their stores, and their logs say why"
                    )
                await asyncio.sleep(_LOOK_EVERY_S)
            if striking is not None:
                await striking
            for device in met:
                self._links[device].close()
            on_round(int(round_))

    async def strictly(self, faults: Faults | None, on_round: Callable[[int], None]) -> None:
        """By the clock: a contact ends when the plan says, whatever is under way."""
        plan, meets = self._world.plan.with_server(), self._world.meets
        began_s = time.monotonic()
        events = sorted(
            (float(time_s) / self._speedup, opens, int(row))
            for opens, times in ((True, plan.start_s), (False, plan.end_s))
            for row, time_s in enumerate(times)
        )
        striking: set[asyncio.Task[None]] = set()
        for place, (at_s, opens, row) in enumerate(events):
            while (left_s := began_s + at_s - time.monotonic()) > 0:
                self._check()
                await asyncio.sleep(min(left_s, 0.1))
            device, round_ = int(plan.device[row]), int(plan.start_s[row] // self._world.scenario.round_s) + 1
            if not opens:
                self._links[device].close()
                on_round(round_)
                continue
            found = np.flatnonzero((meets.device == device) & (meets.round == round_))
            self._links[device].open(uplink_bps=self._rate_bps(int(found[0])) if len(found) else 1e6)
            if faults is not None and not striking:
                contacts_left = max((len(events) - place) // 4, 1)
                task = asyncio.create_task(
                    faults.strike([device], contacts_left, partial(_closed, self._links[device]))
                )
                striking.add(task)
                task.add_done_callback(striking.discard)
        await asyncio.gather(*striking)

    def _rate_bps(self, row: int) -> float:
        """What the channel of a contact carries at full power, in accelerated time."""
        link = self._world.link
        return link.rate_bps(link.max_power_watts, float(self._world.gains_per_watt[row])) * self._speedup


def _closed(link: Link) -> bool:
    return not link.is_open


class Glance:
    """A look at how far a device is, into its store, without disturbing it."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._connection: sqlite3.Connection | None = None

    def finished_round(self) -> int:
        """Of its last exchange that ended; 0 before it has a store."""
        if self._connection is None:
            if not self._store.exists():
                return 0
            self._connection = sqlite3.connect(f"file:{self._store}?mode=ro", uri=True, timeout=30)
        try:
            row = self._connection.execute("SELECT value FROM facts WHERE name = 'progress'").fetchone()
        except sqlite3.OperationalError:
            # It is just being made.
            return 0
        return int(json.loads(row[0])["finished_round"]) if row else 0

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
