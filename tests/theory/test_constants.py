"""Constants from a run: on a problem whose constants are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wayfare
from wayfare.scenario import Scenario
from wayfare.theory.constants import MeasuredRun, measure_run


@pytest.fixture(scope="module")
def measured() -> MeasuredRun:
    from tests.conftest import SMALL

    return measure_run(wayfare.load("fashion-small", SMALL), "mads", seed=0)


def test_the_run_is_the_same_as_without_a_watch(measured: MeasuredRun, small: Scenario, tmp_path: object) -> None:
    record = wayfare.run(small, "mads", seed=0, out=str(tmp_path))
    assert measured.kept_share == pytest.approx(record.contacts["entries"].mean() / record.parameters, rel=1e-6)
    assert measured.staleness_square == pytest.approx(np.square(record.contacts["staleness_rounds"]).mean())
    assert torch.get_num_threads() == 1


def test_constants_are_what_the_assumptions_ask_for(measured: MeasuredRun) -> None:
    constants = measured.constants
    assert constants.noise_sq > 0
    assert constants.smoothness > 0
    # The mean gradient of all devices is shorter than the longest of one of them.
    assert measured.gradient_sq.max() <= constants.gradient_sq * 1.5
    assert constants.initial_gap == pytest.approx(measured.loss[0] - measured.loss.min())
    assert constants.initial_gap > 0


def test_bounds_lie_over_what_was_measured(measured: MeasuredRun) -> None:
    assert len(measured.bound("corrected")) == len(measured.mean_gradient_sq()) == len(measured.rounds) - 1
    assert (measured.mean_gradient_sq() <= measured.bound("sharp")).all()
    assert (measured.bound("sharp") <= measured.bound("corrected")).all()


def test_the_mean_gradient_weighs_rounds_alike(measured: MeasuredRun) -> None:
    first = measured.mean_gradient_sq()[0]
    assert first == pytest.approx(measured.gradient_sq[0])


@pytest.mark.parametrize("speed_mps", [1.0, 0.001])
def test_a_model_that_nothing_has_reached_yet_is_looked_at_once(speed_mps: float) -> None:
    settings = ["rounds=60", "fleet.devices=2", f"mobility.speed_mps={speed_mps}", "learning.hidden=[8]"]
    measured = measure_run(wayfare.load("fashion-small", settings), "mads", seed=0)
    assert len(measured.gradient_sq) == len(measured.loss) == len(measured.rounds)
    assert measured.gradient_sq[0] == measured.gradient_sq[1]
