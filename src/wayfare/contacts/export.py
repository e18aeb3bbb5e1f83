"""Contact plans for other programs: The ONE's connectivity events, and CSV.

Both begin with one comment line that names the server, the devices and the duration, so that our own importers give
the whole plan back; other readers skip it (The ONE by itself, pandas with ``comment="#"``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wayfare.contacts.plan import ContactPlan
from wayfare.files import writing
from wayfare.mobility import SERVER


def export_one(plan: ContactPlan, path: Path | str) -> None:
    """``time CONN a b up|down`` in order of time; the server is the node after the last device.

    Distances have no place in this format.
    """
    peer = np.where(plan.peer == SERVER, plan.devices, plan.peer)
    rows = np.tile(np.arange(len(plan)), 2)
    time_s = np.concatenate([plan.start_s, plan.end_s])
    is_up = np.repeat([1, 0], len(plan))
    with writing(path, "cannot be written"), Path(path).open("w", encoding="utf-8") as file:
        file.write(_header(plan, str(plan.devices)))
        # At one instant what ends comes before what begins: a pair may part and meet again.
        for event in np.lexsort((plan.device[rows], is_up, time_s)).tolist():
            row = rows[event]
            state = "up" if is_up[event] else "down"
            file.write(f"{_exact(time_s[event])}\tCONN\t{plan.device[row]}\t{peer[row]}\t{state}\n")


def export_csv(plan: ContactPlan, path: Path | str) -> None:
    """``start_s,end_s,a,b,distance_m``, every number exact; the server is called ``server``."""
    with writing(path, "cannot be written"), Path(path).open("w", encoding="utf-8") as file:
        file.write(_header(plan, "server"))
        file.write("start_s,end_s,a,b,distance_m\n")
        for row in range(len(plan)):
            peer = "server" if plan.peer[row] == SERVER else str(plan.peer[row])
            times = f"{_exact(plan.start_s[row])},{_exact(plan.end_s[row])}"
            file.write(f"{times},{plan.device[row]},{peer},{_exact(plan.distance_m[row])}\n")


def _header(plan: ContactPlan, server: str) -> str:
    return f"# wayfare contact plan: devices={plan.devices} server={server} duration_s={_exact(plan.duration_s)}\n"


def _exact(number: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(float(number))
