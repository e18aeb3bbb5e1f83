"""Run the missing runs of docs/results/pretrained.md, seed by seed, or list them.

    python scripts/run_missing_pretrained.py STUDY [ROW ...] --out FOLDER --device cuda --precision tf32 --jobs 6

STUDY is a study of that page, such as pretrained-cifar10-trained. ROW is a part of the name of a row, such as
"everything". Every seed has its own folder in FOLDER, so interrupted runs resume and finished ones are not repeated.
`python scripts/record_pretrained.py FOLDER/*/*` then adds them to the record.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import wayfare
from record_pretrained import FROZEN, TASKS, TRAINED, Tables
from wayfare.engine.compute import checked_precision
from wayfare.studies.study import Plan, load_study
from wayfare.studies.sweeping import sweep


def plans(study: str, rows: Sequence[str]) -> Iterator[Plan]:
    """For every seed and scheme, a plan of the points that lack a run."""
    task = next(task for task in TASKS if study.startswith(f"pretrained-{task}"))
    ways = [way for way in (*FROZEN, *TRAINED) if f"pretrained-{task}{way.study}" == study]
    ways = [way for way in ways if not rows or any(row in way.label for row in rows)]
    plan, tables = load_study(study), Tables(task)
    for seed, scheme in product(plan.seeds, plan.schemes):
        points = [point for way in ways if way.scheme == scheme for point in tables.lacking(way, plan, seed)]
        if points:
            yield replace(plan, points=points, schemes=[scheme], seeds=[seed])


def main() -> None:
    """List the missing runs, or run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies = sorted({f"pretrained-{task}{way.study}" for task in TASKS for way in (*FROZEN, *TRAINED)})
    parser.add_argument("study", choices=studies)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--list", action="store_true", help="list the missing runs and exit")
    given = parser.parse_args()
    execution = wayfare.Execution(device=given.device, precision=checked_precision(given.precision), keep_model=False)
    for plan in plans(given.study, given.rows):
        (seed,), (scheme,) = plan.seeds, plan.schemes
        print(f"{scheme}, seed {seed}: {len(plan.points)} runs", flush=True)
        if given.list:
            continue
        with wayfare.RunProgress() as progress:
            sweep(plan, out=given.out / f"{scheme}-{seed}", jobs=given.jobs, execution=execution, progress=progress)


if __name__ == "__main__":
    main()
