"""Run the missing runs of recorded figures, one after the other, as listed in docs/results/paper/not-run.csv.

    python scripts/run_missing.py [FIGURE ...] --out FOLDER --device cuda --precision bf16 [--list]

Each run is a separate study in FOLDER, so that interrupted runs resume and finished ones are not repeated.
`python scripts/record_figure.py FIGURE FOLDER/*` then adds them to the record.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import wayfare
from wayfare.engine.compute import checked_precision
from wayfare.scenario.load import merge, table_of
from wayfare.studies.paper import FIGURES
from wayfare.studies.study import Plan, plan_of
from wayfare.studies.sweeping import sweep

NOT_RUN = Path("docs/results/paper/not-run.csv")


def study_of(row: dict[str, str]) -> Plan:
    """The study of one missing run."""
    whole: dict[str, Any] = dict(FIGURES[row["figure"]].study(quick=False))
    axes = plan_of(whole).axes
    point = [f"{axis}={value}" for axis, value in zip(axes, row["point"].split(), strict=True)]
    scheme = row["scheme"].replace(":", "-")
    one = {key: value for key, value in whole.items() if key not in ("grid", "paired")}
    one["name"] = "-".join([row["figure"], *row["point"].split(), scheme, f"seed{row['seed']}"])
    one["set"] = merge(dict(one.get("set", {})), table_of(point))
    return plan_of({**one, "schemes": [row["scheme"]], "seeds": [int(row["seed"])]})


def main() -> None:
    """List the missing runs, or run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--list", action="store_true", help="list the missing runs and exit")
    arguments = parser.parse_args()
    with NOT_RUN.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if not arguments.figures or row["figure"] in arguments.figures]
    execution = wayfare.Execution(
        device=arguments.device, precision=checked_precision(arguments.precision), keep_model=False
    )
    for number, row in enumerate(rows, start=1):
        plan = study_of(row)
        print(f"{number}/{len(rows)} {plan.study.name}", flush=True)
        if not arguments.list:
            with wayfare.RunProgress() as progress:
                sweep(plan, out=arguments.out, jobs=1, execution=execution, progress=progress)


if __name__ == "__main__":
    main()
