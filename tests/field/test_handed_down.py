"""Server rules that hand devices more than the model: it travels behind the model, and is replayed to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.field.brokers import finish
from tests.field.parts import ENTRIES, INITIAL, LAYOUT, LINK, METHOD, Fixed, aggregation, noise, open_ledger, train
from tests.field.test_ledger import deliver
from tests.field.test_parity import EAGER, Direct
from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.contacts import Opportunities
from wayfare.device import Terms
from wayfare.field.runtime.database import tree_bytes
from wayfare.field.runtime.downloads import Downloads
from wayfare.field.runtime.exchange import Exchanger
from wayfare.field.runtime.gathering import ByPlan, OnArrival
from wayfare.field.runtime.guide import Occasion
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.messages import Chunk, Finish, Part, split
from wayfare.field.runtime.model_encoding import packed, unpacked, unpacked_state
from wayfare.field.runtime.outbox import Outbox, digest
from wayfare.field.runtime.radio import Radio
from wayfare.methods.published.scaffold import ControlVariates, Corrected
from wayfare.methods.states import same_state
from wayfare.sparsify import Sparse

RULE = aggregation(ControlVariates())
SCAFFOLD = replace(METHOD, upload=Fixed(LAYOUT.parameters), server=ControlVariates(), local=Corrected())
RATE = 0.1  # of the senders of `aggregation`
NAMES = ["bus-1", "bus-2", "drone"]


def update(seed: int, number: int, *, base_version: int, round_: int, received_round: int = 0) -> list[bytes]:
    """A whole update in a handful of chunks."""
    pieces = split(Sparse(torch.arange(ENTRIES), noise(seed)), LAYOUT, 300)
    return [
        Chunk(
            update=number, chunk=place, chunks=len(pieces), round=round_, received_round=received_round,
            base_version=base_version, spent_joules=0.0, entries=piece.kept,
        ).packed(LAYOUT)
        for place, piece in enumerate(pieces)
    ]  # fmt: skip


def correction(ledger: Ledger, device: int, version: int) -> Tensor | None:
    found: Tensor | None = ledger.handed(device, version).get("correction")  # type: ignore[assignment]
    return found


def gradient(seed: int, reach: float) -> Tensor:
    """The mean gradient behind a whole update; statistics of normalisation have none."""
    found = noise(seed) / reach
    found[LAYOUT.parameters :] = 0.0
    return found


def test_a_version_long_past_hands_down_what_it_handed_down_then(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, rule=RULE)
    handed = [ledger.handed(0, 0)]
    for number in range(1, 4):
        for device in range(3):
            deliver(ledger, device, update(10 * number + device, number, base_version=ledger.version, round_=number))
            handed.append(ledger.handed(0, ledger.version))
    assert handed[0] == {}
    first = gradient(10, RATE)
    # c = c_0 / 3 after the first upload of device 0, so it gets c - c_0.
    assert torch.allclose(correction(ledger, 0, 1), first / 3 - first)  # type: ignore[arg-type]
    assert ledger.handed(2, 2) == {}
    ledger.save_model()
    for found in (ledger, open_ledger(tmp_path, rule=RULE)):
        assert all(same_state(found.handed(0, version), state) for version, state in enumerate(handed))
        assert same_state(found.replay().rule_state, ledger.state.rule_state)


def test_a_device_that_missed_a_model_leaves_its_variate_alone_until_it_has_one_again(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, rule=RULE)
    deliver(ledger, 0, update(1, 1, base_version=0, round_=2))
    variate = ledger.state.rule_state["variates"]["0"]  # type: ignore[index]
    assert torch.allclose(variate, gradient(1, 2 * RATE))
    # Nothing came down: it still trains from version 0, without the correction that the server believes it has.
    deliver(ledger, 0, update(2, 2, base_version=0, round_=4))
    assert torch.equal(ledger.state.rule_state["variates"]["0"], variate)  # type: ignore[index]
    deliver(ledger, 0, update(3, 3, base_version=2, round_=6, received_round=4))
    known = correction(ledger, 0, 2)
    assert known is not None
    expected = gradient(3, 2 * RATE) - known
    expected[LAYOUT.parameters :] = 0.0
    assert torch.allclose(ledger.state.rule_state["variates"]["0"], expected, atol=1e-5)  # type: ignore[index]
    assert same_state(ledger.replay().rule_state, ledger.state.rule_state)


def test_two_updates_of_one_batch_are_replayed_as_they_were_applied(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, rule=RULE)
    with ledger.transaction():
        for number in (1, 2):
            for data in update(number, number, base_version=0, round_=number):
                ledger.record(0, data)
        OnArrival().apply_due(ledger)
    assert ledger.version == 1
    assert torch.allclose(ledger.state.rule_state["variates"]["0"], gradient(1, RATE))  # type: ignore[index]
    assert same_state(ledger.replay().rule_state, ledger.state.rule_state)


def test_the_bytes_of_a_download_are_the_model_and_what_is_handed_down(tmp_path: Path) -> None:
    intake = Intake(open_ledger(tmp_path, rule=RULE), OnArrival(), LAYOUT)
    deliver(intake.ledger, 0, update(1, 1, base_version=0, round_=1))
    asked = Finish(round=1, update=1, have_version=0).packed()
    manifest = intake.finish(0, asked)
    total = manifest.size_bytes + manifest.handed_bytes

    def pull(step: int) -> bytes:
        parts = [
            Part(
                version=manifest.version, base_version=manifest.base_version, offset=begin,
                size_bytes=min(step, total - begin),
            )
            for begin in range(0, total, step)
        ]  # fmt: skip
        return b"".join(intake.part(0, part.packed()) for part in parts)

    assert manifest.handed_bytes > 4 * ENTRIES
    data = pull(total)
    assert pull(100) == pull(manifest.size_bytes) == data
    base = INITIAL if manifest.base_version is not None else None
    model = unpacked(data[: manifest.size_bytes], LAYOUT, base=base, digest=manifest.digest)
    assert torch.equal(model, intake.ledger.model)
    like = Corrected().init(INITIAL)
    with pytest.raises(WireError, match="both need the same task"):
        unpacked(packed(model, None, LAYOUT), Layout.of("other", [(30,)]), base=None, digest=manifest.digest)
    handed = unpacked_state(data[manifest.size_bytes :], manifest.handed_digest, like)
    assert same_state(handed, intake.ledger.handed(0, 1))
    # A device that has sent nothing yet gets the model alone, also after another was given more.
    other = intake.finish(1, Finish(round=1, have_version=0).packed())
    assert (other.handed_bytes, other.size_bytes) == (0, manifest.size_bytes)
    # A server that has just started knows of no offer: the device asks again.
    intake = Intake(intake.ledger, OnArrival(), LAYOUT)
    assert pull(total) == b""
    assert intake.finish(0, asked) == manifest
    assert pull(total) == data


def test_the_states_handed_down_last_are_kept_within_bounds(tmp_path: Path) -> None:
    ledger, downloads = open_ledger(tmp_path, rule=RULE), Downloads(LAYOUT, tmp_path, kept_bytes=5000)
    for device in range(3):
        deliver(ledger, device, update(device, 1, base_version=ledger.version, round_=1))
    made = [downloads.hand_down(ledger, device, 3) for device in range(3)]
    assert downloads.hand_down(ledger, 2, 3) is made[2]
    assert list(downloads._handed) == [2]
    assert downloads.hand_down(ledger, 0, 3) == made[0]


def test_a_contact_cut_short_hands_down_what_the_upload_made(tmp_path: Path) -> None:
    one = np.ones(1)
    meets = Opportunities(round=np.array([1]), device=np.array([0]), contact_s=one, distance_m=one)
    intake = Intake(open_ledger(tmp_path, rule=RULE), ByPlan(meets, rounds=1), LAYOUT)
    intake.chunks([(0, data) for data in update(1, 1, base_version=0, round_=1)])
    manifest = intake.finish(0, Finish(round=1, update=1, cut_short=True).packed())
    assert manifest.version == 0
    assert manifest.handed_digest == digest(tree_bytes(intake.ledger.handed(0, 1)))


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"correction": torch.zeros(ENTRIES - 1)}, "does not fit the local rule"),
        ({"correction": torch.zeros(ENTRIES, dtype=torch.float64)}, "does not fit the local rule"),
        ({"other": torch.zeros(ENTRIES)}, r"has \['other'\], which does not fit the local rule"),
        ({"correction": torch.full((ENTRIES,), torch.nan)}, "correction holds NaN or infinity"),
    ],
)
def test_a_state_that_the_local_rule_cannot_use_is_refused(state: dict[str, Tensor], reason: str) -> None:
    data, like = tree_bytes(state), Corrected().init(INITIAL)
    with pytest.raises(WireError, match=reason):
        unpacked_state(data, digest(data), like)
    with pytest.raises(WireError, match="digest differs"):
        unpacked_state(data, digest(data + b" "), like)


def test_bytes_that_are_no_state_are_refused() -> None:
    with pytest.raises(WireError, match="cannot be read"):
        unpacked_state(b"nothing", digest(b"nothing"), Corrected().init(INITIAL))


class Damaged(Direct):
    """A connection on which the last byte of a download changes, while it is told so."""

    damages = False

    async def request(self, subject: str, data: bytes, **options: object) -> Any:
        answer = await super().request(subject, data, **options)
        if subject.endswith("part") and self.damages:
            answer = SimpleNamespace(data=answer.data[:-1] + bytes([answer.data[-1] ^ 1]))
        return answer


class Always:
    def occasion(self, progress: Any, state: object) -> Occasion:
        return Occasion(round=progress.cut_round + 1, contact_s=1.0, gain_per_watt=1e3, chunk_bytes=300)

    def loss(self) -> float | None:
        return None

    def samples(self) -> int | None:
        return None

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_: True


def test_a_device_takes_the_model_and_what_comes_with_it_or_neither(tmp_path: Path) -> None:
    file = tmp_path / "device.sqlite"

    def opened() -> Outbox:
        return Outbox(file, INITIAL, SCAFFOLD, layout=LAYOUT, budget_joules=10.0, identity={"fleet": "one"})

    outbox, intake = opened(), Intake(open_ledger(tmp_path, rule=RULE), OnArrival(), LAYOUT)
    terms = Terms(method=SCAFFOLD, link=LINK, rounds=100)

    async def exchange(*, damaged: bool) -> None:
        wire = Damaged(intake, 0)
        wire.damages = damaged
        exchanger = Exchanger(wire, "bus-1", outbox, Always(), Radio(terms=terms), LAYOUT, EAGER)  # type: ignore[arg-type]
        await wire.subscribe("", exchanger._on_mark)
        await exchanger._exchange()

    train(outbox, 1, 1)
    with pytest.raises(WireError, match="handed state"):
        finish(exchange(damaged=True))
    assert not torch.equal(outbox.model, intake.ledger.model)
    assert not outbox.state.local_state["correction"].any()  # type: ignore[union-attr]
    finish(exchange(damaged=False))
    for found in (outbox, opened()):
        assert torch.equal(found.model, intake.ledger.model)
        assert torch.equal(found.state.local_state["correction"], correction(intake.ledger, 0, 1))  # type: ignore[arg-type]
        assert found.state.local_state["correction"].any()  # type: ignore[union-attr]
