"""Split long contacts into exchanges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.contacts.plan import ContactPlan
from wayfare.mobility import SERVER, Meetings, Motion

# A remainder shorter than this share of an exchange comes from rounding and joins the exchange before it.
_ROUNDING = 1e-9


def split_into_exchanges(
    plan: ContactPlan, max_exchange_s: float | None, drawn: Motion | Meetings | None = None
) -> ContactPlan:
    """Split each contact longer than the maximum into exchanges of that length, the remainder last.

    If the motion is known, an exchange of a split contact gets the distance in its middle; otherwise the distance of
    its contact. Other contacts do not change.
    """
    if max_exchange_s is None:
        return plan
    parts = np.ceil((plan.end_s - plan.start_s) / max_exchange_s - _ROUNDING).astype(np.int64).clip(min=1)
    if not (parts > 1).any():
        return plan
    contact = np.repeat(np.arange(len(plan)), parts)
    number = np.arange(len(contact)) - np.repeat(np.cumsum(parts) - parts, parts)
    is_last = number + 1 == parts[contact]
    start_s = plan.start_s[contact] + number * max_exchange_s
    end_s = np.where(is_last, plan.end_s[contact], plan.start_s[contact] + (number + 1) * max_exchange_s)
    split = replace(plan.take(contact), start_s=start_s, end_s=end_s)
    if isinstance(drawn, Motion):
        rows = np.flatnonzero(parts[contact] > 1)
        split.distance_m[rows] = _distances_m(drawn, split, rows)
    # Contacts of a device with several others may overlap.
    return split.take(np.lexsort((start_s, split.device)))


def _distances_m(motion: Motion, plan: ContactPlan, rows: Ints) -> Floats:
    """The distance of the two nodes in the middle of some rows, in metres."""
    middle_s = (plan.start_s[rows] + plan.end_s[rows]) / 2
    apart_m = np.zeros((len(rows), 2))
    for sign, nodes in ((1, plan.device[rows]), (-1, np.where(plan.peer == SERVER, plan.devices, plan.peer)[rows])):
        for node in np.unique(nodes).tolist():
            mine = nodes == node
            apart_m[mine] += sign * motion.positions_m(node, middle_s[mine])
    return np.asarray(np.hypot(*apart_m.T), dtype=np.float64)
