"""Skewed data make devices drift: compare the paper's rules with the preset `recommended`, in the same worlds."""

import tempfile
from statistics import fmean

import wayfare
from wayfare.records import summarise_run

SMALL = ("rounds=200", "fleet.devices=10", "fleet.energy_total_joules=50", "learning.evaluate_every_rounds=50")
SEEDS = (0, 1)


def scores(preset: str, folder: str) -> list[float]:
    scenario = wayfare.load(preset, SMALL)
    return [100 * summarise_run(wayfare.run(scenario, "mads", seed=seed, out=folder)).score for seed in SEEDS]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        paper, ours = scores("fashion-small", folder), scores("recommended", folder)
    for seed, before, after in zip(SEEDS, paper, ours, strict=True):
        print(f"seed {seed}: {before:.1f} % with the paper's rules, {after:.1f} % with `recommended`")
    print(f"paired difference: {fmean(ours) - fmean(paper):+.1f} points")


if __name__ == "__main__":
    main()
