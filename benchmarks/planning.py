"""Compare `wayfare plan` with full simulations: k/s, staleness and energy.

    python benchmarks/planning.py [--seeds 3] [--only TEXT] [--out FILE.jsonl]

The plan uses one seed, the runs use others, so both are random. Runs train: the default preset at
three speeds, and the paper's setting (4,000 rounds, 20 m/s, 50 to 150 J per device) with the small model in place of
ResNet-9. Bandwidth and noise are scaled, so that a contact carries the same share of an update at the same
signal-to-noise ratio. For a scheme the two problems are then equal.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import wayfare
from wayfare.codec import bits_per_entry
from wayfare.contacts.source import plan_from_source
from wayfare.records import summarise_run
from wayfare.theory.norms import typical_norms
from wayfare.theory.planner import forecast

SMALL, LARGE = 84_618, 6_568_650
SHARE = SMALL * bits_per_entry(SMALL, 32) / (LARGE * bits_per_entry(LARGE, 32))
PAPER = [
    "learning.task=fashion-small",
    "learning.learning_rate=0.1",
    "learning.partition.concentration=1.0",
    f"radio.bandwidth_hz={1e6 * SHARE!r}",
    f"radio.noise_dbm_per_hz={-174 - 10 * math.log10(SHARE)!r}",
]
# The weight of the paper's preset is tuned for updates of ResNet-9. Only V times |grad|^2 matters.
PAPER_WEIGHT = 3e-4 * typical_norms("resnet9").step_norm_sq / typical_norms("mlp").step_norm_sq
SETTINGS: dict[str, tuple[str, list[str]]] = {
    f"fashion-small, {speed} m/s, V = {weight}": (
        "fashion-small",
        [f"mobility.speed_mps={speed}.0", f"control.weight={weight}"],
    )
    for weight in ("5e-3", "auto")
    for speed in (5, 20, 40)
}
for weight in (repr(PAPER_WEIGHT), "auto"):
    name = "3e-4" if weight != "auto" else "auto"
    SETTINGS[f"the paper's, V = {name}"] = ("paper-cifar10-waypoint", [*PAPER, f"control.weight={weight}"])


def planned(preset: str, overrides: list[str], seed: int) -> dict[str, float]:
    found = plan_from_source(preset, seed=seed, overrides=overrides)
    played = forecast(found, parameters=SMALL, statistics=0, norms=typical_norms("mlp"), seed=seed).rehearsed
    assert played is not None
    return {
        "kept_fraction": played.kept_fraction,
        "staleness_rounds": played.staleness_rounds,
        "energy_joules": played.energy_joules,
    }


def simulated(preset: str, overrides: list[str], seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        summary = summarise_run(wayfare.run(wayfare.load(preset, overrides), "mads", seed=seed, out=folder))
    return {
        "kept_fraction": summary.kept_fraction,
        "staleness_rounds": summary.staleness_rounds,
        "energy_joules": summary.energy_joules,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="only settings whose name contains this text")
    arguments = parser.parse_args()
    print("| setting | k/s plan, runs | | staleness plan, runs | | energy J plan, runs | | plan s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, (preset, overrides) in SETTINGS.items():
        if arguments.only not in name:
            continue
        begun = time.perf_counter()
        plan = planned(preset, overrides, seed=0)
        took_s = time.perf_counter() - begun
        runs = [simulated(preset, overrides, seed) for seed in range(1, 1 + arguments.seeds)]
        cells, row = [], dict[str, Any](setting=name, plan=plan, runs=runs, plan_s=took_s)
        for key, digits in (("kept_fraction", 3), ("staleness_rounds", 1), ("energy_joules", 0)):
            mean = fmean(run[key] for run in runs)
            cells.append(f"{plan[key]:,.{digits}f}, {mean:,.{digits}f} | {100 * (plan[key] / mean - 1):+.1f} %")
        print(f"| {name} | {' | '.join(cells)} | {took_s:.1f} |", flush=True)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
