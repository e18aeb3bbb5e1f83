"""`wayfare field` as a user types it."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.cli.conftest import Finished
from tests.field.brokers import needs_broker
from tests.processes import start_command
from wayfare.cli.app import app
from wayfare.field.fleet import Fleet, create_fleet
from wayfare.field.rig.audit import Audit
from wayfare.field.rig.broker import Broker
from wayfare.field.rig.demo import DemoOptions, DemoOutcome
from wayfare.field.runtime.work import Work
from wayfare.learning.tasks import Evaluation

SETTINGS = ["fleet.energy_total_joules=500", "rounds=400", "learning.batch_size=8"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return create_fleet(tmp_path_factory.mktemp("fleet") / "fleet", devices=["bus-1", "bus-2"])


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Commands that run for long send their log elsewhere; other tests read it."""
    logger = logging.getLogger("wayfare")
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.system
def test_a_server_and_two_devices_learn_together(fleet: Fleet, tmp_path: Path) -> None:
    needs_broker()
    # The example that the how-to starts with.
    made = CliRunner().invoke(app, ["field", "example", str(tmp_path / "example"), "--devices", "2"])
    assert made.exit_code == 0, made.output
    task = (tmp_path / "example" / "task.py").rename(tmp_path / "example" / "task_of_the_commands.py")
    settings = ["--task", str(task), *(word for setting in SETTINGS for word in ("--set", setting))]
    pace = ("--step-every-s", "0.02", "--exchange-every-s", "0.3")
    with Broker(fleet, store=tmp_path / "store", port=0) as broker:
        url = ("--url", broker.url)
        server = start_command(
            *("field", "mes", fleet.server_folder, *settings, *url, "--metrics-port", "0"),
            logs=tmp_path / "mes",
            prepare=one_thread,
        )
        devices = [
            start_command(
                *("field", "device", fleet.device_folder(name), *settings, *pace, "--steps", "30", *url),
                *("--data", tmp_path / "example" / "data" / name),
                logs=tmp_path / name,
                prepare=one_thread,
            )
            for name in fleet.devices
        ]
        for device in devices:
            assert device.ended() == 0, device.errors
            (ended,) = [line for line in map(json.loads, device.errors.splitlines()) if line["message"] == "ended"]
            assert ended["round"] >= 30
        server.send_signal(signal.SIGTERM)
        assert server.ended() == 0, server.errors
    _check_the_ledger(fleet, task)
    state, heldout = str(fleet.server_folder / "state"), str(tmp_path / "example" / "heldout")
    judged = CliRunner().invoke(app, ["field", "evaluate", state, "--task", str(task), "--data", heldout])
    assert "accuracy" in judged.output, judged.exception


def _check_the_ledger(fleet: Fleet, task: Path) -> None:
    from wayfare.field.fleet import load_bundle
    from wayfare.field.rig.audit import audit
    from wayfare.field.runtime.device import DeviceOptions, open_store
    from wayfare.field.runtime.mes import ServerOptions, open_intake
    from wayfare.field.runtime.work import Work
    from wayfare.scenario import load

    work = Work(scenario=load("fashion-small", [*SETTINGS, f"learning.task={task}"]))
    intake = open_intake(load_bundle(fleet.server_folder), work, ServerOptions(state=fleet.server_folder / "state"))
    stores = [
        open_store(
            load_bundle(fleet.device_folder(name)),
            number,
            work,
            DeviceOptions(state=fleet.device_folder(name) / "state"),
        )
        for number, name in enumerate(fleet.devices)
    ]
    assert audit(intake.ledger, stores, work.layout).promised == 0
    assert {key.device for key in intake.ledger.applied()} == {0, 1}
    assert all(store.progress.finished_round >= 30 for store in stores)
    assert all(device.samples for device in intake.ledger.roster.devices)
    # Whoever exchanged last has the server's model.
    assert any(torch.equal(store.model, intake.ledger.model) for store in stores)
    for store in stores:
        store.close()
    intake.ledger.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("device", "{fleet}/mes"), "is the server's bundle"),
        (("mes", "{fleet}/devices/bus-1"), "is the bundle of bus-1"),
        (("mes", "{fleet}/mes", "--active-days", "0"), "--active-days = 0.0: must be above 0"),
        (("mes", "{fleet}/mes", "--keep-mb", "-1"), "--keep-mb = -1.0: must be at least 0"),
        (("mes", "{fleet}/mes", "--heldout", "nowhere"), "--heldout = 'nowhere': is not a folder"),
        (("mes", "{fleet}/mes", "--heldout", "."), "--heldout: also give --evaluate-every-s"),
        (("mes", "{fleet}/mes", "--task", "t.py", "--evaluate-every-s", "9"), "--evaluate-every-s: also give --held"),
        (("export", ".", "3", "--onnx", "nowhere/x"), "--onnx = 'nowhere/x': the folder nowhere does not exist"),
        (("device", "{fleet}/devices/bus-2"), "--data: give the folder with the data of this device"),
        (("device", "{fleet}/devices/bus-2", "--data", ".", "--compute", "gpu"), "--compute = 'gpu': must be auto"),
        (("mes", "{fleet}/nothing"), "is not a bundle"),
        (("mes", "{fleet}/mes", "--clip-norm", "0"), "--clip-norm = 0.0: must be above 0"),
        (("demo", "--faults", "-1"), "--faults = -1: must be at least 0"),
        (("demo", "--speedup", "0"), "speedup = 0.0: must be above 0"),
        (
            ("mes", "{fleet}/mes", "--scheme", "fedasync", "--clip-norm", "1"),
            "only updates can be clipped",
        ),
        (("demo", "--scheme", "fedmobile"), "relays updates"),
        (("demo", "--scheme", "nothing"), "schemes = 'nothing'"),
        (("demo", "--set", "learning.recalibrate_statistics=9"), "statistics = 9: works only in the simulator"),
    ],
)  # fmt: skip
def test_wrong_input_is_named_in_one_line(
    arguments: tuple[str, ...], says: str, fleet: Fleet, wayfare_command: Callable[..., Finished]
) -> None:
    done = wayfare_command("field", *(argument.format(fleet=fleet.folder) for argument in arguments))
    assert done.code == 2
    # Rich breaks lines at the width of a terminal; what was said is one.
    assert says in " ".join(done.err.split())


def test_several_schemes_share_the_faults_of_a_demo(
    monkeypatch: pytest.MonkeyPatch, wayfare_command: Callable[..., Finished]
) -> None:
    runs: list[tuple[str, int]] = []

    def run(work: Work, options: DemoOptions) -> DemoOutcome:
        runs.append((work.scheme_name, options.faults))
        found = Audit(versions=3, recorded=7, returned=0, promised=0, mass_error=None)
        return DemoOutcome(
            contacts=1, seconds=1.0, audit=found, faults={}, sent_bytes=1, received_bytes=1,
            evaluation=Evaluation(score=0.5, loss=1.0), simulated=None, difference=None,
        )  # fmt: skip

    monkeypatch.setattr("wayfare.field.rig.demo.run_demo", run)
    schemes = ("--scheme", "mads", "--scheme", "afl", "--scheme", "mads-rd")
    done = wayfare_command("field", "demo", *schemes, "--faults", "11", "--json")
    assert (done.code, runs) == (0, [("mads", 4), ("afl", 4), ("mads-rd", 3)])
    assert [each["scheme"] for each in json.loads(done.out)] == ["mads", "afl", "mads-rd"]
    assert "afl: 8 devices" in wayfare_command("field", "demo", *schemes).out
