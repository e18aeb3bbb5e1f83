"""Add finished runs to the results on a pre-trained network, and write the tables of their page.

    python scripts/record_pretrained.py [STUDY_FOLDER ...]

It adds the runs of study folders, such as runs/pretrained-cifar10-trained, to docs/results/pretrained-TASK-runs.csv and
pretrained-TASK-evaluations.csv. A new run replaces a recorded one of the same study, point, scheme and seed. In
pretrained.md it replaces the tables between `<!-- TASK: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from math import log10
from pathlib import Path
from statistics import fmean
from typing import Any

from wayfare.records.statistics import half_width_95
from wayfare.scenario import Scenario, parse
from wayfare.studies.export import evaluation_rows, run_rows
from wayfare.studies.results import read_results
from wayfare.studies.study import Plan, Point, load_study

RESULTS = Path("docs/results")
TASKS = ("cifar10", "fashion")
RHO, RADIO, SEED = "learning.partition.concentration", "radio.bandwidth_hz", "seed"
RHOS, RADIOS = ("0.1", "1.0", "10.0"), ("20000.0", "200000.0", "1000000.0")
RADIO_NAMES = dict(zip(RADIOS, ("20 kHz", "200 kHz", "1 MHz"), strict=True))
# The columns of the frontier, for the whole fleet.
MBITS, JOULES = (0.5, 10, 40, 400, 4_000, 12_000), (0.01, 0.1, 1, 10, 100, 2_000)
# The point of the first table.
FIRST = {RHO: "0.1", RADIO: "20000.0"}

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Way:
    """A row of the tables: a scheme in a study, at the points with these settings."""

    label: str
    scheme: str
    study: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def has(self, task: str, row: Row) -> bool:
        """Whether a run belongs to this row."""
        return (row["study"], row["scheme"]) == (f"pretrained-{task}{self.study}", self.scheme) and all(
            row.get(column, "") == value for column, value in self.settings.items()
        )

    def points(self, plan: Plan) -> list[Point]:
        """The points of a study that belong to this row."""
        return [
            point
            for point in plan.points
            if all(set_to(point.scenario, column) == value for column, value in self.settings.items())
        ]


def trained(label: str, part: str, blocks: int, rate: float) -> Way:
    """A row of what trains more than the head."""
    settings = {"learning.trained": part, "learning.trained_blocks": blocks, "learning.learning_rate": rate}
    once = {"server.average_rounds": ""}
    return Way(label, "mads-rd", "-trained", {column: str(value) for column, value in settings.items()} | once)


FROZEN = (
    Way("class means (`statistics:means`)", "statistics:means"),
    Way("statistics", "statistics"),
    Way("head, MADS-RD", "mads-rd"),
    Way("head, MADS", "mads"),
)
TRAINED = (
    trained("norms in 7 blocks, MADS-RD", "norms", 7, 0.03),
    trained("adapters in 7 blocks, MADS-RD", "adapters", 7, 0.03),
    trained("adapters in 11 blocks, MADS-RD", "adapters", 11, 0.02),
    trained("last 4 blocks, MADS-RD", "last-block", 4, 0.03),
    trained("everything, MADS-RD", "everything", 7, 0.01),
    Way("from scratch, recommended settings", "mads-rd", "-scratch-best"),
    Way("from scratch, MADS", "mads", "-scratch"),
)
CONTINUED = Way("head after statistics", "mads-rd:from-statistics", "-continued")
ADAPTED = Way("adapters in 11 blocks after statistics", "mads-rd:from-statistics", "-continued-adapters")
WAYS = {"cifar10": (*FROZEN, CONTINUED, ADAPTED, *TRAINED), "fashion": (*FROZEN, CONTINUED, *TRAINED)}


def read_rows(file: Path) -> list[Row]:
    """The rows of a CSV file, as text."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Write a CSV file."""
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def place_of(row: Row) -> tuple[str, ...]:
    """Study, settings, scheme and seed of a row. Some records leave out what has no effect, or is the default."""
    settings = {column: str(row[column]) for column in row if "." in column}
    if settings.get("learning.trained") == "head":
        settings["learning.trained"] = ""
    if row["scheme"].startswith("statistics"):
        settings["learning.learning_rate"] = ""
    return (row["study"], row["scheme"], str(row[SEED]), *settings.values())


def added(folder: Path, columns: Sequence[str], rows_of: Callable[..., list[dict[str, Any]]]) -> list[Row]:
    """The rows of a study folder, with the recorded columns."""
    results = read_results(folder)
    scenarios = {run.key: parse(results.manifest.scenarios[run.point]) for run in results.manifest.runs}
    found = []
    for row in rows_of(results):
        scenario = scenarios[row["key"]]
        found.append({column: str(row[column]) if column in row else set_to(scenario, column) for column in columns})
    return found


def set_to(scenario: Scenario, column: str) -> str:
    """The value of a setting in a scenario; empty if it has no effect there."""
    learning = scenario.learning
    if column.startswith("learning.trained") and (not learning.backbone or learning.trained == "head"):
        return ""
    if column == "server.average_rounds" and not scenario.server.average_rounds:
        return ""
    return str(reduce(getattr, column.split("."), scenario))


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Old rows whose run has no new ones, and the new ones, with the rows of a study together."""
    replaced = {place_of(row) for row in new}
    rows = [row for row in old if place_of(row) not in replaced] + list(new)
    studies = list(dict.fromkeys(row["study"] for row in rows))
    return sorted(rows, key=lambda row: studies.index(row["study"]))


def mean(runs: Sequence[Row], column: str) -> float:
    """The mean of a column over runs."""
    return fmean(float(run[column]) for run in runs)


def accuracy(runs: Sequence[Row]) -> str:
    """The mean accuracy in per cent, with half of its 95 % interval if there are several seeds."""
    if not runs:
        return "-"
    scores = [100 * float(run["score"]) for run in runs]
    half = half_width_95(scores)
    return f"{fmean(scores):.1f}" + ("" if half is None else f" ± {half:.1f}")


def last_within(evaluations: Sequence[Row], column: str, limit: float) -> str:
    """The accuracy in per cent of the last evaluation that spent at most this; a dash if there is none."""
    within = [row for row in evaluations if float(row[column]) <= limit]
    return f"{100 * float(within[-1]['score']):.1f}" if within else "-"


def short(number: float) -> str:
    """Two or three digits, or whole numbers."""
    return f"{number:.2g}" if number < 1 else f"{number:,.{max(0, 2 - int(log10(number)))}f}"


def seeds_of(runs: Sequence[Row]) -> str:
    """The seeds that ran: `0 to 9`, or a list."""
    seeds = sorted(int(run[SEED]) for run in runs)
    if len(set(seeds)) < len(seeds):
        raise SystemExit(f"{runs[0]['study']}, {runs[0]['scheme']}: several runs of a seed; name a setting more")
    is_range = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if is_range else ", ".join(map(str, seeds))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (headings, ["---"] * len(headings), *rows)]


class Tables:
    """The tables of a task."""

    def __init__(self, task: str) -> None:
        self.task = task
        self._runs = read_rows(RESULTS / f"pretrained-{task}-runs.csv")
        self._evaluations = read_rows(RESULTS / f"pretrained-{task}-evaluations.csv")

    def runs(self, way: Way, wanted: Mapping[str, str]) -> list[Row]:
        """The runs of a row with these values."""
        return [
            run
            for run in self._runs
            if way.has(self.task, run) and all(run[column] == value for column, value in wanted.items())
        ]

    def start(self) -> list[str]:
        """Everything at the narrowest radio and the most skewed data."""
        rows = []
        for way in WAYS[self.task]:
            if runs := self.runs(way, FIRST):
                seed_0 = accuracy([run for run in runs if run[SEED] == "0"])
                spent = short(mean(runs, "bits") / 1e6), short(mean(runs, "energy_joules"))
                rows.append((way.label, seeds_of(runs), accuracy(runs), seed_0, *spent))
        return table(("", "seeds", "accuracy, %", "seed 0", "Mbit", "J"), rows)

    def divisions(self) -> list[str]:
        """What learns on frozen features, by division, over all seeds."""
        rows = [(way.label, *(accuracy(self.runs(way, FIRST | {RHO: rho})) for rho in RHOS)) for way in FROZEN]
        return table(("", *(f"rho = {float(rho):g}" for rho in RHOS)), rows)

    def radios(self) -> list[str]:
        """What trains more than the head, by division and radio, on seed 0."""
        rows = []
        for way in TRAINED:
            cells = [
                [accuracy(self.runs(way, {RHO: rho, RADIO: radio, SEED: "0"})) for radio in RADIOS] for rho in RHOS
            ]
            rows.append((way.label, *(" / ".join(cell) for cell in cells)))
        return table((" / ".join(RADIO_NAMES.values()), *(f"rho = {float(rho):g}" for rho in RHOS)), rows)

    def energy(self) -> list[str]:
        """The energy of the fleet in joules by radio, over all seeds with frozen features and else on seed 0."""
        rows = []
        for way, seeds in (*((way, {}) for way in FROZEN[1:]), *((way, {SEED: "0"}) for way in TRAINED)):
            found = [self.runs(way, FIRST | {RADIO: radio} | seeds) for radio in RADIOS]
            rows.append((way.label, *(short(mean(runs, "energy_joules")) if runs else "-" for runs in found)))
        return table(("", *RADIO_NAMES.values()), rows)

    def frontier_bits(self) -> list[str]:
        """The accuracy that a number of bits of the fleet buys, by radio, on seed 0."""
        return self._frontier("bits", 1e6, MBITS, "Mbit")

    def frontier_joules(self) -> list[str]:
        """The accuracy that an energy of the fleet buys, by radio, on seed 0."""
        return self._frontier("energy_joules", 1.0, JOULES, "J")

    def _frontier(self, column: str, size: float, limits: Sequence[float], unit: str) -> list[str]:
        rows = []
        for way in WAYS[self.task]:
            found = [self._evaluated(way, radio) for radio in RADIOS]
            cells = [[last_within(each, column, limit * size) for each in found] for limit in limits]
            if any(found):
                rows.append((way.label, *("-" if set(cell) == {"-"} else " / ".join(cell) for cell in cells)))
        return table((" / ".join(RADIO_NAMES.values()), *(f"{limit:,g} {unit}" for limit in limits)), rows)

    def _evaluated(self, way: Way, radio: str) -> list[Row]:
        """The evaluations of seed 0 at a radio, with the most skewed data, from the first upload on."""
        wanted = FIRST | {RADIO: radio, SEED: "0"}
        return [
            row
            for row in self._evaluations
            if way.has(self.task, row) and all(row[column] == value for column, value in wanted.items())
            if float(row["bits"])
        ]

    def seeds(self) -> list[str]:
        """Other points of which several seeds ran."""
        rows = []
        for way, rho, radio in product(TRAINED, RHOS, RADIOS):
            runs = self.runs(way, {RHO: rho, RADIO: radio})
            if len(runs) > 1 and {RHO: rho, RADIO: radio} != FIRST:
                spent = short(mean(runs, "bits") / 1e6), short(mean(runs, "energy_joules"))
                place = f"{float(rho):g}", RADIO_NAMES[radio]
                rows.append((way.label, *place, seeds_of(runs), accuracy(runs), *spent))
        return table(("", "rho", "radio", "seeds", "accuracy, %", "Mbit", "J"), rows)

    def missing(self) -> list[str]:
        """How many runs of the studies are on record."""
        rows = []
        for way in WAYS[self.task]:
            plan = load_study(f"pretrained-{self.task}{way.study}")
            points = way.points(plan)
            lacking = [len(self.lacking(way, plan, seed)) for seed in plan.seeds]
            at_seed_0 = f"{len(points) - lacking[0]} of {len(points)}"
            planned = len(points) * len(lacking)
            rows.append((way.label, at_seed_0, f"{planned - sum(lacking)} of {planned}"))
        return table(("", "points that ran with seed 0", "runs"), rows)

    def lacking(self, way: Way, plan: Plan, seed: int) -> list[Point]:
        """The points of a row without a run of this seed."""
        return [
            point
            for point in way.points(plan)
            if not self.runs(
                way, {column: set_to(point.scenario, column) for column in (RHO, RADIO)} | {SEED: str(seed)}
            )
        ]


def written(page: str) -> str:
    """The page with new tables."""
    tables = {task: Tables(task) for task in TASKS}

    def filled(match: re.Match[str]) -> str:
        lines = getattr(tables[match["task"]], match["name"])()
        return "\n".join([match[1], "", *lines, "", "<!-- end -->"])

    return re.sub(r"(<!-- (?P<task>\w+): (?P<name>\w+) -->).*?<!-- end -->", filled, page, flags=re.DOTALL)


def main() -> None:
    """Merge and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="STUDY_FOLDER")
    given = parser.parse_args().folders
    for folder in given:
        if not folder.name.startswith(tuple(f"pretrained-{task}" for task in TASKS)):
            parser.error(f"{folder}: no study on a pre-trained network")
    for task, kind in product(TASKS, ("runs", "evaluations")):
        folders = [folder for folder in given if folder.name.startswith(f"pretrained-{task}")]
        if folders:
            file = RESULTS / f"pretrained-{task}-{kind}.csv"
            old = read_rows(file)
            rows_of = run_rows if kind == "runs" else evaluation_rows
            write_rows(merged(old, [row for folder in folders for row in added(folder, list(old[0]), rows_of)]), file)
    page = RESULTS / "pretrained.md"
    page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
