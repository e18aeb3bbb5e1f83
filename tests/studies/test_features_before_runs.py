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
from wayfare.studies import Execution, together
from wayfare.studies.jobs import Job, Queue, Shared, conduct
from wayfare.studies.together import Threads
from wayfare.world import draw_world


def test_runs_in_threads_find_all_features_that_they_need(
    file: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def job(scenario: Scenario, scheme: str) -> Job:
        place = tmp_path / str(len(jobs))
        return Job(
            name=scheme, scenario=scenario, scheme=make_method(scheme, scenario), seed=0, work=place, folder=place
        )

    jobs: list[Job] = []
    jobs.append(job(scenario_with(file, "adapters"), "mads"))
    jobs.append(job(scenario_with(file, "adapters"), "mads-rd:from-statistics"))
    jobs.append(job(scenario_with(file, "head"), "mads"))
    # The run says that there is no such file.
    jobs.append(job(scenario_with(Path("none.py"), "head"), "mads"))
    events, compute = list[str](), features._compute

    def computing(*given: object) -> None:
        events.append("features")
        compute(*given)  # type: ignore[arg-type]

    def perform(job: Job, *_: object) -> None:
        events.append("run")
        Simulation(draw_world(job.scenario, 0), job.scheme, Watching(), engine="reference")  # type: ignore[arg-type]

    monkeypatch.setattr(features, "_compute", computing)
    monkeypatch.setattr(together, "perform", perform)
    monkeypatch.setattr("wayfare.studies.jobs.read_run", lambda folder: None)
    threads = Threads(Shared(execution=Execution(device="cpu")), 2)
    failures = conduct(Queue(jobs), threads, on_finished=lambda *_: None)
    assert events == ["features"] * 2 + ["run"] * 4
    assert [failure.job for failure in failures] == jobs[-1:]
