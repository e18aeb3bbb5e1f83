"""The time to draw a motion and to find its contacts, on one core.

    OMP_NUM_THREADS=1 python benchmarks/contacts.py [--json FILE] [--quick]

Random waypoint at 20 m/s with a range of 100 m over 40,000 s. Contacts between devices are counted part by
part (`plans_from_motion`), at a constant density of 20 devices per square kilometre and in the default square
kilometre, where 1,000 devices have about 120 million contacts. Every case runs in its own process, to measure its peak
memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import time
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path

import numpy as np

from wayfare.contacts.draw import plans_from_motion
from wayfare.mobility import Motion, from_spec
from wayfare.scenario.mobility import WaypointMobility

RANGE_M = 100.0
DENSITY_PER_KM2 = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    devices: int
    side_m: float
    duration_s: float
    devices_meet: bool
    goal_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    name: str
    devices: int
    side_m: float
    duration_s: float
    legs: int
    draw_s: float
    contacts: int
    contacts_s: float
    microseconds_per_contact: float
    peak_memory_gb: float
    goal_s: float | None


def cases(duration_s: float) -> list[Case]:
    """The cases with goals, then the growth of cost with the fleet."""

    def dense(devices: int, goal_s: float | None = None) -> Case:
        side_m = 1000.0 * sqrt(devices / DENSITY_PER_KM2)
        name = "devices, constant density"
        return Case(name=name, devices=devices, side_m=side_m, duration_s=duration_s, devices_meet=True, goal_s=goal_s)

    return [
        Case(name="server", devices=1000, side_m=1000.0, duration_s=duration_s, devices_meet=False, goal_s=2.0),
        *(dense(devices, 60.0 if devices == 1000 else None) for devices in (250, 500, 1000, 2000, 4000)),
        # A large fleet for an hour, whatever the other durations are.
        Case(
            name="devices, an hour",
            devices=10_000,
            side_m=1000.0 * sqrt(10_000 / DENSITY_PER_KM2),
            duration_s=3600.0,
            devices_meet=True,
            goal_s=60.0,
        ),
        Case(
            name="devices, one km2", devices=1000, side_m=1000.0, duration_s=duration_s, devices_meet=True, goal_s=60.0
        ),
    ]


def measure(case: Case) -> Result:
    """Run one case and measure its wall time."""
    began = time.perf_counter()
    motion = from_spec(WaypointMobility(width_m=case.side_m, height_m=case.side_m), RANGE_M).draw(
        case.devices, case.duration_s, seed=0
    )
    drawn = time.perf_counter()
    assert isinstance(motion, Motion)
    parts = plans_from_motion(motion, RANGE_M, case.duration_s, 0, devices_meet=case.devices_meet)
    contacts = sum(len(part) for part in parts)
    found = time.perf_counter()
    return Result(
        name=case.name,
        devices=case.devices,
        side_m=round(case.side_m, 1),
        duration_s=case.duration_s,
        legs=len(motion.node),
        draw_s=round(drawn - began, 3),
        contacts=contacts,
        contacts_s=round(found - drawn, 3),
        microseconds_per_contact=round((found - drawn) / contacts * 1e6, 3),
        peak_memory_gb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        goal_s=case.goal_s,
    )


def hardware() -> dict[str, str]:
    """The machine of the measurements."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    name = names[0].partition(":")[2].strip() if names else platform.processor()
    return {"cpu": name, "cores_used": "1", "python": platform.python_version(), "numpy": np.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--quick", action="store_true", help="a tenth of the duration")
    options = parser.parse_args()
    machine = hardware()
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print("contacts of                  devices  side m  draw s     contacts       s  us each    GB  goal")
    results = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for result in pool.imap(measure, cases(4000.0 if options.quick else 40_000.0)):
            results.append(result)
            goal = "" if result.goal_s is None else f"{result.goal_s:g} s"
            print(
                f"{result.name:28}{result.devices:8}{result.side_m:8.0f}{result.draw_s:8.2f}{result.contacts:13,}"
                f"{result.contacts_s:8.2f}{result.microseconds_per_contact:9.2f}{result.peak_memory_gb:6.2f}  {goal}",
                flush=True,
            )
    if options.json is not None:
        table = {"hardware": machine, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
