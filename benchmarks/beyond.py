"""The gain of each step beyond MADS, alone and combined, in the same worlds.

    python benchmarks/beyond.py --out FILE.jsonl [--preset fashion-small] [--set a.b=c ...] [--seeds 0 1 2 3 4]
    python benchmarks/beyond.py --out FILE.jsonl --variant 'step 0.1: mads server.optimizer=momentum server.step=0.1'
    python benchmarks/beyond.py --out FILE.jsonl --table

Without --variant it runs the options against drift, alone and combined. It writes one line of JSON per run and skips
runs that are in the file. Differences are paired: same seed, same world.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import wayfare
from wayfare.records import summarise_run
from wayfare.records.statistics import difference, estimate

ADJUSTED, MOMENTUM = "learning.local_loss=logit-adjusted", "server.optimizer=momentum"
ADAM, STEP, MEAN = "server.optimizer=adam", "server.step=5.0", "server.average_rounds=100"
VARIANTS = (
    "MADS: mads",
    f"recommended loss, step and mean: mads {ADJUSTED} {STEP} {MEAN}",
    f"logit-adjusted: mads {ADJUSTED}",
    "prox: mads learning.local_loss=prox",
    f"step 5: mads {STEP}",
    f"mean of 100: mads {MEAN}",
    f"momentum: mads {MOMENTUM}",
    f"adam: mads {ADAM}",
    f"logit-adjusted, step 5: mads {ADJUSTED} {STEP}",
    f"step 5, mean of 100: mads {STEP} {MEAN}",
    f"logit-adjusted, momentum: mads {ADJUSTED} {MOMENTUM}",
    f"logit-adjusted, adam: mads {ADJUSTED} {ADAM}",
    "Optimal: optimal",
)


def measure(
    preset: str, overrides: Sequence[str], variant: str, seed: int, execution: wayfare.Execution
) -> dict[str, Any]:
    """One run of a variant, written as `NAME: SCHEME OVERRIDE ...`."""
    name, _, rest = variant.partition(":")
    scheme, *own = rest.split()
    scenario = wayfare.load(preset, [*overrides, *own])
    with tempfile.TemporaryDirectory() as folder:
        summary = summarise_run(wayfare.run(scenario, scheme, seed=seed, out=folder, execution=execution))
    return {
        "setting": " ".join([preset, *overrides]),
        "variant": name,
        "seed": seed,
        "score": summary.score,
        "energy_joules": summary.energy_joules,
        "kept_fraction": summary.kept_fraction,
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown, one table per setting. Differences are to the first variant of a setting."""
    for setting in dict.fromkeys(row["setting"] for row in rows):
        yield f"\n{setting}\n"
        yield "| variant | seeds | accuracy, % | difference | p | energy, J | kept, % |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
        runs: dict[str, dict[int, dict[str, Any]]] = {}
        for row in rows:
            if row["setting"] == setting:
                runs.setdefault(row["variant"], {})[row["seed"]] = row
        first = next(iter(runs.values()))
        for name, mine in runs.items():
            score = estimate([100 * row["score"] for row in mine.values()])
            paired = [100 * (row["score"] - first[seed]["score"]) for seed, row in mine.items() if seed in first]
            gain = difference(paired) if mine is not first and paired else None
            apart = f"{gain.mean:+.1f} ± {gain.ci95 or 0:.1f} | {gain.p or 1:.2g}" if gain else " | "
            joules, kept = (
                estimate([row[key] for row in mine.values()]).mean for key in ("energy_joules", "kept_fraction")
            )
            yield (
                f"| {name} | {score.seeds} | {score.mean:.1f} ± {score.ci95 or 0:.1f} | {apart} "
                f"| {joules:.0f} | {100 * kept:.1f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="fashion-small")
    parser.add_argument("--set", nargs="*", default=[], dest="overrides")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--variant", action="append", dest="variants")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--table", action="store_true", help="print the results in the file and exit")
    arguments = parser.parse_args()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    rows = [json.loads(line) for line in lines]
    if arguments.table:
        print("\n".join(table(rows)))
        return
    done = {(row["setting"], row["variant"], row["seed"]) for row in rows}
    setting = " ".join([arguments.preset, *arguments.overrides])
    execution = wayfare.Execution(device=arguments.device, precision=arguments.precision)
    for seed in arguments.seeds:
        for variant in arguments.variants or VARIANTS:
            if (setting, variant.partition(":")[0], seed) in done:
                continue
            row = measure(arguments.preset, arguments.overrides, variant, seed, execution)
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{row['variant']}, seed {seed}: {100 * row['score']:.1f} %, {row['energy_joules']:.0f} J", flush=True
            )


if __name__ == "__main__":
    main()
