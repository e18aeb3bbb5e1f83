"""Parts that keep state in themselves are rejected: it would leak into the next run and be lost on resume."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import wayfare
from wayfare.errors import InvariantError, RunError
from wayfare.scenario import Scenario

COUNTED = [0]


class Rule(wayfare.UploadRule):
    name = "counting"

    def power(self) -> float:
        return 1.0

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        return wayfare.send_top_k(encounter, link, self.power() * link.max_power_watts)


class InItself(Rule):
    """Counts its calls, and sends with less power the more there were."""

    def __init__(self) -> None:
        self.calls = 0

    def power(self) -> float:
        self.calls += 1
        return 1 / self.calls


@dataclass
class BesideItsFields(Rule):
    share: float = 1.0

    def __post_init__(self) -> None:
        self._calls = 0

    def power(self) -> float:
        self._calls += 1
        return self.share / self._calls


class InItsClass(Rule):
    calls: ClassVar[int] = 0

    def power(self) -> float:
        type(self).calls += 1
        return 1 / self.calls


class InItsModule(Rule):
    def power(self) -> float:
        COUNTED[0] += 1
        return 1 / COUNTED[0]


@dataclass
class InAList(Rule):
    seen: Any

    def power(self) -> float:
        self.seen.append(1)
        return 1 / len(self.seen)


STATEFUL = [InItself, BesideItsFields, InItsClass, InItsModule, lambda: InAList([])]


@pytest.mark.parametrize("make", STATEFUL)
def test_a_rule_that_counts_its_calls_is_refused(make: Any, small: Scenario, tmp_path: Path) -> None:
    rounds: list[int] = []
    with pytest.raises(InvariantError, match=r"the scheme counting changed during its run: .*Parts must not change"):
        wayfare.run(small, make(), out=tmp_path, on_round=rounds.append)
    # Found early, and no checkpoint holds a state that is only a part of it.
    assert rounds[-1] < 60
    assert not list(tmp_path.rglob("*.checkpoint"))


def test_seeds_that_share_a_process_are_refused_instead_of_mixed(small: Scenario, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"scheme\.upload\.values\.calls: 0 -> "):
        wayfare.compare(small, [InItself()], seeds=2, jobs=1, out=tmp_path)


class Frozen(Rule):
    @cached_property
    def table(self) -> float:
        return 0.5

    def power(self) -> float:
        return self.table


def test_a_rule_may_cache_and_gives_every_seed_its_own_numbers(small: Scenario, tmp_path: Path) -> None:
    rule = Frozen()
    first = wayfare.run(small, rule, seed=1, out=tmp_path / "one")
    wayfare.run(small, rule, seed=0, out=tmp_path / "two")
    again = wayfare.run(small, rule, seed=1, out=tmp_path / "three")
    assert torch.equal(first.model, again.model)


def test_a_file_that_is_edited_during_a_run_does_not_end_it(
    small: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_while_running.py"
    file.write_text(
        "import wayfare\nclass Mine(wayfare.UploadRule):\n    name = 'mine'\n"
        "    def decide(self, encounter, link):\n"
        "        return wayfare.send_top_k(encounter, link, link.max_power_watts)\n"
    )

    def edit(round_: int) -> None:
        if round_ == 5:
            file.write_text(file.read_text() + "# a thought\n")

    assert wayfare.run(small, f"{file}:Mine", out=tmp_path / "runs", on_round=edit).scheme == "mine"
