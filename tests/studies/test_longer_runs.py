"""Runs are extended if the result equals a longer run; otherwise extension is rejected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.studies.power_cuts import EVERY_TEN, assert_same, cut

import wayfare
from wayfare.errors import RunFolderError, ScenarioError
from wayfare.records import read_run
from wayfare.scenario import Scenario


@pytest.mark.parametrize("scheme", ["optimal", "afl-spar", "afl", "sfl-spar"])
def test_a_run_is_made_longer_where_no_decision_depends_on_its_length(
    scheme: str, small: Scenario, tmp_path: Path
) -> None:
    kept = wayfare.Execution(engine="reference", safeguards=wayfare.Safeguards(keep_checkpoint=True))
    short = wayfare.run(small, scheme, seed=1, out=tmp_path / "short", execution=kept)
    assert len(list(short.folder.glob("*.checkpoint"))) == 1
    rounds: list[int] = []
    longer = wayfare.resume(short.folder, overrides=["rounds=90"], on_round=rounds.append)
    assert 1 < rounds[0] <= 61
    assert rounds[-1] == 90
    expected = wayfare.run(
        small.model_copy(update={"rounds": 90}), scheme, seed=1, out=tmp_path / "long", execution=kept
    )
    # To the bit with this engine, and in every column: the energy queue too.
    assert_same(longer, expected)
    assert longer.folder.name == short.folder.name
    assert longer.folder.parent != short.folder.parent
    assert_same(read_run(short.folder), short)


@pytest.mark.parametrize("scheme", ["mads", "afl-spar:paced"])
def test_a_run_that_paces_its_energy_is_not_made_longer(scheme: str, small: Scenario, tmp_path: Path) -> None:
    folder = cut(small, tmp_path, scheme)
    with pytest.raises(ScenarioError, match=r"rounds = 90: .* may pace its energy over all 60 rounds"):
        wayfare.resume(folder, overrides=["rounds=90"])


def test_lengths_that_make_no_sense_are_refused(small: Scenario, tmp_path: Path) -> None:
    folder = cut(small, tmp_path, "optimal")
    with pytest.raises(ScenarioError, match="must be at least 60"):
        wayfare.resume(folder, overrides=["rounds=50"])
    falling = small.model_copy(update={"learning": small.learning.model_copy(update={"schedule": "cosine"})})
    folder = cut(falling, tmp_path / "falling", "optimal")
    with pytest.raises(ScenarioError, match="depends on the 60 rounds"):
        wayfare.resume(folder, overrides=["rounds=90"])
    whole = wayfare.run(small, "optimal", seed=1, out=tmp_path / "whole")
    with pytest.raises(RunFolderError, match="`keep_checkpoint=True` keeps one"):
        wayfare.resume(whole.folder, overrides=["rounds=90"])


def test_an_unfinished_run_is_made_longer_too(small: Scenario, tmp_path: Path) -> None:
    execution = replace(EVERY_TEN, engine="reference")
    folder = cut(small, tmp_path, "optimal", execution=execution)
    rounds: list[int] = []
    longer = wayfare.resume(folder, overrides=["rounds=80"], on_round=rounds.append)
    assert rounds[0] == 31
    expected = wayfare.run(
        small.model_copy(update={"rounds": 80}), "optimal", seed=1, out=tmp_path / "long", execution=execution
    )
    assert_same(longer, expected)
