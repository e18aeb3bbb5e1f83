"""Server rules in the ledger: what a rule remembers is replayed to the bit, and it gets what the simulator gives."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.field.parts import ENTRIES, INITIAL, LAYOUT, Pairs, aggregation, dies_at, noise, open_ledger
from tests.field.test_ledger import chunks_of, deliver
from wayfare.codec.errors import WireError
from wayfare.contacts import Opportunities
from wayfare.errors import InputError
from wayfare.field.runtime.aggregation import Aggregation, Versions
from wayfare.field.runtime.downloads import Downloads
from wayfare.field.runtime.gathering import ByPlan, OnArrival
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.messages import Ask, Chunk, Finish, joined, split, unpack
from wayfare.field.runtime.model_encoding import unpacked
from wayfare.field.runtime.rules import Limits
from wayfare.learning.schedule import Schedule
from wayfare.methods import Arrival, ServerRule, ServerTerms, State
from wayfare.methods.servers import Add, Mix, Optimise
from wayfare.methods.states import same_state
from wayfare.scenario.server import Server
from wayfare.server import Senders, aggregate, average, begin_server
from wayfare.sparsify import Sparse

RULES: dict[str, Aggregation] = {
    "add and average": aggregation(average_rounds=4),
    "step": aggregation(Optimise(Server(step=3.0))),
    "momentum": aggregation(Optimise(Server(optimizer="momentum"))),
    "adam and average": aggregation(Optimise(Server(optimizer="adam")), average_rounds=3),
    "pairs": aggregation(Pairs()),
    "mix": aggregation(Mix()),
}
STATEFUL = ("add and average", "adam and average", "pairs", "mix")


def model_chunks(seed: int, *, number: int = 1, round_: int = 1, received_round: int = 0) -> list[bytes]:
    """A whole model in a handful of chunks."""
    pieces = split(Sparse(torch.arange(ENTRIES), noise(seed)), LAYOUT, 300)
    return [
        Chunk(
            update=number, chunk=place, chunks=len(pieces), round=round_, received_round=received_round,
            base_version=0, spent_joules=0.0, entries=piece.kept,
        ).packed(LAYOUT)
        for place, piece in enumerate(pieces)
    ]  # fmt: skip


def upload(rule: Aggregation, seed: int, number: int, round_: int = 1) -> list[bytes]:
    if rule.rule.takes == "models":
        return model_chunks(seed, number=number, round_=round_)
    return chunks_of(seed, number=number, round_=round_)


def same(one: Ledger, other: Ledger) -> bool:
    return (
        (one.version, one.next_round) == (other.version, other.next_round)
        and torch.equal(one.model, other.model)
        and torch.equal(one.state.judged, other.state.judged)
        and same_state(one.state.rule_state, other.state.rule_state)
        and np.array_equal(one._history.latest.changed, other._history.latest.changed)
        and (sorted(one.queued()), one.applied()) == (sorted(other.queued()), other.applied())
    )


@pytest.mark.parametrize("files", [2, 1, 0])
@pytest.mark.parametrize("name", RULES)
def test_a_restart_and_a_replay_come_to_the_same_bits(name: str, files: int, tmp_path: Path) -> None:
    rule = RULES[name]
    ledger = open_ledger(tmp_path, rule=rule)
    for number in range(1, 7):
        for device in range(3):
            deliver(ledger, device, upload(rule, 10 * number + device, number))
        if number in (2, 4):
            ledger.save_model()
    with ledger.transaction():
        ledger.record(1, upload(rule, 5, 7)[0])
    newest = sorted(tmp_path.glob("model-*.npz"), key=lambda file: int(file.stem[6:]), reverse=True)
    for file in newest[: 2 - files]:
        file.write_bytes(file.read_bytes()[:-7] + b"another")
    again = open_ledger(tmp_path, rule=rule)
    assert same(again, ledger)
    replayed = again.replay()
    assert torch.equal(replayed.model, ledger.model)
    assert torch.equal(replayed.judged, ledger.state.judged)
    assert same_state(replayed.rule_state, ledger.state.rule_state)
    assert not torch.equal(ledger.model, INITIAL)


@pytest.mark.parametrize("name", STATEFUL)
def test_power_that_fails_at_any_statement_leaves_the_rule_where_the_ledger_is(name: str, tmp_path: Path) -> None:
    rule, first = RULES[name], tmp_path / "first"
    ledger = open_ledger(first, rule=rule)
    deliver(ledger, 0, upload(rule, 1, 1))
    ledger.save_model()
    deliver(ledger, 1, upload(rule, 2, 1))
    deliver(ledger, 2, upload(rule, 3, 1)[:2])
    ledger.close()
    for statement in range(1, 200):
        copy = shutil.copytree(first, tmp_path / f"at-{statement}")
        victim = open_ledger(copy, rule=rule)

        def work(victim: Ledger = victim) -> None:
            deliver(victim, 2, upload(rule, 3, 1))
            victim.save_model()

        killed = dies_at(statement, victim._database.connection, work)
        left = open_ledger(copy, rule=rule)
        assert same_state(left.replay().rule_state, left.state.rule_state)
        # The broker gives it all again: then it is there, once.
        deliver(left, 2, upload(rule, 3, 1))
        if statement == 1:
            expected = left
        assert same(left, expected)
        if not killed:
            break
    assert statement > 15


def test_versions_are_what_the_rule_and_the_mean_make_of_whole_uploads(tmp_path: Path) -> None:
    for name, rule in RULES.items():
        ledger = open_ledger(tmp_path / name, rule=rule)
        state = begin_server(INITIAL, rule.rule, rule.terms, averages=rule.average_rounds > 0)
        for number in range(1, 5):
            for device in (2, 0, 1):
                chunks = upload(rule, 10 * number + device, number, round_=number)
                deliver(ledger, device, list(reversed(chunks)))
                sent = joined([unpack(data, LAYOUT).entries for data in chunks])
                arrival = Arrival(
                    device=device, sent=sent, staleness_rounds=number, round=number, samples=10 + device,
                    reach=0.1 * number,
                )  # fmt: skip
                state = aggregate(state, rule.rule, [arrival], rule.terms)
                state = average(state, ledger.version, rule.average_rounds)
                assert ledger.version == 3 * (number - 1) + (2, 0, 1).index(device) + 1
        assert torch.equal(ledger.model, state.model), name
        assert torch.equal(ledger.state.judged, state.judged), name


@dataclass(frozen=True)
class Spy(ServerRule):
    """Notes what it is given."""

    seen: list[Arrival] = field(default_factory=list)

    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        self.seen.extend(arrivals)
        return model.clone(), state


def test_a_rule_that_takes_no_pieces_gets_whole_uploads_and_what_is_left_of_sealed_ones(tmp_path: Path) -> None:
    spy = Spy()
    ledger = open_ledger(tmp_path, rule=aggregation(spy))
    intake = Intake(ledger, OnArrival(), LAYOUT)
    chunks = chunks_of(1)
    intake.chunks([(0, data) for data in chunks[:-1]])
    assert (ledger.version, spy.seen) == (0, [])
    assert len(ledger.queued()) == len(chunks) - 1
    intake.chunks([(0, chunks[-1]), (1, chunks_of(2)[0])])
    whole = joined([unpack(data, LAYOUT).entries for data in chunks])
    (arrival,) = spy.seen
    assert (ledger.version, arrival.device, arrival.samples) == (1, 0, 10)
    assert torch.equal(arrival.sent.indices, whole.indices)
    assert torch.equal(arrival.sent.values, whole.values)
    # No more of it comes: what was recorded counts.
    intake.ask(1, Ask(update=1, seal=True).packed())
    assert (ledger.version, ledger.queued()) == (2, [])
    assert (spy.seen[-1].device, len(spy.seen[-1].sent)) == (1, len(unpack(chunks_of(2)[0], LAYOUT).entries))
    # The same when a device has lost its past.
    intake.chunks([(2, chunks_of(3)[0])])
    intake.ask(2, Ask(fresh=True).packed())
    assert ledger.version == 3


def test_a_rule_learns_all_that_is_known_of_an_upload(tmp_path: Path) -> None:
    spy, shares = Spy(), Schedule("cosine", 50).shares(8, 5).sum()
    senders = Senders(samples=(7, 8, 9), learning_rate=0.1, schedule=Schedule("cosine", 50))
    rule = Aggregation(rule=spy, terms=aggregation().terms, senders=senders)
    chunk = unpack(chunks_of(1)[0], LAYOUT)
    late = Chunk(
        update=3, chunk=0, chunks=1, round=12, received_round=7, base_version=0, spent_joules=0.0, entries=chunk.entries
    )  # fmt: skip
    deliver(open_ledger(tmp_path, rule=rule), 2, [late.packed(LAYOUT)])
    (arrival,) = spy.seen
    assert (arrival.round, arrival.staleness_rounds, arrival.samples) == (12, 5, 9)
    assert arrival.reach == pytest.approx(0.1 * shares)


def test_a_device_that_claims_any_number_of_rounds_costs_no_more_than_a_run() -> None:
    senders = Senders(samples=(1,), learning_rate=0.1, schedule=Schedule("cosine", 50))
    sent = Sparse(torch.arange(1), torch.ones(1))
    assert senders.arrival(0, sent, round_=4_000_000_000, staleness_rounds=4_000_000_000).reach < 0.1 * 51


def test_a_part_of_a_model_goes_into_no_version(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, rule=RULES["mix"])
    deliver(ledger, 0, model_chunks(1)[:3])
    assert (ledger.version, len(ledger.queued())) == (0, 3)
    ledger.seal(0, 1)
    OnArrival().apply_due(ledger)
    assert (ledger.version, ledger.queued(), ledger.applied()) == (0, [], {})
    # The device knows them as recorded, and so does the ledger.
    assert ledger.standing(0, 1) == (2, [0, 1, 2], True)
    assert len(ledger.recorded()) == 3
    deliver(ledger, 0, model_chunks(2, number=2, round_=9, received_round=5))
    expected = INITIAL.lerp(noise(2), Mix().weight(4))
    assert torch.equal(ledger.model, expected)
    assert torch.equal(open_ledger(tmp_path, rule=RULES["mix"]).replay().model, expected)


def test_a_model_that_lacks_entries_is_refused_with_its_last_chunk(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, rule=RULES["mix"])
    few = chunks_of(1)
    deliver(ledger, 0, few[:-1])
    with pytest.raises(WireError, match=f"the model has 204 entries, expected {ENTRIES}"):
        ledger.record(0, few[-1])
    alone = Chunk(
        update=1, chunk=0, chunks=1, round=1, received_round=0, base_version=0, spent_joules=0.0,
        entries=unpack(few[0], LAYOUT).entries,
    )  # fmt: skip
    with pytest.raises(WireError, match="the model has"):
        ledger.record(1, alone.packed(LAYOUT))
    assert ledger.version == 0


def test_models_cannot_be_clipped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"clip_norm = 2\.0: not allowed"):
        open_ledger(tmp_path, Limits(clip_norm=2.0), RULES["mix"])


@pytest.mark.parametrize("name", RULES)
def test_any_version_comes_down_to_any_device_to_the_bit(name: str, tmp_path: Path) -> None:
    rule = RULES[name]
    ledger, models = open_ledger(tmp_path, rule=rule), [INITIAL]
    for number in range(1, 8):
        deliver(ledger, number % 3, upload(rule, number, number))
        models.append(ledger.model)
        if number == 3:
            ledger.save_model()
    for version, model in enumerate(models):
        assert torch.equal(ledger.model_at(version), model)
        for have in range(version + 1):
            offered = Downloads(LAYOUT, tmp_path).offer(ledger, version, have)
            base = None if offered.base_version is None else models[have]
            assert torch.equal(unpacked(offered.data, LAYOUT, base=base, digest=offered.digest), model)


def test_entries_that_a_rule_changes_are_those_that_differ_to_the_bit(tmp_path: Path) -> None:
    ledger, models = open_ledger(tmp_path, rule=RULES["pairs"]), [INITIAL]
    for number in range(1, 7):
        deliver(ledger, number % 3, chunks_of(number, number=number))
        models.append(ledger.model)
    # The first of two uploads changes nothing but what the rule remembers.
    assert torch.equal(models[1], models[0])
    assert not ledger.changed_between(4, 5).any()
    assert np.array_equal(ledger.changed_between(5, 6), (models[5] != models[6]).numpy())


def meetings(*pairs: tuple[int, int]) -> Opportunities:
    none = np.zeros(len(pairs))
    rounds, devices = (np.array(column) for column in zip(*pairs, strict=True))
    return Opportunities(round=rounds, device=devices, contact_s=none, distance_m=none)


def test_by_plan_the_mean_is_taken_in_every_round_with_contacts_or_without(tmp_path: Path) -> None:
    rule = RULES["adam and average"]
    plan = ByPlan(meetings((2, 0), (2, 1), (6, 2)), rounds=9)
    intake = Intake(open_ledger(tmp_path, rule=rule), plan, LAYOUT)
    state = begin_server(INITIAL, rule.rule, rule.terms, averages=True)
    seeds = {2: {0: 1, 1: 2}, 6: {2: 3}}

    def exchange(device: int, round_: int, seed: int) -> Any:
        intake.chunks([(device, data) for data in chunks_of(seed, round_=round_)])
        return intake.finish(device, Finish(round=round_, update=1).packed())

    for round_ in range(1, 10):
        arrivals = []
        for device, seed in seeds.get(round_, {}).items():
            sent = joined([unpack(data, LAYOUT).entries for data in chunks_of(seed)])
            arrivals.append(Arrival(device=device, sent=sent))
        state = average(aggregate(state, rule.rule, arrivals, rule.terms), round_, rule.average_rounds)
    for round_, devices in seeds.items():
        for device, seed in devices.items():
            exchange(device, round_, seed)
        intake.ledger.save_model()
        intake.ledger.close()
        intake = Intake(open_ledger(tmp_path, rule=rule), plan, LAYOUT)
    assert intake.ledger.next_round == 10
    assert torch.equal(intake.ledger.model, state.model)
    assert torch.equal(intake.ledger.state.judged, state.judged)
    assert not torch.equal(state.judged, state.model)
    assert torch.equal(intake.ledger.replay().judged, state.judged)
    assert (intake.ledger.version_before(6), intake.ledger.version_after(6)) == (1, 2)


class _Drifting(Add):
    """Changes every entry, sent or not."""

    def apply(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms
    ) -> tuple[Tensor, State]:
        return super().apply(model, state, arrivals, terms)[0] + 1.0, state


@pytest.mark.parametrize("rule", [Add(), _Drifting()])
def test_a_download_has_every_entry_that_a_rule_changes(rule: ServerRule) -> None:
    assert rule.changes_only_sent == (type(rule) is Add)
    senders = Senders(samples=None, learning_rate=1.0)
    aggregation = Aggregation(rule=rule, terms=ServerTerms(devices=2), senders=senders)
    versions = Versions.from_first(aggregation, torch.arange(6.0))
    arrivals = [
        senders.arrival(device, Sparse(torch.tensor(indices), torch.tensor(values)), round_=1, staleness_rounds=1)
        for device, (indices, values) in enumerate((([0, 2], [1.0, 0.0]), ([2, 4], [3.0, -1.0])))
    ]
    versions.advance(1, 1, arrivals, 2)
    # The zero that the first device sends for entry 2 changes nothing; the second device changes it.
    assert versions.latest.changed.tolist() == ([1, 0, 1, 0, 1, 0] if rule.changes_only_sent else [1] * 6)


def test_the_table_of_changes_holds_any_version() -> None:
    senders = Senders(samples=None, learning_rate=1.0)
    aggregation = Aggregation(rule=Add(), terms=ServerTerms(devices=2), senders=senders)
    versions = Versions.from_first(aggregation, torch.arange(3.0))
    for version in (7, 2**32 - 1, 2**32, 2**32 + 5):
        sent = Sparse(torch.tensor([version % 3]), torch.tensor([1.0]))
        arrival = senders.arrival(0, sent, round_=version, staleness_rounds=1)
        versions.latest = replace(versions.latest, round=version - 1)
        versions.advance(version, version, [arrival], 2)
        assert versions.latest.changed[version % 3] == version
    assert versions.latest.changed.tolist() == [2**32 + 5, 2**32, 0]
