"""Quantities from runs: the model of norms, and the constants of the bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import wayfare
from wayfare.errors import RunFolderError
from wayfare.methods import Method
from wayfare.simulator import Observer
from wayfare.theory import constants
from wayfare.theory.constants import Constants, measure_run
from wayfare.theory.norms import captured_share, norms_of_run
from wayfare.world import World


@pytest.mark.parametrize("growth", [0.0, 0.3, 1.0, 2.0])
def test_norms_of_a_run_that_follows_the_model_are_found_again(growth: float) -> None:
    rng = np.random.default_rng(0)
    devices, contacts = 5, 40
    rows = []
    for device in range(devices):
        memory, round_ = 0.0, 0
        for _ in range(contacts):
            stale = int(rng.integers(1, 30))
            round_ += stale
            norm = memory + 3.0 * stale**growth
            entries = int(rng.integers(1, 1000))
            memory = norm * (1 - float(captured_share(entries / 1000)))
            rows.append((device, round_, norm, stale, entries))
    order = rng.permutation(len(rows))
    names = ("device", "round", "update_norm_sq", "staleness_rounds", "entries")
    columns = {name: np.array(column)[order] for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    record = SimpleNamespace(contacts=columns, parameters=1000, folder="here")
    found = norms_of_run(record)  # type: ignore[arg-type]
    assert (found.growth, found.step_norm_sq) == (pytest.approx(growth), pytest.approx(3.0))
    assert found.log_spread == pytest.approx(0.0, abs=1e-6)
    assert found.known


def test_norms_that_shrink_have_a_tiny_step_and_no_growth() -> None:
    columns = {"device": [0, 0], "round": [1, 2], "update_norm_sq": [100.0, 10.0], "staleness_rounds": [1, 5]}
    contacts = {name: np.array(column) for name, column in {**columns, "entries": [0, 0]}.items()}
    found = norms_of_run(SimpleNamespace(contacts=contacts, parameters=10, folder="here"))  # type: ignore[arg-type]
    assert (found.step_norm_sq, found.growth) == (pytest.approx(1e-11), 0.0)


def test_growth_is_sought_up_to_2() -> None:
    columns = {"device": [0] * 9, "round": range(9), "staleness_rounds": range(1, 10), "entries": [10] * 9}
    contacts = {name: np.array(column) for name, column in columns.items()}
    # All is sent at every contact, so each norm is that of the steps since the last one.
    contacts["update_norm_sq"] = 5.0 * np.arange(1.0, 10.0) ** 2.6
    found = norms_of_run(SimpleNamespace(contacts=contacts, parameters=10, folder="here"))  # type: ignore[arg-type]
    assert found.growth == pytest.approx(2.0)


def test_every_device_counts_from_its_second_contact_on() -> None:
    """The first device has one contact; that of the second follows from its own memory."""
    columns = {"device": [0, 1, 1], "round": [1, 2, 6], "staleness_rounds": [1, 2, 4], "entries": [0, 10, 10]}
    contacts = {name: np.array(column) for name, column in columns.items()}
    contacts["update_norm_sq"] = np.array([1e6, 7.0, 12.0])
    record = SimpleNamespace(contacts=contacts, parameters=10, folder="here")
    assert norms_of_run(record).step_norm_sq == pytest.approx(12.0)  # type: ignore[arg-type]
    single = {name: column[:2] for name, column in contacts.items()}
    with pytest.raises(RunFolderError, match="no device has two contacts"):
        norms_of_run(SimpleNamespace(contacts=single, parameters=10, folder="here"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("rounds", "every"), [(16, 1), (17, 2), (40, 3), (5, 1)])
def test_a_measured_run_is_looked_at_sixteen_times(rounds: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Observer):
        """A run of which a watch sees two contacts and three evaluations."""

        def __init__(self, world: World, method: Method, watch: Any) -> None:
            assert world.scenario.learning.evaluate_every_rounds == every
            self.parameters, self.watch = world.link.parameters, watch

        def run(self) -> None:
            watch = self.watch
            watch.rounds, watch.loss, watch.gradient_sq = [0, 3, 5], [7.0, 1.5, 2.0], [9.0, 4.0, 1.0]
            watch.smoothness, watch.largest_sq, watch.noise_sq = 2.0, 11.0, 3.0
            watch.entries, watch.staleness = [self.parameters, self.parameters // 2], [1, 3]

    monkeypatch.setattr(constants, "Simulation", Told)
    scenario = wayfare.load("fashion-small", [f"rounds={rounds}", "fleet.devices=2", "learning.hidden=[4]"])
    found = measure_run(scenario, "afl", seed=3)
    assert found.constants == Constants(smoothness=2.0, gradient_sq=11.0, noise_sq=3.0, initial_gap=5.5)
    assert (found.kept_share, found.staleness_square) == (pytest.approx(0.75), 5.0)
    assert (found.rounds.tolist(), found.gradient_sq.tolist()) == ([0, 3, 5], [9.0, 4.0, 1.0])
    assert (found.scheme, found.seed) == ("afl", 3)
