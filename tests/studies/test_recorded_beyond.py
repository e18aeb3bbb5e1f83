"""The full-size runs beyond the paper are all on record, and the README quotes what they say."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest
from tests.studies.test_recorded_figures import agrees, rows_of, table_after

from wayfare.records.statistics import estimate
from wayfare.studies.study import load_study

ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / "docs/results/beyond-cifar10-runs.csv"
AT_THE_PAPERS_RATE = ("beyond-cifar10", "beyond-cifar10-controls")


def scores(concentration: str, loss: str, scheme: str, energy_min_joules: str = "50.0") -> list[float]:
    """In per cent, by seed."""
    wanted = {
        "learning.partition.concentration": concentration,
        "learning.local_loss": loss,
        "scheme": scheme,
        "fleet.energy_min_joules": energy_min_joules,
    }
    found = [row for row in rows_of(RUNS) if row["study"] in AT_THE_PAPERS_RATE]
    rows = [row for row in found if all(row[name] == value for name, value in wanted.items())]
    return [100 * float(row["score"]) for row in sorted(rows, key=lambda row: int(row["seed"]))]


@pytest.mark.parametrize("name", [*AT_THE_PAPERS_RATE, "beyond-cifar10-rate", "beyond-cifar10-tuned"])
def test_every_run_of_the_study_is_on_record(name: str) -> None:
    plan = load_study(name)
    columns = [column for column in rows_of(RUNS)[0] if "." in column]

    def values(point: object) -> tuple[str, ...]:
        found = point.scenario.model_dump()  # type: ignore[attr-defined]
        return tuple(str(_dotted(found, column)) for column in columns)

    expected = [
        (values(point), scheme, str(seed)) for point in plan.points for scheme in plan.schemes for seed in plan.seeds
    ]
    found = [
        (tuple(row[column] for column in columns), row["scheme"], row["seed"])
        for row in rows_of(RUNS)
        if row["study"] == name
    ]
    assert sorted(found) == sorted(expected)


def _dotted(table: dict[str, object], path: str) -> object:
    first, _, rest = path.partition(".")
    value = table[first]
    return _dotted(value, rest) if rest else value  # type: ignore[arg-type]


def test_a_score_is_the_mean_of_the_last_evaluations() -> None:
    evaluations = defaultdict(list)
    for row in rows_of(ROOT / "docs/results/beyond-cifar10-evaluations.csv"):
        evaluations[row["key"]].append((int(row["round"]), float(row["score"])))
    runs = rows_of(RUNS)
    assert evaluations.keys() == {run["key"] for run in runs}
    for run in runs:
        last = [score for _, score in sorted(evaluations[run["key"]])[-5:]]
        assert float(run["score"]) == pytest.approx(fmean(last), rel=1e-9)


@pytest.mark.parametrize(("concentration", "row"), [("0.1", "rho = 0.1, 1 MHz"), ("1.0", "rho = 1, 20 kHz")])
def test_the_readme_credits_the_loss_and_the_server_and_then_the_scheme(concentration: str, row: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    line = next(line for line in readme.splitlines() if line.startswith(f"| CIFAR-10, {row}"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    paper = scores(concentration, "plain", "mads")
    shown = [paper] + [scores(concentration, "logit-adjusted", name) for name in ("mads", "afl-spar:paced", "mads-rd")]
    assert [float(cell.removesuffix(" %")) for cell in cells[1:5]] == [
        pytest.approx(fmean(values), abs=0.0501) for values in shown
    ]
    same, ours = shown[1], shown[3]
    for cell, gains in zip(
        cells[5:7],
        ([b - a for a, b in zip(paper, same, strict=True)], [b - a for a, b in zip(same, ours, strict=True)]),
        strict=True,
    ):
        found = estimate(gains)
        mean, half = map(float, re.findall(r"[\d.]+", cell))
        assert mean == pytest.approx(abs(found.mean), abs=0.0501)
        assert half == pytest.approx(found.ci95, abs=0.0501)


PAGE = ROOT / "docs/results/beyond.md"
RATE = "learning.learning_rate"


def tuned(study: str, concentration: str) -> list[dict[str, str]]:
    found = [row for row in rows_of(RUNS) if row["study"] == study]
    return [row for row in found if row["learning.partition.concentration"] == concentration]


@pytest.mark.parametrize(("place", "concentration"), [(0, "0.1"), (1, "1.0")])
def test_the_best_rate_of_the_tuning_table_is_that_of_the_tuned_runs(place: int, concentration: str) -> None:
    rates = ["0.0025", "0.005", "0.01", "0.02"]
    runs = tuned("beyond-cifar10-rate", concentration)
    means = [fmean(100 * float(run["score"]) for run in runs if run[RATE] == rate) for rate in rates]
    _, *cells = table_after(PAGE, "learning rate | 0.0025")[place]
    assert [float(cell.strip("*")) for cell in cells] == pytest.approx(means, abs=0.0501)
    best = rates[means.index(max(means))]
    assert [rate for rate, cell in zip(rates, cells, strict=True) if cell.startswith("**")] == [best]
    assert {run[RATE] for run in tuned("beyond-cifar10-tuned", concentration)} == {best}


@pytest.mark.parametrize(("place", "concentration"), [(0, "0.1"), (1, "1.0")])
def test_tuned_mads_is_compared_on_the_seeds_it_has(place: int, concentration: str) -> None:
    runs = sorted(tuned("beyond-cifar10-tuned", concentration), key=lambda run: int(run["seed"]))
    base = [100 * float(run["score"]) for run in runs]
    lines = PAGE.read_text(encoding="utf-8").split("| difference to tuned MADS |")[1].splitlines()[2:]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    rows = [row for row in table if row[1]]
    (_, *first), *others = rows[6 * place : 6 * place + 6]
    assert [float(cell) for cell in first[: len(base)]] == pytest.approx(base, abs=0.0501)
    assert float(first[3]) == pytest.approx(fmean(base), abs=0.0501)
    for name, *cells in others:
        loss = "logit-adjusted" if "loss and server" in name else "plain"
        scheme = "mads-rd" if "mads-rd" in name else "afl-spar:paced" if "AFL" in name else "mads"
        mine = scores(concentration, loss, scheme)[: len(base)]
        assert [float(cell) for cell in cells[: len(base)]] == pytest.approx(mine, abs=0.0501), name
        assert float(cells[3]) == pytest.approx(fmean(mine), abs=0.0501), name
        assert agrees(cells[4].strip("*"), [a - b for a, b in zip(mine, base, strict=True)]), name
