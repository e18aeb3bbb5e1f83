"""Fleets on one machine, as processes: the simulator's model when all goes well, and nothing lost when it does not.

The long soak is recorded in docs/results/field.md; this is its short sister.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

import wayfare
from tests.field.brokers import needs_broker
from tests.processes import start_command
from wayfare.errors import InputError
from wayfare.field.rig.demo import DemoOptions, run_demo
from wayfare.field.runtime.work import Work

# They wait for clocks and brokers more than they compute. Among the last tests they would leave cores without work.
pytestmark = [pytest.mark.system, pytest.mark.long]

# Six contacts a device or so, and a model whose exchange takes no time.
SMALL = (
    *("rounds=30", "fleet.devices=4", "fleet.energy_total_joules=4", "mobility.width_m=400", "mobility.height_m=400"),
    *("learning.hidden=[16]", "learning.batch_size=8", "radio.bandwidth_hz=3e3"),
)


@pytest.fixture(autouse=True)
def _broker() -> None:
    needs_broker()


def small_work(scheme: str = "mads", seed: int = 0, preset: str = "fashion-small") -> Work:
    return Work(scenario=wayfare.load(preset, SMALL), seed=seed, scheme_name=scheme, engine_name="reference")


def test_the_demo_ends_with_the_model_of_the_simulator(tmp_path: Path) -> None:
    """The command itself, with fewer rounds than its default."""
    words = ("field", "demo", "--set", "rounds=40", "--json")
    done = start_command(*words, logs=tmp_path / "logs", prepare=partial(os.chdir, tmp_path))
    assert done.ended() == 0, done.errors
    outcome = json.loads(done.out)
    assert outcome["difference"] <= 1e-6
    assert outcome["contacts"] > 10
    assert outcome["audit"]["recorded"] > 50
    assert outcome["audit"]["returned"] == outcome["audit"]["promised"] == 0
    assert outcome["evaluation"]["score"] == pytest.approx(outcome["simulated"]["score"], abs=1e-3)


OWN_TASK = """
import numpy as np
import torch
import wayfare

def task():
    inputs = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    data = inputs, (inputs[:, 0] > 0).astype(int)
    network, devices = torch.nn.Linear(3, 2), np.arange(60).reshape(4, 15)
    return wayfare.own_task("halves", train=data, test=data, network=network, devices=devices)
"""


def test_a_task_from_a_file_ends_with_the_model_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "demo_task.py").write_text(OWN_TASK)
    own = [f"learning.task={tmp_path}/demo_task.py:task", "learning.partition.kind=own", "server.weighting=samples"]
    work = Work(scenario=wayfare.load("fashion-small", [*SMALL, *own]), engine_name="reference")
    outcome = run_demo(work, DemoOptions(folder=tmp_path / "demo", speedup=1000.0))
    assert outcome.difference == 0.0
    assert outcome.audit.recorded > 0


# Schemes that train only in contacts, and that lose a whole upload when it does not fit, are led by the plan too.
@pytest.mark.parametrize("scheme", ["sfl-spar", "afl", "afl:fitting"])
def test_other_schemes_end_with_the_model_of_the_simulator(scheme: str, tmp_path: Path) -> None:
    outcome = run_demo(small_work(scheme), DemoOptions(folder=tmp_path / "demo", speedup=1000.0))
    assert outcome.difference <= 1e-6


@pytest.mark.parametrize("loss", ["logit-adjusted", "prox"])
def test_a_loss_against_drift_ends_with_the_model_of_the_simulator(loss: str, tmp_path: Path) -> None:
    scenario = wayfare.load("fashion-small", [*SMALL, f"learning.local_loss={loss}"])
    outcome = run_demo(
        Work(scenario=scenario, engine_name="reference"), DemoOptions(folder=tmp_path / "demo", speedup=1000.0)
    )
    assert outcome.difference <= 1e-6


def test_the_recommended_settings_run_with_their_own_method_and_end_with_the_mean_of_the_simulator(
    tmp_path: Path,
) -> None:
    done = start_command("field", "demo", "recommended", "--set", "rounds=40", "--json", logs=tmp_path)
    assert done.ended() == 0, done.errors
    outcome = json.loads(done.out)
    assert outcome["difference"] <= 1e-6
    assert outcome["audit"]["recorded"] > 20
    assert outcome["audit"]["mass_error"] < 1e-5
    assert outcome["evaluation"] == outcome["simulated"]


@pytest.mark.parametrize(
    ("preset", "scheme"), [("fashion-small", "mads"), ("recommended", "mads-rd"), ("fashion-small", "fedasync:paced")]
)
def test_cuts_and_kills_change_nothing_when_every_exchange_takes_place(
    preset: str, scheme: str, tmp_path: Path
) -> None:
    work = small_work(scheme, 1, preset)
    outcome = run_demo(work, DemoOptions(folder=tmp_path / "demo", faults=16, fault_seed=3))
    assert sum(outcome.faults.values()) >= 10
    assert len(outcome.faults) >= 4
    assert outcome.difference <= 1e-6


@pytest.mark.parametrize("preset", ["fashion-small", "recommended"])
def test_cuts_and_kills_lose_nothing_when_contacts_end_by_the_clock(preset: str, tmp_path: Path) -> None:
    options = DemoOptions(folder=tmp_path / "demo", strict=True, speedup=40.0, faults=8, fault_seed=4)
    outcome = run_demo(small_work(seed=2, preset=preset), options)
    assert sum(outcome.faults.values()) >= 4
    assert outcome.audit.recorded > 0
    assert outcome.audit.mass_error < 1e-5


def test_models_that_arrive_in_part_are_mixed_into_nothing_when_contacts_end_by_the_clock(tmp_path: Path) -> None:
    options = DemoOptions(folder=tmp_path / "demo", strict=True, speedup=40.0, faults=8, fault_seed=4)
    outcome = run_demo(small_work("fedasync:unlimited", seed=2), options)
    assert outcome.audit.recorded > 0
    assert outcome.audit.mass_error is None


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="must be a new or empty folder"):
        run_demo(small_work(), DemoOptions(folder=tmp_path))
