"""Compare `control.weight = "auto"` with fixed weights on the default preset.

    python benchmarks/auto_weight.py --out FILE.jsonl [--seeds 5] [--jobs 2] [--traces FOLDER]
    python benchmarks/auto_weight.py --out FILE.jsonl --table

Speeds of 5, 20 and 40 m/s with 0.3, 1 and 3 times the budget, and traces if a folder has them. It writes one line of
JSON per run and skips runs that are in the file. A device can use the energy of the power at which all entries fit
(P of Proposition 2) in all its contacts. The table compares the energy of a run with the smaller of that and the
budget, summed over devices.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

import wayfare
from wayfare.codec import bits_per_entry
from wayfare.control.closed_form import full_update_power_watts
from wayfare.records import RunRecord, summarise_run

WEIGHTS: tuple[float | str, ...] = (1e-4, 1e-3, 5e-3, 2e-2, 1e-1, 1.0, 10.0, "auto")
BUDGETS_JOULES = (150.0, 500.0, 1500.0)
SPEEDS_MPS = (5.0, 20.0, 40.0)
TRACES = {
    "SUMO grid": ["mobility.file=sumo_grid_fcd.xml.xz", "mobility.repeat=true"],
    "taxis, one day": [
        "mobility.file=cabspotting_2008-05-20.tar.xz",
        "radio.range_m=300",
        "mobility.box_m=[-2500,-2500,2500,2500]",
        "round_s=86",
    ],
    "Haggle": ["mobility.file=haggle_intel.one.tsv", "fleet.devices=8", "round_s=359"],
}


def settings(traces: Path | None) -> dict[str, list[str]]:
    """The overrides of every row, by name."""
    rows = {
        f"{speed:g} m/s, {budget:g} J": [f"mobility.speed_mps={speed}", f"fleet.energy_total_joules={budget}"]
        for speed in SPEEDS_MPS
        for budget in BUDGETS_JOULES
    }
    for name, overrides in TRACES.items() if traces else ():
        file, *rest = overrides
        path = json.dumps(str(traces / file.partition("=")[2])) if traces else ""
        rows[name] = ["mobility.model=trace", f"mobility.file={path}", *rest]
    return rows


def measure(name: str, overrides: list[str], weight: float | str, seed: int) -> dict[str, Any]:
    """One run."""
    scenario = wayfare.load("fashion-small", [*overrides, f"control.weight={weight}"])
    with tempfile.TemporaryDirectory() as folder:
        record = wayfare.run(scenario, "mads", seed=seed, out=folder)
    summary = summarise_run(record)
    return {
        "setting": name,
        "weight": weight,
        "seed": seed,
        "accuracy": summary.score,
        "energy_joules": summary.energy_joules,
        "available_joules": available_joules(record),
        "most_over_budget": most_over_budget(record),
        "kept_fraction": summary.kept_fraction,
    }


def available_joules(record: RunRecord) -> float:
    """The smaller of budget and usable energy, summed over devices."""
    contacts, radio = record.contacts, record.scenario.radio
    power = full_update_power_watts(
        contact_s=contacts["contact_s"],
        gain_per_watt=contacts["gain_per_watt"],
        bandwidth_hz=radio.bandwidth_hz,
        parameters=record.parameters,
        bits_per_entry=bits_per_entry(record.parameters, record.scenario.upload.value_bits),
        max_power_watts=radio.max_power_watts,
    )
    devices = contacts["device"].astype(np.int64)
    usable = np.bincount(devices, power * contacts["contact_s"], len(record.budgets_joules))
    return float(np.minimum(usable, record.budgets_joules).sum())


def most_over_budget(record: RunRecord) -> float:
    """The largest share of its budget that a device spent."""
    devices = record.contacts["device"].astype(np.int64)
    spent = np.bincount(devices, record.contacts["energy_joules"], len(record.budgets_joules))
    return float((spent / record.budgets_joules).max())


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: the automatic weight next to the best fixed one. Differences are paired: same seed, same world."""
    yield "| setting | auto, % | energy, J | share | most of a device | best V, % and J | auto - best | sweep |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for setting in dict.fromkeys(row["setting"] for row in rows):
        mine = {row["seed"]: row for row in rows if row["setting"] == setting and row["weight"] == "auto"}
        fixed: dict[float, dict[int, dict[str, Any]]] = {}
        for row in rows:
            if row["setting"] == setting and row["weight"] != "auto":
                fixed.setdefault(row["weight"], {})[row["seed"]] = row
        # Only weights with runs in every world of the automatic weight.
        fixed = {weight: runs for weight, runs in fixed.items() if set(mine) <= set(runs)}
        if not mine or not fixed:
            continue
        means = {weight: fmean(runs[seed]["accuracy"] for seed in mine) for weight, runs in fixed.items()}
        best = max(means, key=lambda weight: means[weight])
        paired = [100 * (row["accuracy"] - fixed[best][seed]["accuracy"]) for seed, row in mine.items()]
        accuracies = [100 * row["accuracy"] for row in mine.values()]
        energy, there = (fmean(row[key] for row in mine.values()) for key in ("energy_joules", "available_joules"))
        shares = [row["energy_joules"] / row["available_joules"] for row in mine.values()]
        most = max(row["most_over_budget"] for row in mine.values())
        theirs = fmean(fixed[best][seed]["energy_joules"] for seed in mine)
        yield (
            f"| {setting} | {fmean(accuracies):.2f} ± {error(accuracies):.2f} | {energy:.0f} of {there:.0f} "
            f"| {100 * fmean(shares):.1f} % ({100 * min(shares):.1f} to {100 * max(shares):.1f}) | {100 * most:.1f} % "
            f"| {best:g}: {100 * means[best]:.2f}, {theirs:.0f} J | {fmean(paired):+.2f} ± {error(paired):.2f} "
            f"| {', '.join(f'{weight:g}' for weight in sorted(fixed))} |"
        )


def error(values: list[float]) -> float:
    """The standard error of a mean."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--weights", nargs="*", default=[str(weight) for weight in WEIGHTS])
    parser.add_argument("--table", action="store_true", help="print the results in the file and exit")
    arguments = parser.parse_args()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    rows = [json.loads(line) for line in lines]
    if arguments.table:
        print("\n".join(table(rows)))
        return
    done = {(row["setting"], str(row["weight"]), row["seed"]) for row in rows}
    weights = [weight if weight == "auto" else float(weight) for weight in arguments.weights]
    wanted = [
        (name, overrides, weight, seed)
        for weight in weights
        for seed in range(arguments.seeds)
        for name, overrides in settings(arguments.traces).items()
        if (name, str(weight), seed) not in done
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool, arguments.out.open("a") as file:
        for future in as_completed([pool.submit(measure, *task) for task in wanted]):
            file.write(json.dumps(future.result()) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
