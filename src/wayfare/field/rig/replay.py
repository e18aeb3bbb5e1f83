"""Replay the contacts of a plan on real connections, in accelerated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from wayfare.arrays import Floats
from wayfare.contacts import ContactPlan
from wayfare.errors import InputError
from wayfare.field.rig.proxy import Link


def replay(
    plan: ContactPlan,
    links: Sequence[Link],
    *,
    speed: float = 1.0,
    uplink_bps: float | Floats = 1e6,
    downlink_bps: float | Floats = 1e6,
    silently: bool = False,
    on_contact: Callable[[int, bool], None] | None = None,
) -> Coroutine[Any, Any, None]:
    """Open and close the link of each device as its contacts with the server start and end.

    Rates are in the plan's time, one for all or one per contact with the server. If time runs ``speed`` times faster,
    so do bits, and a contact carries as many bits. ``on_contact`` receives the device, and whether a contact started or
    ended.
    """
    plan = plan.with_server()
    if not speed > 0:
        raise InputError(f"speed = {speed!r}: must be above 0")
    if plan.devices != len(links):
        raise InputError(f"links: got {len(links)}, the plan has {plan.devices} devices")
    up_bps, down_bps = (np.broadcast_to(np.asarray(rate), len(plan)) * speed for rate in (uplink_bps, downlink_bps))
    # At equal times ends come before starts, so that touching contacts of one device stay separate.
    moments = [(float(end_s), 0, row) for row, end_s in enumerate(plan.end_s)]
    moments += [(float(start_s), 1, row) for row, start_s in enumerate(plan.start_s)]

    def change(row: int, begins: bool) -> None:
        device = int(plan.device[row])
        if begins:
            links[device].open(float(up_bps[row]), float(down_bps[row]))
        else:
            links[device].close(silently=silently)
        if on_contact is not None:
            on_contact(device, begins)

    async def play() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            for at_s, begins, row in sorted(moments):
                await asyncio.sleep(max(began_s + at_s / speed - loop.time(), 0.0))
                change(row, bool(begins))
            await asyncio.sleep(max(began_s + plan.duration_s / speed - loop.time(), 0.0))
        finally:
            for link in links:
                link.close(silently=silently)

    return play()
