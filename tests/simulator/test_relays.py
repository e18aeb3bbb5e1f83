"""Relays between devices: nothing is lost or counted twice, and every rule holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import wayfare
from tests.conftest import SMALL
from tests.simulator.test_simulator import Notes
from wayfare import device as devices
from wayfare.engine import OnDisk
from wayfare.errors import InvariantError
from wayfare.learning.models.base import load_vector, read_vector
from wayfare.methods import make_method
from wayfare.mobility import SERVER
from wayfare.radio import Link
from wayfare.records.checkpoints import read_checkpoint, write_checkpoint
from wayfare.scenario import Scenario
from wayfare.simulator import Checks, Outcome, RelayEvent, Simulation, SimulationState
from wayfare.world import World, draw_peers, draw_world

LINK = Link(bandwidth_hz=1e3, max_power_watts=0.2, parameters=50, bits_per_entry=38.0, dense_bits=1600.0)
# Enough bandwidth that most of what devices send for each other arrives, and little enough that some of it does not.
OFTEN = (*SMALL, "radio.bandwidth_hz=2500", "mobility.width_m=500", "mobility.height_m=500", "rounds=80")


def scenario(*overrides: str) -> Scenario:
    return wayfare.load("fashion-small", [*OFTEN, *overrides])


def simulation(world: World, notes: Notes, name: str = "fedmobile:unlimited", **options: object) -> Simulation:
    scheme = make_method(name, world.scenario)
    return Simulation(world, scheme, notes, **options)  # type: ignore[arg-type]


def simulate(chosen: Scenario, name: str = "fedmobile:unlimited", **options: object) -> tuple[Outcome, Notes]:
    notes = Notes()
    return simulation(draw_world(chosen, 0), notes, name, **options).run(), notes


def done(notes: Notes, kind: str) -> list[RelayEvent]:
    return [event for event in notes.relays if event.kind == kind and event.completed]


@pytest.mark.parametrize("delivery", ["separate", "merged"])
@pytest.mark.parametrize("engine", ["stacked", "reference"])
def test_mass_is_conserved_with_parcels_on_their_way(delivery: str, engine: str) -> None:
    """The ledger looks after every round; it fails on what is lost or counted twice."""
    chosen = scenario(f"relays.delivery={delivery}", "learning.evaluate_every_rounds=1")
    _, notes = simulate(chosen, engine=engine, checks=Checks(paranoid=True))
    assert len(done(notes, "upload")) > 10
    assert len(done(notes, "download")) > 10
    assert len(done(notes, "delivery")) > 5


def test_the_ledger_notices_what_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    # An owner that does not forget what it handed over delivers it a second time.
    monkeypatch.setattr(devices, "hand_over", lambda state, update: state)
    with pytest.raises(InvariantError, match="lost or counted twice"):
        simulate(scenario("learning.evaluate_every_rounds=1"), checks=Checks(paranoid=True))


def test_every_parcel_is_delivered_once_or_still_on_its_way() -> None:
    for delivery in ("separate", "merged"):
        notes = Notes()
        run = simulation(draw_world(scenario(f"relays.delivery={delivery}"), 0), notes)
        run.run()
        handed = Counter((event.taker, event.owner) for event in done(notes, "upload"))
        delivered = Counter((event.giver, event.owner) for event in done(notes, "delivery"))
        waiting = Counter((parcel.relay, parcel.owner) for parcel in run.state().relays.parcels)
        assert handed == delivered + waiting
        assert delivered
        assert all(event.taker == SERVER for event in done(notes, "delivery"))


def test_merged_and_separate_deliveries_bring_the_server_the_same() -> None:
    # With room for everything the same parcels arrive at the same contacts, and a sum does not mind its brackets.
    runs = [simulate(scenario(f"relays.delivery={way}", "radio.bandwidth_hz=1e6")) for way in ("separate", "merged")]
    (separate, one), (merged, other) = runs
    assert [(e.round, e.kind, e.giver, e.taker, e.owner) for e in one.relays] == [
        (e.round, e.kind, e.giver, e.taker, e.owner) for e in other.relays
    ]
    assert len(done(one, "delivery")) == len(done(one, "upload")) > 20
    torch.testing.assert_close(separate.model, merged.model, rtol=0, atol=1e-4)
    assert all(event.bits > 0 for event in done(one, "delivery"))
    assert all(event.bits == 0 == event.energy_joules for event in done(other, "delivery"))


def contacts_of(world: World, device: int) -> list[int]:
    return [int(round_) for round_ in world.meets.round[world.meets.device == device]]


@pytest.mark.parametrize("limits", [(1, 1), (2, 2), (0, 1), (1, 0)])
def test_windows_and_limits_hold(limits: tuple[int, int]) -> None:
    uploads, downloads = limits
    rules = {
        "upload_after_rounds": 1,
        "upload_window_rounds": 5,
        "download_after_rounds": 2,
        "download_window_rounds": 4,
    }
    rules |= {"uploads_per_interval": uploads, "downloads_per_interval": downloads}
    chosen = scenario(*(f"relays.{name}={value}" for name, value in rules.items()), "radio.bandwidth_hz=1e5")
    world = draw_world(chosen, 0)
    _, notes = simulate(chosen)
    used: Counter[tuple[str, int, int]] = Counter()
    for event in notes.relays:
        if event.kind == "delivery":
            continue
        device = event.owner if event.kind == "upload" else event.taker
        contacts = contacts_of(world, device)
        last = max((contact for contact in contacts if contact < event.round), default=0)
        soonest = min((contact for contact in contacts if contact >= event.round), default=10**9)
        after, window = (1, 5) if event.kind == "upload" else (2, 4)
        assert after < event.round - last <= after + window
        if event.kind == "upload":
            relay = [contact for contact in contacts_of(world, event.taker) if contact >= event.round]
            assert relay
            assert relay[0] < soonest
        else:
            assert soonest > event.round
        used[event.kind, device, last] += event.completed
    found = {kind: [count for (other, *_), count in used.items() if other == kind] for kind in ("upload", "download")}
    assert max(found["upload"], default=0) == uploads
    assert max(found["download"], default=0) == downloads


def test_a_relay_keeps_no_more_than_it_has_room_for() -> None:
    for room in (1, 2):
        carried: Counter[int] = Counter()
        most = 0
        _, notes = simulate(scenario(f"relays.parcels_per_relay={room}"))
        for event in notes.relays:
            if event.completed and event.kind == "upload":
                carried[event.taker] += 1
            elif event.kind == "delivery":
                carried[event.giver] -= 1
            most = max(most, *carried.values())
        assert most == room


def test_a_failed_relay_burns_energy_and_changes_nothing_else() -> None:
    chosen = scenario("radio.bandwidth_hz=1", "rounds=60")
    (outcome, notes), (without, others) = (
        simulate(chosen, "fedmobile:billed:unlimited"),
        simulate(chosen, "afl:unlimited"),
    )
    assert len([event for event in notes.relays if event.kind == "upload"]) > 10
    assert not any(event.completed or event.bits for event in notes.relays)
    # Nobody has a model newer than the first, so there is nothing to take.
    assert {event.kind for event in notes.relays} == {"upload"}
    assert torch.equal(outcome.model, without.model)
    for mine, theirs in zip(outcome.states, without.states, strict=True):
        assert torch.equal(mine.memory, theirs.memory)
        assert mine.received_round == theirs.received_round == 0
    burnt = sum(state.spent_joules for state in outcome.states) - sum(state.spent_joules for state in without.states)
    assert burnt == pytest.approx(sum(event.energy_joules for event in notes.relays))
    assert burnt > 0
    # By default contacts that are too short are skipped; free relays that try them all burn nothing.
    untried = simulate(chosen)[1]
    assert not untried.relays
    free = simulate(scenario("radio.bandwidth_hz=1", "rounds=60", "relays.attempts=all"))[1]
    assert len(free.relays) == len(notes.relays)
    assert not any(event.energy_joules or event.completed for event in free.relays)
    assert [event.energy_joules for event in untried.contacts] == [event.energy_joules for event in others.contacts]


@pytest.mark.parametrize("rule", ["", ":paced"])
def test_free_relays_cost_a_device_nothing(rule: str) -> None:
    """Contacts with the server are decided and paid for as in AFL, whoever relays."""
    (outcome, notes), (_, alone) = simulate(scenario(), f"fedmobile{rule}"), simulate(scenario(), f"afl{rule}")
    assert done(notes, "upload")
    assert done(notes, "delivery")
    assert not any(event.energy_joules for event in notes.relays)
    assert [event.energy_joules for event in notes.contacts] == [event.energy_joules for event in alone.contacts]
    assert sum(state.spent_joules for state in outcome.states) == notes.evaluations[-1].energy_joules


def test_nobody_hands_an_update_to_a_device_without_energy_to_deliver_it() -> None:
    outcome, notes = simulate(scenario("fleet.energy_total_joules=2"), "fedmobile")
    handed = done(notes, "upload")
    gone = [state.left_joules <= 1e-9 * state.budget_joules for state in outcome.states]
    assert any(gone)
    for device, is_gone in enumerate(gone):
        last_paid = max(
            (event.round for event in notes.contacts if event.device == device and event.energy_joules), default=0
        )
        if is_gone:
            assert all(event.round <= last_paid for event in handed if event.taker == device)
    # A device whose energy is gone still hands its own updates on.
    assert any(gone[event.giver] for event in handed)


def test_the_billed_reading_is_three_settings() -> None:
    rules = ("relays.energy=budget", "relays.attempts=all", "relays.delivery=separate")
    (one, notes), (other, others) = simulate(scenario(), "fedmobile:billed"), simulate(scenario(*rules), "fedmobile")
    assert torch.equal(one.model, other.model)
    assert (notes.contacts, notes.relays) == (others.contacts, others.relays)


@pytest.mark.parametrize("rule", ["", ":paced"])
def test_billed_relays_are_paid_out_of_the_same_budget(rule: str) -> None:
    outcome, notes = simulate(scenario(), f"fedmobile:billed{rule}")
    assert notes.relays
    spent = sum(state.spent_joules for state in outcome.states)
    assert spent == pytest.approx(
        sum(event.energy_joules for event in notes.contacts) + sum(event.energy_joules for event in notes.relays)
    )
    assert all(state.spent_joules <= state.budget_joules * (1 + 1e-9) for state in outcome.states)
    assert notes.evaluations[-1].energy_joules == pytest.approx(spent)
    delivered = sum(event.bits for event in notes.contacts) + sum(event.bits for event in notes.relays)
    assert notes.evaluations[-1].bits == pytest.approx(delivered)


def test_two_transfers_of_one_contact_share_its_time() -> None:
    chosen = scenario("radio.bandwidth_hz=1e4")
    world, peers = draw_world(chosen, 0), draw_peers(chosen, 0)
    _, notes = simulate(chosen, "fedmobile:billed:unlimited")
    long_s = {
        (int(r), int(a), int(b)): float(s)
        for r, a, b, s in zip(
            peers.meets.round, peers.meets.device, peers.meets.peer, peers.meets.contact_s, strict=True
        )
    }
    used: Counter[tuple[int, int, int]] = Counter()
    shared = 0
    for event in notes.relays:
        if event.kind == "delivery":
            continue
        pair = (event.round, min(event.giver, event.taker), max(event.giver, event.taker))
        shared += pair in used
        assert event.contact_s == pytest.approx(long_s[pair] - used[pair])
        used[pair] += event.energy_joules / world.link.max_power_watts  # type: ignore[assignment]
    assert shared > 0


@pytest.mark.parametrize("delivery", ["separate", "merged"])
@pytest.mark.parametrize("engine", ["reference", "stacked"])
def test_a_run_goes_on_to_the_same_bits_with_parcels_on_their_way(delivery: str, engine: str, tmp_path: Path) -> None:
    world = draw_world(scenario(f"relays.delivery={delivery}"), 0)

    class Saving(Notes):
        def on_round(self, round_: int) -> None:
            super().on_round(round_)
            if round_ in (23, 47):
                saved.append(write_checkpoint(tmp_path, first.state()))
                events.append((len(self.contacts), len(self.relays)))

    saved, events = list[Path](), list[tuple[int, int]]()
    notes = Saving()
    first = simulation(world, notes, engine=engine)
    outcome = first.run()
    assert done(notes, "download")
    for place, checkpoint in enumerate(saved):
        state = read_checkpoint(tmp_path, checkpoint)
        assert state.relays.parcels
        again = Notes()
        shelf = OnDisk(tmp_path / "rows", 6, len(world.initial_model)) if place else None
        second = simulation(world, again, engine=engine, shelf=shelf)
        second.restore(state)
        resumed = second.run()
        assert torch.equal(resumed.model, outcome.model)
        contacts, relays = events[place]
        assert again.contacts == notes.contacts[contacts:]
        assert again.relays == notes.relays[relays:]
        for mine, theirs in zip(resumed.states, outcome.states, strict=True):
            assert torch.equal(mine.memory, theirs.memory)


def test_a_state_of_a_scheme_without_relays_is_refused() -> None:
    world = draw_world(scenario(), 0)
    state = simulation(world, Notes(), "afl").state()
    with pytest.raises(ValueError, match="from a method without relays"):
        simulation(world, Notes()).restore(state)
    broken = replace(state, relays=replace(state.relays, parcels=[]))
    assert isinstance(broken, SimulationState)
    assert broken.first_nonfinite() is None


def test_meetings_of_devices_change_nothing_else_in_a_world(small: Scenario) -> None:
    draw_world.cache_clear()
    before = draw_world(small, 3)
    peers = draw_peers(small, 3)
    draw_world.cache_clear()
    after = draw_world(small, 3)
    assert np.array_equal(before.gains_per_watt, after.gains_per_watt)
    assert np.array_equal(before.meets.distance_m, after.meets.distance_m)
    assert len(peers.meets) > 50
    assert (peers.meets.device < peers.meets.peer).all()


def test_channels_between_devices_do_not_depend_on_the_fleet_or_the_length(small: Scenario) -> None:
    short = draw_peers(small, 0)
    longer = draw_peers(small.model_copy(update={"rounds": 90}), 0)
    larger = draw_peers(small.model_copy(update={"fleet": small.fleet.model_copy(update={"devices": 9})}), 0)
    # A contact that the end cuts short is another one in a longer run.
    known = {(r, a, b): g for r, a, b, g in rows(short) if r < 50}
    assert len(known) > 40
    for other in (longer, larger):
        found = {(r, a, b): g for r, a, b, g in rows(other)}
        assert all(found[key] == gain for key, gain in known.items())
    assert not np.array_equal(draw_peers(small, 1).gains_per_watt[:9], short.gains_per_watt[:9])


def rows(peers: object) -> list[tuple[int, int, int, float]]:
    meets, gains = peers.meets, peers.gains_per_watt  # type: ignore[attr-defined]
    return list(zip(meets.round.tolist(), meets.device.tolist(), meets.peer.tolist(), gains.tolist(), strict=True))


def steps(world: World, device: int, model: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Local SGD, written out."""
    module = world.task.model.module()
    load_vector(module, model)
    optimizer = torch.optim.SGD(module.parameters(), lr=world.scenario.learning.learning_rate)
    for round_ in range(first, last + 1):
        optimizer.zero_grad()
        world.task.loss(module, torch.from_numpy(world.batches.of(device, round_, 1)[0])).backward()
        optimizer.step()
    return read_vector(module)
