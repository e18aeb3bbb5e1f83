"""Released versions: what devices use for inference is what the operator decides, not what they train with."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from tests.field.brokers import finish
from tests.field.test_life_cycle import LAYOUT, MODEL, lived, run
from tests.field.test_own_data import living
from wayfare.codec.errors import WireError
from wayfare.errors import FieldError, InputError
from wayfare.field.rig.example import write_example
from wayfare.field.runtime.backup import back_up
from wayfare.field.runtime.compaction import Window
from wayfare.field.runtime.current_model import CURRENT, CurrentModel
from wayfare.field.runtime.device import STORE
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.messages import Ask, Finish, Part, Released, parse
from wayfare.field.runtime.model_encoding import unpacked
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.parts import PartPuller
from wayfare.field.runtime.status import status_of
from wayfare.learning.models.base import load_vector, read_vector
from wayfare.methods import make_method
from wayfare.scenario import Scenario


def order(ledger: Ledger, *words: object) -> str:
    """Give an order and let the server carry it out."""
    kind, *others = words
    run(kind, ledger.folder, *others, "--wait-s", 0)
    ledger.obey()
    [(outcome,)] = ledger._all("SELECT outcome FROM orders ORDER BY id DESC LIMIT 1")
    return str(outcome)


def wanted(ledger: Ledger) -> list[int | None]:
    return [ledger.released.state.of(name) for name in ("bus-1", "bus-2")]


def pulled(ledger: Ledger, released: Released) -> Tensor:
    data = ledger.released.part(released.version, 0, released.size_bytes)
    return unpacked(data, LAYOUT, base=None, digest=released.digest)


def test_a_canary_gets_a_version_first_then_all_and_a_withdrawal_returns(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    assert wanted(ledger) == [None, None]
    assert order(ledger, "release", 2) == "done: all devices: version 2"
    assert order(ledger, "group", "canary", "bus-2") == "done: canary: bus-2"
    assert order(ledger, "release", 3, "--to", "canary") == "done: bus-2: version 3"
    assert wanted(ledger) == [2, 3]
    assert order(ledger, "withdraw", "--to", "bus-2") == "done: bus-2: version 2"
    assert wanted(ledger) == [2, 2]
    order(ledger, "release", 3, "--to", "bus-2")
    order(ledger, "release", 3)
    assert wanted(ledger) == [3, 3]
    assert not ledger.released.state.of_devices
    assert order(ledger, "withdraw") == "done: all devices: the model received last"
    assert wanted(ledger) == [None, None]
    # None of this changes what is trained.
    assert ledger.version == 4


def test_a_released_version_outlives_compaction_restarts_and_backups(tmp_path: Path) -> None:
    ledger = lived(tmp_path / "mes")
    model = ledger.model_at(2)
    order(ledger, "release", 2, "--to", "bus-1")
    ledger.compact(Window(days=0, bytes=0))
    assert ledger.base_version == 4
    ledger.close()
    back_up(tmp_path / "mes", tmp_path / "copy")
    for folder in ("mes", "copy"):
        again = lived(tmp_path / folder, versions=0)
        released = again.released.wanted("bus-1")
        assert released is not None
        assert torch.equal(pulled(again, released), model)
        assert again.released.wanted("bus-2") is None
        # The canary's version is released to all, although its history is gone.
        assert order(again, "release", 2) == "done: all devices: version 2"
        again.close()


def test_the_mean_of_the_models_is_released_because_it_is_what_is_evaluated(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    state = ledger.state
    mean = state.model + 1
    order(ledger, "release", 4)
    (tmp_path / "released" / "4.model").unlink()
    ledger.released._valid.clear()
    about = ledger.released._described(4, lambda version: mean)
    assert torch.equal(pulled(ledger, Released(version=4, **about)), mean)


def test_files_of_unused_versions_are_deleted_except_the_one_before(tmp_path: Path) -> None:
    ledger = lived(tmp_path, versions=6)
    for version in (1, 2, 3):
        order(ledger, "release", version)
    assert sorted(file.stem for file in (tmp_path / "released").iterdir()) == ["2", "3"]
    ledger.compact(Window(days=0, bytes=0))
    assert order(ledger, "release", 2) == "done: all devices: version 2"
    assert "must be 6 to 6; older ones were compacted" in order(ledger, "release", 1)
    assert wanted(ledger) == [2, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["release", 9], "version = 9: must be 0 to 4"),
        (["release", 2, "--to", "bus-7"], "to = bus-7: must be all, devices of this fleet, or a group; unknown: bus-7"),
        (["withdraw"], "to = all: no version is released"),
        (["withdraw", "--to", "bus-1"], "to = bus-1: no version is released to these devices alone"),
        (["group", "bus-1", "bus-2"], "group = bus-1: must not be all or the name of a device"),
        (["group", "canary", "bus-9"], "group = canary: unknown devices: bus-9"),
        (["group", "Canary", "bus-1"], "group = 'Canary': must be 1 to 32 lowercase letters"),
    ],
)
def test_wrong_orders_get_one_message_and_change_nothing(tmp_path: Path, words: list[object], message: str) -> None:
    ledger = lived(tmp_path)
    outcome = order(ledger, *words)
    assert outcome.startswith(f"rejected: {message}")
    assert wanted(ledger) == [None, None]
    assert not (tmp_path / "released").exists()
    assert "there are no groups" in run("group", tmp_path)


def test_at_most_four_versions_are_released_at_a_time(tmp_path: Path) -> None:
    ledger = lived(tmp_path, versions=6)
    for number in range(3, 7):
        ledger.roster.number_of(f"bus-{number}")
    for number in range(1, 5):
        assert order(ledger, "release", number, "--to", f"bus-{number}").startswith("done")
    assert "at most 4 versions at a time; withdraw one first" in order(ledger, "release", 5, "--to", "bus-5")


def test_a_damaged_file_is_not_served(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    order(ledger, "release", 2)
    ledger.close()
    file = tmp_path / "released" / "2.model"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    again = lived(tmp_path, versions=0)
    assert again.released.part(2, 0, 10) == b""
    # Nobody falls back to another version because of it, and another order mends it.
    assert wanted(again) == [2, 2]
    order(again, "release", 2)
    assert len(again.released.part(2, 0, 10)) == 10


class Bus:
    """A device without a network: its store, its file, and a link that may break."""

    def __init__(self, folder: Path, intake: Intake, number: int) -> None:
        self.folder, self.intake, self.number = folder, intake, number
        self.parts_left = 10**9
        self.asked = 0
        first = torch.zeros(MODEL.parameters)
        self.outbox = Outbox(
            *(folder / "device.sqlite", first, make_method("mads", Scenario())),
            layout=LAYOUT,
            budget_joules=1.0,
            identity={"name": "one"},
        )
        self.start()

    def start(self) -> None:
        self.current = CurrentModel(self.outbox, MODEL, LAYOUT, self.folder)

    async def part(self, data: bytes) -> bytes:
        self.parts_left -= 1
        if self.parts_left < 0:
            raise FieldError("out of reach")
        self.asked += parse(Part, data).size_bytes
        return bytes(self.intake.part(self.number, data))

    def contact(self) -> None:
        """Hear what is released, download it, and report."""
        manifest = self.intake.finish(self.number, Finish(round=1, have_version=0, take=False).packed())
        self.current.want(manifest.released)
        puller = PartPuller(self.part, LAYOUT, slow_window=1, fast_window=1)
        puller.part_bytes = 200
        try:
            finish(self.current.install(puller))
        finally:
            self.intake.ask(self.number, Ask(running=self.current.running).packed())

    def in_file(self) -> tuple[int, Tensor] | None:
        file = self.folder / CURRENT
        if not file.exists():
            return None
        module = MODEL.module()
        with safe_open(file, framework="pt") as stored:
            module.load_state_dict({name: stored.get_tensor(name) for name in stored.keys()})  # noqa: SIM118
            return int(stored.metadata()["version"]), read_vector(module)


def test_only_the_canary_changes_its_file_also_across_broken_downloads_and_restarts(tmp_path: Path) -> None:
    ledger = lived(tmp_path / "mes")
    intake = Intake(ledger, OnArrival(), LAYOUT)
    buses = [Bus(tmp_path / f"bus-{number}", intake, number) for number in (0, 1)]
    order(ledger, "release", 1)
    for bus in buses:
        bus.contact()
        assert bus.in_file() is not None
    order(ledger, "release", 3, "--to", "bus-2")
    canary, other = buses[1], buses[0]
    size, before = ledger.released.wanted("bus-2").size_bytes, canary.asked  # type: ignore[union-attr]
    # Every contact ends after one part, and the device restarts in between.
    contacts = 0
    while canary.in_file()[0] == 1:  # type: ignore[index]
        canary.parts_left = 1
        canary.start()
        try:
            canary.contact()
        except FieldError:
            contacts += 1
        assert contacts < 100
    assert contacts >= 1
    canary.parts_left = 10**9
    assert canary.asked - before == size, "no part was downloaded twice"
    version, vector = canary.in_file()  # type: ignore[misc]
    assert version == 3
    expected = MODEL.module()
    load_vector(expected, ledger.model_at(3))
    assert torch.equal(vector, read_vector(expected))
    other.contact()
    assert other.in_file()[0] == 1  # type: ignore[index]
    status = status_of(intake, fleet="f", heard_at_s={}, began_s=0.0, broker_in_reach=True)
    assert [(one.released_version, one.running_version) for one in status.devices] == [(1, 1), (3, 3)]
    order(ledger, "withdraw", "--to", "bus-2")
    canary.contact()
    assert canary.in_file()[0] == 1  # type: ignore[index]
    for bus in buses:
        bus.outbox.close()
    # What devices use is known after a restart of the server, too.
    ledger.close()
    assert lived(tmp_path / "mes", versions=0).released.running("bus-2") == 1


def test_a_device_that_has_the_released_model_downloads_nothing(tmp_path: Path) -> None:
    ledger = lived(tmp_path / "mes")
    intake = Intake(ledger, OnArrival(), LAYOUT)
    bus = Bus(tmp_path / "bus", intake, 0)
    bus.outbox.receive(ledger.model, 4, 1)
    order(ledger, "release", 4)
    bus.contact()
    assert (bus.asked, bus.in_file()[0]) == (0, 4)  # type: ignore[index]
    bus.outbox.close()


def test_after_a_restart_a_device_without_contact_keeps_to_its_release(tmp_path: Path) -> None:
    ledger = lived(tmp_path / "mes")
    bus = Bus(tmp_path / "bus", Intake(ledger, OnArrival(), LAYOUT), 0)
    order(ledger, "release", 1)
    bus.contact()
    bus.outbox.receive(ledger.model, 4, 1)
    bus.start()

    async def a_while() -> None:
        keeping = asyncio.ensure_future(bus.current.keep(0.0))
        await asyncio.sleep(0.1)
        keeping.cancel()

    finish(a_while())
    assert bus.in_file()[0] == 1  # type: ignore[index]
    # Withdrawn: the file follows the received model again.
    bus.current.want(None)
    finish(a_while())
    assert bus.in_file()[0] == 4  # type: ignore[index]
    bus.outbox.close()


def test_a_broken_answer_never_becomes_the_current_model(tmp_path: Path) -> None:
    ledger = lived(tmp_path / "mes")
    bus = Bus(tmp_path / "bus", Intake(ledger, OnArrival(), LAYOUT), 0)
    order(ledger, "release", 1)
    bus.contact()
    order(ledger, "release", 2)
    served = bus.part

    async def damaged(data: bytes) -> bytes:
        answer = await served(data)
        return answer[:-1] + bytes([answer[-1] ^ 1])

    bus.part = damaged  # type: ignore[method-assign]
    with pytest.raises(WireError, match="checksum differs"):
        bus.contact()
    assert bus.in_file()[0] == 1  # type: ignore[index]
    bus.part = served  # type: ignore[method-assign]
    bus.contact()
    assert bus.in_file()[0] == 2  # type: ignore[index]
    bus.outbox.close()


@pytest.mark.system
def test_a_running_canary_changes_its_file_and_the_others_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    write_example(folder, 2)
    # Modules of one process need different names.
    (folder / "task.py").rename(folder / "clothes_of_a_canary.py")
    with living(folder, "clothes_of_a_canary.py") as site:
        buses = [site.device("bus-1"), site.device("bus-2")]
        files = [folder / name / CURRENT for name in ("bus-1", "bus-2")]
        site.wait(lambda: site.least(["bus-1", "bus-2"]) >= 2)
        assert "all devices: version 1" in run("release", folder / "mes", 1)
        site.wait(lambda: [_version(file) for file in files] == [1, 1])
        # A kill at any time loses nothing, on either side.
        for member in (*buses, site.server):
            member.kill()
            member.start()
        assert "bus-2: version 2" in run("release", folder / "mes", 2, "--to", "bus-2")
        site.wait(lambda: _version(files[1]) == 2)
        made = site.least(["bus-1"])
        site.wait(lambda: site.least(["bus-1"]) >= made + 2)
        assert _version(files[0]) == 1
        run("set", folder / "mes", "learning.learning_rate=0.2")
        run("withdraw", folder / "mes", "--to", "bus-2")
        site.wait(lambda: [_version(file) for file in files] == [1, 1])
        site.wait(lambda: all(_settings(folder / name) == {"learning_rate": 0.2} for name in ("bus-1", "bus-2")))


def _settings(state: Path) -> object:
    with closing(sqlite3.connect(f"file:{state / STORE}?mode=ro", uri=True, timeout=30)) as store:
        return json.loads(store.execute("SELECT value FROM facts WHERE name = 'progress'").fetchone()[0])["settings"]


def _version(file: Path) -> int | None:
    if not file.exists():
        return None
    with safe_open(file, framework="pt") as stored:
        return int(stored.metadata()["version"])


def test_groups_are_listed_and_deleted(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    order(ledger, "group", "canary", "bus-1", "bus-2")
    assert "canary: bus-1, bus-2" in run("group", tmp_path)
    assert order(ledger, "group", "canary") == "done: canary: deleted"
    assert "there are no groups" in run("group", tmp_path)
    with pytest.raises(InputError, match="no ledger"):
        run("group", tmp_path / "nothing")
    assert json.loads(ledger._all("SELECT value FROM facts WHERE name = 'released'")[0][0])["groups"] == {}
