"""Beside its messages a server carries out orders, compacts its history and evaluates its model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.field.brokers import finish
from tests.field.test_compaction import lived
from wayfare.field.runtime.compaction import Window
from wayfare.field.runtime.housekeeping import Housekeeping, HousekeepingOptions
from wayfare.field.runtime.ledger import FILE
from wayfare.field.runtime.orders import outcome, place
from wayfare.field.runtime.status import Judged


def test_orders_compaction_and_evaluation_take_place_by_themselves(tmp_path: Path) -> None:
    ledger, seen = lived(tmp_path), list[tuple[int, Tensor]]()

    def judge(version: int, model: Tensor) -> Judged:
        seen.append((version, model))
        return Judged(version=version, metric="accuracy", score=0.5, loss=1.0)

    async def in_thread(work: Callable[[], Any]) -> Any:
        return work()

    async def a_moment() -> Housekeeping:
        options = HousekeepingOptions(window=Window(days=0, bytes=0), judge=judge, judge_every_s=0.05)
        house = Housekeeping(ledger, in_thread, options)
        running = asyncio.ensure_future(house.run())
        while house.judged is None:
            await asyncio.sleep(0.01)
        # The first look compacted everything, so only the base is left to return to.
        number = place(tmp_path / FILE, "rollback", {"version": 15})
        while outcome(tmp_path / FILE, number, 0) is None or house.judged.version != 16:
            await asyncio.sleep(0.01)
        running.cancel()
        return house

    house = finish(a_moment())
    assert house.judged is not None
    assert [version for version, _ in seen] == [15, 16]
    assert torch.equal(seen[0][1], seen[1][1])
    assert ledger.base_version == 15
