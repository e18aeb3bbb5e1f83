"""Features are computed before runs start together on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.methods.test_class_statistics import Watching
from tests.methods.test_statistics_then_tuning import file, scenario_with  # noqa: F401

from wayfare.learning.backbones import features
from wayfare.methods import make_method
from wayfare.scenario import Scenario
from wayfare.simulator import Simulation
from wayfare.studies.jobs import Job
from wayfare.studies.together import prepare_features
from wayfare.world import draw_world


def job(scenario: Scenario, scheme: str) -> Job:
    method = make_method(scheme, scenario)
    return Job(name=scheme, scenario=scenario, scheme=method, seed=0, work=Path(), folder=Path())


def test_runs_find_all_features_that_they_need(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    jobs = [
        job(scenario_with(file, "adapters"), "mads"),
        job(scenario_with(file, "adapters"), "mads-rd:from-statistics"),
        job(scenario_with(file, "head"), "mads"),
        job(scenario_with(file, "everything"), "mads"),
        # The run says that there is no such file.
        job(scenario_with(Path("none.py"), "head"), "mads"),
    ]
    computed, compute = [], features._compute
    monkeypatch.setattr(features, "_compute", lambda *given: computed.append(given[1]) or compute(*given))
    prepare_features(jobs)
    assert computed == ["cifar10"] * 2
    for each in jobs[:-1]:
        Simulation(draw_world(each.scenario, 0), each.scheme, Watching(), engine="reference")  # type: ignore[arg-type]
    assert len(computed) == 2
