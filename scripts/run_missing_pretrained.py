r"""Run the missing runs of docs/results/pretrained.md, or list them.

    python scripts/run_missing_pretrained.py STUDY [ROW ...] --at radio.bandwidth_hz=20e3 --out FOLDER \
        --device cuda --precision tf32 --jobs 6

STUDY is a study of that page, such as pretrained-cifar10-trained. ROW is a part of the name of a row, such as
"everything". `--at` leaves only the points with these values. Seeds that lack the same points share a folder in FOLDER,
so that they run together; interrupted runs resume and finished ones are not repeated until they are on record.
`python scripts/record_pretrained.py FOLDER/*/*` adds them to the record.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import wayfare
from record_pretrained import TASKS, WAYS, Tables
from wayfare.engine.compute import checked_precision
from wayfare.studies.study import Plan, load_study
from wayfare.studies.sweeping import sweep


def plans(study: str, rows: Sequence[str] = (), at: Mapping[str, float] | None = None) -> Iterator[tuple[str, Plan]]:
    """For every scheme and set of seeds that lack the same points, a plan of these runs and a name for its folder."""
    task = next(task for task in TASKS if study.startswith(f"pretrained-{task}"))
    ways = [way for way in WAYS[task] if f"pretrained-{task}{way.study}" == study]
    ways = [way for way in ways if not rows or any(row in way.label for row in rows)]
    plan, tables = load_study(study), Tables(task)
    alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for scheme, seed in product(plan.schemes, plan.seeds):
        lacking = [
            plan.points.index(point)
            for way in ways
            if way.scheme == scheme
            for point in tables.lacking(way, plan, seed)
            if all(point.values[setting] == value for setting, value in (at or {}).items())
        ]
        if lacking:
            alike.setdefault((scheme, tuple(lacking)), []).append(seed)
    for (scheme, indices), seeds in alike.items():
        # A folder holds one plan. Another one in it would hide its runs from the record.
        name = f"{scheme}-seeds-{'-'.join(map(str, seeds))}-points-{'-'.join(map(str, indices))}"
        yield name, replace(plan, points=[plan.points[index] for index in indices], schemes=[scheme], seeds=seeds)


def setting(text: str) -> tuple[str, float]:
    """The name and the number of `SETTING=NUMBER`."""
    name, _, value = text.partition("=")
    return name, float(value)


def main() -> None:
    """List the missing runs, or run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies = sorted({f"pretrained-{task}{way.study}" for task in TASKS for way in WAYS[task]})
    parser.add_argument("study", choices=studies)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--at", nargs="+", type=setting, default=[], metavar="SETTING=VALUE")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--list", action="store_true", help="list the missing runs and exit")
    given = parser.parse_args()
    execution = wayfare.Execution(device=given.device, precision=checked_precision(given.precision), keep_model=False)
    for name, plan in plans(given.study, given.rows, dict(given.at)):
        print(f"{name}: {len(plan.points) * len(plan.seeds)} runs", flush=True)
        if given.list:
            continue
        with wayfare.RunProgress() as progress:
            sweep(plan, out=given.out / name, jobs=given.jobs, execution=execution, progress=progress)


if __name__ == "__main__":
    main()
