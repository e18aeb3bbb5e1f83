"""Plans of contacts, written down as rows."""

from __future__ import annotations

import numpy as np

from wayfare.contacts import ContactPlan


def plan_of(*rows: tuple[int, int, float, float, float], devices: int = 3, duration_s: float = 100.0) -> ContactPlan:
    """Rows of device, peer, start, end and distance."""
    device, peer, start_s, end_s, distance_m = np.array(rows, dtype=float).reshape(-1, 5).T
    return ContactPlan(
        devices=devices,
        duration_s=duration_s,
        device=device.astype(np.int64),
        peer=peer.astype(np.int64),
        start_s=start_s,
        end_s=end_s,
        distance_m=distance_m,
    )
