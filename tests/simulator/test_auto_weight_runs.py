"""`control.weight = "auto"` in real runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import wayfare
from tests.conftest import SMALL
from wayfare.scenario import Scenario

AUTO = [*SMALL, "control.weight=auto"]


def auto(*overrides: str) -> Scenario:
    return wayfare.load("fashion-small", [*AUTO, *overrides])


@pytest.mark.parametrize("budget", ["0.3", "2", "9"])
def test_no_device_exceeds_its_budget(budget: str, tmp_path: Path) -> None:
    record = wayfare.run(auto(f"fleet.energy_total_joules={budget}"), "mads", seed=2, out=tmp_path)
    devices = record.contacts["device"].astype(np.int64)
    spent = np.bincount(devices, record.contacts["energy_joules"], len(record.budgets_joules))
    assert (spent <= record.budgets_joules * (1 + 1e-9)).all()
    assert spent.sum() > 0


def test_runs_repeat_to_the_bit(tmp_path: Path) -> None:
    one, other = (wayfare.run(auto(), "mads", seed=1, out=tmp_path / name) for name in ("one", "other"))
    assert torch.equal(one.model, other.model)
    assert (one.contacts["power_watts"] == other.contacts["power_watts"]).all()


def test_both_readings_of_the_norm_and_both_variants_decide_alike(tmp_path: Path) -> None:
    """Only ratios of worths count, so 1 / learning rate and 1 / ln 2 drop out."""
    plain = wayfare.run(auto(), "mads", seed=1, out=tmp_path)
    for override in ("control.update_norm=scaled", "control.variant=printed"):
        record = wayfare.run(auto(override), "mads", seed=1, out=tmp_path)
        assert record.contacts["entries"] == pytest.approx(plain.contacts["entries"], abs=1)


def test_a_scenario_with_auto_is_read_back_from_its_records(tmp_path: Path) -> None:
    record = wayfare.run(auto(), "mads", seed=0, out=tmp_path)
    assert record.scenario.control.weight == "auto"
    assert record.scenario == auto()
