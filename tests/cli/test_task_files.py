"""Tasks from files, in every place where a scenario names a task: `learning.task = "mine.py:task"`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import wayfare
from tests.cli.conftest import Finished
from wayfare.errors import InputError, ScenarioError
from wayfare.field.runtime.work import Work
from wayfare.learning.tasks import load_task
from wayfare.methods import make_method
from wayfare.scenario import Scenario
from wayfare.scenario.model import Learning
from wayfare.studies import Safeguards
from wayfare.studies.jobs import Job, Shared, perform
from wayfare.studies.keys import run_key
from wayfare.studies.results import StudyResults
from wayfare.studies.resuming import resume
from wayfare.studies.single import Execution
from wayfare.studies.study import load_study
from wayfare.studies.sweeping import sweep

MINE = """
import numpy as np
from torch import nn

import wayfare

DATA = {data!r}

def network():
    return nn.Linear(3, 2)

def task():
    inputs = np.load(DATA)
    return wayfare.own_task("halves", train=(inputs, LABELS(inputs)), test=(inputs, LABELS(inputs)), network=network)

def LABELS(inputs):
    return (inputs[:, 0] > {threshold}).astype(int)

ready = task()

def wide(learning):
    assert learning.batch_size == 4
    return task()

def broken():
    raise ValueError("no such sensor")

number = 5

def weights():
    inputs = np.load(DATA)
    data = inputs, LABELS(inputs)
    return wayfare.own_task("halves", train=data, test=data, network=nn.Linear(3, 2))
"""

SETTINGS = ("rounds=12", "fleet.devices=3", "learning.batch_size=4", "learning.evaluate_every_rounds=6")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with tasks and its data; no two tests share its name, since a module is imported once."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_data(tmp_path, seed=0)
    file = tmp_path / f"task_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(MINE.format(data=str(tmp_path / "inputs.npy"), threshold=0))
    return file


def write_data(folder: Path, seed: int) -> None:
    np.save(folder / "inputs.npy", np.random.default_rng(seed).standard_normal((60, 3)).astype(np.float32))


def scenario_of(mine: Path, name: str = "task") -> Scenario:
    return wayfare.load("fashion-small", [*SETTINGS, f"learning.task={mine}:{name}"])


def scores(results: StudyResults) -> list[list[float]]:
    return [run.evaluations["score"].tolist() for run in results.runs]


def key_of(scenario: Scenario) -> str:
    return run_key(scenario, make_method("mads", scenario), 0, Execution())


@pytest.mark.parametrize("name", [":task", ":ready", ":wide", ""])
def test_a_file_gives_a_task_by_a_function_or_as_an_object(name: str, mine: Path) -> None:
    task = load_task(Learning(task=f"{mine}{name}", batch_size=4))
    assert (task.name, task.model.parameters) == ("halves", 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":nobody", r"has no nobody; it has .*task"),
        (":number", "number is int; must be a task, or a function that returns one"),
        (":network", "network returned Linear; must return a task"),
        (":broken", r"broken failed: \w+\.py, line \d+, in broken: ValueError: no such sensor"),
    ],
)
def test_what_is_no_task_is_refused(name: str, message: str, mine: Path) -> None:
    with pytest.raises(ScenarioError, match=rf"learning\.task = .*{message}"):
        load_task(Learning(task=f"{mine}{name}"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"learning\.task = .*: file .* does not exist"):
        load_task(Learning(task=f"{tmp_path}/nowhere.py:task"))


def test_a_scenario_file_names_the_file_beside_it(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text(f'extends = "fashion-small"\nlearning.task = "{mine.name}:task"\n')
    assert wayfare.load(tmp_path / "here.toml").learning.task == f"{mine}:task"


def test_worker_processes_and_this_process_come_to_the_same_numbers(mine: Path, tmp_path: Path) -> None:
    scenario = scenario_of(mine)
    here, there = (
        wayfare.compare(scenario, ["mads", "afl"], seeds=2, jobs=jobs, out=tmp_path / str(jobs)) for jobs in (1, 2)
    )
    assert scores(here) == scores(there)
    assert len(here.runs) == 4


def test_every_process_begins_with_the_same_weights_of_a_module(mine: Path, tmp_path: Path) -> None:
    scenario = scenario_of(mine, "weights")
    assert key_of(scenario) == key_of(scenario)
    assert len(wayfare.compare(scenario, ["mads"], seeds=2, jobs=2, out=tmp_path).runs) == 2


def test_its_code_and_its_data_count_in_the_key_and_its_place_does_not(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of(scenario_of(mine))
    assert key_of(scenario_of(mine)) == before
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = mine.rename(elsewhere / mine.name)
    monkeypatch.delitem(sys.modules, mine.stem)
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])
    assert key_of(scenario_of(moved)) == before
    moved.write_text(moved.read_text().replace("> 0)", "> 1)"))
    assert key_of(scenario_of(moved)) != before


def test_changed_data_run_again(mine: Path, tmp_path: Path) -> None:
    scenario = scenario_of(mine)
    first = wayfare.compare(scenario, ["mads"], seeds=1, jobs=1, out=tmp_path / "runs")
    again = wayfare.compare(scenario, ["mads"], seeds=1, jobs=1, out=tmp_path / "runs")
    assert first.runs[0].folder == again.runs[0].folder
    write_data(tmp_path, seed=1)
    changed = wayfare.compare(scenario, ["mads"], seeds=1, jobs=1, out=tmp_path / "runs")
    assert changed.runs[0].folder != first.runs[0].folder
    assert scores(changed) != scores(first)


def stop_at(round_: int) -> Callable[[int], None]:
    def stop(now: int) -> None:
        if now == round_:
            raise KeyboardInterrupt

    return stop


def test_an_interrupted_run_resumes_unless_the_task_changed(mine: Path, tmp_path: Path) -> None:
    scenario, out = scenario_of(mine), tmp_path / "runs"
    whole = wayfare.run(scenario, out=tmp_path / "whole")
    eager = Execution(safeguards=Safeguards(checkpoint_every_rounds=1))
    with pytest.raises(KeyboardInterrupt):
        wayfare.run(scenario, out=out, execution=eager, on_round=stop_at(8))
    (partial,) = out.rglob("*.partial")
    mine.write_text(mine.read_text().replace("> 0)", "> 1)"))
    with pytest.raises(InputError, match=r"the content of task\.train"):
        resume(partial)
    mine.write_text(mine.read_text().replace("> 1)", "> 0)"))
    resumed = resume(partial).model
    assert resumed is not None
    assert whole.model is not None
    assert torch.equal(resumed, whole.model)


def test_a_study_names_it_beside_itself_and_varies_it(mine: Path, tmp_path: Path) -> None:
    settings, tasks = "\n".join(SETTINGS), f'["{mine.name}:wide", "fashion-small"]'
    (tmp_path / "study.toml").write_text(
        f'seeds = 1\nschemes = ["mads"]\n[set]\n{settings}\n[grid]\nlearning.task = {tasks}\n'
    )
    done = sweep(load_study(tmp_path / "study.toml"), out=tmp_path / "runs", jobs=1)
    assert len(done.results.runs) == 2


def test_a_job_whose_task_changed_after_it_was_planned_is_refused(mine: Path, tmp_path: Path) -> None:
    scenario = scenario_of(mine)
    method = make_method("mads", scenario)
    job = Job(
        name="mads",
        scenario=scenario,
        scheme=method,
        seed=0,
        work=tmp_path / "work",
        folder=tmp_path / "home",
        key=key_of(scenario),
    )
    mine.write_text(mine.read_text().replace("> 0)", "> 1)"))
    with pytest.raises(InputError, match=r"its code or data changed after this run was planned, .*; start again"):
        perform(job, Shared(execution=Execution()), None)


def test_the_command_line_takes_it(wayfare_command: Callable[..., Finished], mine: Path, tmp_path: Path) -> None:
    words = [word for setting in (*SETTINGS, f"learning.task={mine}:task") for word in ("--set", setting)]
    out = ("--out", tmp_path / "runs", "--json")
    assert wayfare_command("run", "fashion-small", *words, *out).code == 0
    compared = wayfare_command("compare", "fashion-small", "--schemes", "mads", "--seeds", 1, *words, *out)
    assert compared.code == 0, compared.err
    planned = wayfare_command("plan", "fashion-small", *words, "--json")
    assert planned.code == 0, planned.err
    assert wayfare_command("data", "who", "fashion-small", *words).code == 0
    wrong = [word.replace(":task", ":nobody") if isinstance(word, str) else word for word in words]
    refused = wayfare_command("run", "fashion-small", *wrong, *out)
    assert refused.code == 2
    assert "has no nobody" in refused.err


def test_in_the_field_hosts_may_keep_it_in_different_places(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Work(scenario=scenario_of(mine)).layout
    elsewhere = mine.parent / "elsewhere"
    elsewhere.mkdir()
    moved = mine.rename(elsewhere / mine.name)
    monkeypatch.delitem(sys.modules, mine.stem)
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])
    assert Work(scenario=scenario_of(moved)).layout == here


BROKEN_NETWORK = """
import torch
from torch import nn
from wayfare import local_task

class Network(nn.Linear):
    def forward(self, inputs):
        if {when}:
            raise KeyError("sensor")
        return super().forward(inputs)

task = local_task("broken", network=lambda: Network(3, 2), sample=torch.zeros(3), classes=2)
"""


@pytest.mark.parametrize(
    ("name", "when", "message"),
    [
        ("broken_at_once", "True", r"learning\.task = .*cannot be imported: broken_at_once\.py, line 9, in forward: "),
        ("broken_by_data", "len(inputs) > 2", r"error: broken_by_data\.py, line 9, in forward: KeyError: 'sensor' "),
    ],
)
def test_an_error_in_an_own_network_is_one_line_with_its_place(
    name: str, when: str, message: str, wayfare_command: Callable[..., Finished], tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(BROKEN_NETWORK.format(when=when))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "some.csv").write_text("a,b,c,label\n" + "1,2,3,0\n4,5,6,1\n" * 3)
    words = ("field", "check", "--task", file, "--data", tmp_path / "data", "--steps", 1)
    found = wayfare_command(*words)
    assert found.code == 2
    assert re.search(message, found.err)
    assert len(found.err.splitlines()) == 1
    if "data" in name:
        with pytest.raises(KeyError, match="sensor"):
            wayfare_command("--debug", *words)
