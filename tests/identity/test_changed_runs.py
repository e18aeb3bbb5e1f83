"""Runs whose code or data changed are not resumed; a fresh run has the results of the new code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.studies.power_cuts import EVERY_TEN, PowerCutError, assert_same, cut, cut_at
from torch import nn

import wayfare
from wayfare.errors import RunFolderError, ScenarioError
from wayfare.identity import identity_of
from wayfare.methods import Method, make_method
from wayfare.records import RunRecord, read_run
from wayfare.scenario import Scenario
from wayfare.studies.keys import run_key

FRESH = wayfare.Execution(safeguards=wayfare.Safeguards(fresh=True))
SHARES = """
    import wayfare

    class Mine(wayfare.UploadRule):
        name = "mine"

        def decide(self, encounter, link):
            return wayfare.send_top_k(encounter, link, 0.5 * link.max_power_watts)
"""
EDITED = SHARES.replace("0.5", "0.1")


def from_cell(code: str) -> Any:
    """The rule as a notebook would define it."""
    module = ModuleType("__main__")
    exec(compile(dedent(code), "<cell>", "exec"), module.__dict__)
    return module.Mine()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    written = tmp_path / f"edited_{tmp_path.name.replace('-', '_')}.py"
    written.write_text(dedent(SHARES))
    return written


def refused(scenario: Scenario, scheme: Any, out: Path, message: str, task: Any = None) -> None:
    with pytest.raises(RunFolderError, match=message) as refusal:
        wayfare.run(scenario, scheme, seed=1, out=out, task=task)
    assert "restart the run with `fresh=True`" in str(refusal.value)


def test_an_edited_class_does_not_resume_the_old_run(small: Scenario, tmp_path: Path) -> None:
    old = wayfare.run(small, from_cell(SHARES), seed=1, out=tmp_path / "old")
    new = wayfare.run(small, from_cell(EDITED), seed=1, out=tmp_path / "new")
    cut(small, tmp_path / "cut", from_cell(SHARES))
    refused(small, from_cell(EDITED), tmp_path / "cut", r"the code of scheme\.upload \(__main__\.Mine\)")
    fresh = wayfare.run(small, from_cell(EDITED), seed=1, out=tmp_path / "cut", execution=FRESH)
    assert_same(fresh, new)
    assert not torch.equal(fresh.model, old.model)


def test_an_edited_file_does_not_resume_the_old_run(small: Scenario, file: Path, tmp_path: Path) -> None:
    new = wayfare.run(small, from_cell(EDITED), seed=1, out=tmp_path / "new")
    folder = cut(small, tmp_path / "cut", f"{file}:Mine")
    file.write_text(dedent(EDITED))
    refused(small, f"{file}:Mine", tmp_path / "cut", r"the code of scheme\.upload \(edited_.*\.Mine\)")
    with pytest.raises(RunFolderError, match=r"the code of scheme\.upload"):
        wayfare.resume(folder)
    # The edited file is read again, although this process had imported it.
    fresh = wayfare.run(small, f"{file}:Mine", seed=1, out=tmp_path / "cut", execution=FRESH)
    assert torch.equal(fresh.model, new.model)


def test_a_run_of_a_file_that_was_not_edited_resumes(small: Scenario, file: Path, tmp_path: Path) -> None:
    expected = wayfare.run(small, f"{file}:Mine", seed=1, out=tmp_path / "whole")
    cut(small, tmp_path / "cut", f"{file}:Mine")
    assert_same(wayfare.run(small, f"{file}:Mine", seed=1, out=tmp_path / "cut"), expected)


def test_a_method_made_before_its_file_was_edited_is_refused(small: Scenario, file: Path, tmp_path: Path) -> None:
    method = make_method(str(file), small)
    file.write_text(dedent(EDITED))
    with pytest.raises(ScenarioError, match="was edited after it was loaded"):
        wayfare.run(small, method, out=tmp_path)


def test_a_whole_run_without_its_name_counts_only_for_its_code(
    small: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("wayfare.records.write.finalise_run", lambda folder: None)
        with pytest.raises(RunFolderError):
            wayfare.run(small, from_cell(SHARES), seed=1, out=tmp_path)
    refused(small, from_cell(EDITED), tmp_path, "the code of scheme")


def straight() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def bent() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - nn.functional.one_hot(targets, 3)).square().mean()


def own(network: Callable[[], nn.Module] = straight, shift: float = 0.0, **others: Any) -> Any:
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(200, 4)).astype("f4"), rng.integers(3, size=200)
    inputs[7, 2] += shift
    return wayfare.own_task("own", train=(inputs, labels), test=(inputs, labels), network=network, **others)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda: own(shift=1.0), r"the content of task\.test; the content of task\.train"),
        (lambda: own(bent), r"the content of task\.model"),
        (lambda: own(loss=squared), r"the content of task\.loss_of"),
    ],
)
def test_changed_data_networks_and_losses_do_not_resume_the_old_run(
    small: Scenario, tmp_path: Path, changed: Callable[[], Any], message: str
) -> None:
    with pytest.raises(PowerCutError):
        wayfare.run(small, "mads", seed=1, out=tmp_path, task=own(), execution=EVERY_TEN, on_round=cut_at(35))
    refused(small, "mads", tmp_path, message, changed())
    rounds: list[int] = []
    same = wayfare.run(small, "mads", seed=1, out=tmp_path, task=own(), on_round=rounds.append)
    assert rounds[0] == 31
    assert same.meta["identity"]["task"]["class"] == "wayfare.learning.tasks.own.OwnTask"


def test_a_finished_run_is_not_replaced_by_that_of_another_task_or_scheme(small: Scenario, tmp_path: Path) -> None:
    short = small.model_copy(update={"rounds": 10})
    first = wayfare.run(short, "mads", seed=1, out=tmp_path, task=own())
    refused(short, "mads", tmp_path, r"holds a finished run with other inputs: the content of task\.model", own(bent))
    wayfare.run(short, from_cell(SHARES), seed=1, out=tmp_path)
    refused(short, from_cell(EDITED), tmp_path, r"finished run with other inputs: the code of scheme\.upload")
    assert_same(read_run(first.folder), first)
    # The same inputs give the same record, and a fresh run replaces it.
    assert_same(wayfare.run(short, "mads", seed=1, out=tmp_path, task=own()), first)
    other = wayfare.run(short, "mads", seed=1, out=tmp_path, task=own(bent), execution=FRESH)
    assert other.folder == first.folder
    assert other.meta["identity"] != first.meta["identity"]
    # A damaged record has nothing to lose.
    (first.folder / "run.sqlite").write_bytes(b"damaged")
    assert_same(wayfare.run(short, "mads", seed=1, out=tmp_path, task=own()), first)


class Held(wayfare.UploadRule):
    """Holds something without content."""

    name = "held"

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        return wayfare.send_top_k(encounter, link, link.max_power_watts)


class Named(Held):
    name = "named"
    version = "1"


def test_what_cannot_be_identified_asks_for_a_version(small: Scenario, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"its `lock` cannot be identified.*give the class a `version`"):
        wayfare.run(small, Held(), out=tmp_path)
    with pytest.raises(ScenarioError, match=r"give the class a `version`"):
        wayfare.compare(small, [Held()], seeds=1, out=tmp_path)
    assert isinstance(wayfare.run(small, Named(), out=tmp_path), RunRecord)
    one, other = make_method(Named(), small), make_method(Named(), small)
    assert identity_of(small, one) == identity_of(small, other)
    Named.version = "2"
    assert identity_of(small, one)["scheme"]["upload"]["version"] == "2"


def test_a_task_of_a_package_counts_by_its_content(small: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    named = small.model_copy(update={"learning": small.learning.model_copy(update={"task": "elsewhere"})})
    method: Method = make_method("mads", small)

    def key(task: Any) -> str:
        monkeypatch.setattr("wayfare.learning.tasks._package_task", lambda learning: task)
        return run_key(named, method, 0, wayfare.Execution())

    assert key(own()) == key(own())
    assert len({key(own()), key(own(bent)), key(own(shift=1.0))}) == 3


def test_values_in_slots_count(small: Scenario) -> None:
    class Slotted(Held):
        __slots__ = ("share",)
        name = "slotted"

        def __init__(self, share: float) -> None:
            self.share = share

    keys = {run_key(small, make_method(Slotted(share), small), 0, wayfare.Execution()) for share in (0.1, 0.2, 0.1)}
    assert len(keys) == 2
