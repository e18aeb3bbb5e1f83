"""Play the contacts of a plan on one machine, in accelerated time: open, close and rate-limit links."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from wayfare.errors import FieldError
from wayfare.field.rig.faults import Faults
from wayfare.field.rig.proxy import Link
from wayfare.field.rig.replay import replay
from wayfare.world import World

_LOOK_EVERY_S = 0.01


class Conductor:
    """Plays a plan: patiently, so that every exchange completes, or strictly by the clock."""

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
        self._world, self._links, self._stores = world, links, [ProgressReader(store) for store in stores]
        self._speedup, self._check, self._stalled_s = speedup, check, stalled_s

    async def patiently(self, faults: Faults | None, on_round: Callable[[int], None]) -> None:
        """Round by round: wait until all devices with a contact in the round have exchanged."""
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
                        "their stores are intact; see their logs for the reason"
                    )
                await asyncio.sleep(_LOOK_EVERY_S)
            if striking is not None:
                await striking
            for device in met:
                self._links[device].close()
            on_round(int(round_))

    async def strictly(self, faults: Faults | None, on_round: Callable[[int], None]) -> None:
        """By the clock: end every contact as planned, even during an exchange."""
        world = self._world
        plan = world.plan.with_server()
        within: set[int] = set()
        striking: set[asyncio.Task[None]] = set()
        begun = 0

        def on_contact(device: int, begins: bool) -> None:
            nonlocal begun
            if not begins:
                within.discard(device)
                return
            within.add(device)
            begun += 1
            on_round(min(int(plan.start_s[order[begun - 1]] // world.scenario.round_s) + 1, world.scenario.rounds))
            if faults is not None and not striking:
                # About every second contact coincides with the repair of another fault and gets none.
                contacts_left = max((len(plan) - begun) // 2, 1)
                task = asyncio.create_task(faults.strike([device], contacts_left, lambda: device not in within))
                striking.add(task)
                task.add_done_callback(striking.discard)

        order = np.argsort(plan.start_s, kind="stable")
        playing = asyncio.ensure_future(
            replay(
                plan,
                self._links,
                speed=self._speedup,
                uplink_bps=np.array([self._planned_bps(row) for row in range(len(plan))]),
                downlink_bps=math.inf,
                on_contact=on_contact,
            )
        )
        try:
            while not playing.done():
                self._check()
                await asyncio.wait((playing,), timeout=0.1)
            playing.result()
            await asyncio.gather(*striking)
        finally:
            playing.cancel()
        for link in self._links:
            link.close()

    def _planned_bps(self, row: int) -> float:
        """The rate of a contact of the plan, in bit/s, from its row by round."""
        plan, meets = self._world.plan.with_server(), self._world.meets
        round_ = int(plan.start_s[row] // self._world.scenario.round_s) + 1
        found = np.flatnonzero((meets.device == plan.device[row]) & (meets.round == round_))
        return self._rate_bps(int(found[0])) / self._speedup if len(found) else 1e5

    def _rate_bps(self, row: int) -> float:
        """The rate of a contact's channel at full power, in accelerated time, in bit/s."""
        link = self._world.link
        return link.rate_bps(link.max_power_watts, float(self._world.gains_per_watt[row])) * self._speedup


class ProgressReader:
    """Reads the progress of a device from its store, read-only."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._connection: sqlite3.Connection | None = None

    def finished_round(self) -> int:
        """The round of the last complete exchange; 0 before the store exists."""
        if self._connection is None:
            if not self._store.exists():
                return 0
            self._connection = sqlite3.connect(f"file:{self._store}?mode=ro", uri=True, timeout=30)
        try:
            row = self._connection.execute("SELECT value FROM facts WHERE name = 'progress'").fetchone()
        except sqlite3.OperationalError:
            # The store is being created.
            return 0
        return int(json.loads(row[0])["finished_round"]) if row else 0
