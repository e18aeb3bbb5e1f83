"""Classes of which no device has enough samples: their statistics are never sent, and users learn it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.report.test_verdict import runs
from torch import nn

import wayfare
from wayfare.errors import ScenarioError
from wayfare.learning.tasks import Task
from wayfare.methods import make_method
from wayfare.records import RunSummary, run_json
from wayfare.report.caveats import withheld
from wayfare.report.study_json import results_json
from wayfare.report.tables import comparison_table
from wayfare.report.write import write_report
from wayfare.studies import summarise
from wayfare.studies.single import Execution
from wayfare.world import Withheld, draw_world, withheld_classes, world_for

SET = ("rounds=30", "fleet.devices=2", "learning.batch_size=4", "learning.partition.kind=iid")
LABELS = np.array(["cat"] * 60 + ["dog"] * 30 + ["emu"] * 3)


def animals(kinds: np.ndarray | None = None) -> Task:
    inputs = np.eye(3, 4)[np.unique(LABELS, return_inverse=True)[1]] + np.random.default_rng(0).normal(size=(93, 4))
    pair = (inputs.astype(np.float32), LABELS)
    return wayfare.own_task("animals", train=pair, test=pair, network=nn.Linear(4, 3), kinds=kinds)


def found(scheme: str, task: Task | None = None) -> Withheld | None:
    scenario = wayfare.load("fashion-small", [*SET])
    return withheld_classes(world_for(draw_world(scenario, 0, task or animals()), make_method(scheme, scenario)))


def test_classes_that_no_device_can_report_are_named() -> None:
    assert found("mads") is None
    assert found("statistics + class-statistics(min_count=1)") is None
    assert found("statistics") == Withheld(5, ("emu",))
    assert found("mads-rd:from-statistics + class-statistics(min_count=20)") == Withheld(20, ("dog", "emu"))


def test_groups_of_a_partition_are_no_classes() -> None:
    assert found("statistics", animals(kinds=np.arange(93) % 2)) == Withheld(5, ("2",))


@pytest.mark.parametrize("scheme", ["statistics", "mads-rd:from-statistics"])
def test_a_minimum_that_no_device_reaches_is_rejected(scheme: str) -> None:
    rule = (
        r"min_count = 61: .*: no device would ever send statistics, because none has more than \d\d samples of a class"
    )
    with pytest.raises(ScenarioError, match=rule):
        found(f"{scheme} + class-statistics(min_count=61)")


def test_a_run_warns_at_its_start_and_results_keep_the_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scenario, scheme = wayfare.load("fashion-small", [*SET]), "six = statistics + class-statistics(min_count=6)"
    reason = "statistics never choose classes of which no device has min_count = 6 samples: classes emu"
    execution = Execution(device="cpu")
    done = wayfare.compare(scenario, [scheme], seeds=1, task=animals(), out=tmp_path, execution=execution, jobs=1)
    assert f"six, seed 0: {reason}" in caplog.text
    warning = f"six: {reason} (seed 0)"
    assert results_json(done)["warnings"] == [warning]
    page, text = write_report(done.folder)
    assert warning in page.read_text(encoding="utf-8")
    assert f"**Warning:** {warning}." in text.read_text(encoding="utf-8")
    (record,) = done.runs
    assert run_json(record)["withheld"] == {"min_count": 6, "classes": ("emu",)}
    console = Console(width=200)
    with console.capture() as shown:
        console.print(comparison_table(summarise([record]), [record], width=200))
    assert reason in shown.get()


def test_one_warning_for_each_scheme_lists_classes_and_worlds() -> None:
    def run(seed: int, *classes: str, scheme: str = "statistics") -> RunSummary:
        (one,) = runs(scheme, [0.5])
        return replace(one, seed=seed, withheld=Withheld(5, classes) if classes else None)

    seen = [("", run(0, "emu")), ("", run(1)), ("", run(2, "cat", "dog")), ("", run(3, "emu"))]
    reason = "statistics never choose classes of which no device has min_count = 5 samples"
    assert withheld([*seen, ("speed 5", run(0, "cat", scheme="mine"))]) == [
        f"Statistics: {reason}: classes emu (seed 0, seed 3); classes cat, dog (seed 2)",
        f"mine: {reason}: classes cat (speed 5, seed 0)",
    ]
