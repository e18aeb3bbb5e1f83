"""Whole runs: mass, repeats, the same world for every scheme."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import wayfare
from tests.conftest import SMALL
from wayfare.codec import length
from wayfare.device import DeviceState, Transmission
from wayfare.engine import ENGINES, Burst, Policy
from wayfare.engine.reference import Reference
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks import Classification, Evaluation
from wayfare.methods import Arrival, ServerTerms, State, make_method
from wayfare.methods.servers import Add
from wayfare.scenario import Scenario
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, Outcome, RelayEvent, Simulation
from wayfare.simulator.device_side import DeviceSide
from wayfare.sparsify import spectrum
from wayfare.waiting import Arriving, fetched
from wayfare.world import World, draw_world

# Those that add updates to the global model; mass is conserved.
ADDING = ["mads", "optimal", "afl-spar", "afl-spar:paced", "afl", "afl:unlimited", "sfl-spar", "sfl-spar:paced"]
ADDING += ["fedmobile", "fedmobile:unlimited", "mads-rd", "mads-rd:progressive"]
SCHEMES = [*ADDING, "fedasync", "fedasync:hinge:unlimited"]
# tests/methods/test_every_method.py has the same checks for every method under its own energy rule and paced.
CHOICES = ["mads", "afl:unlimited", "fedmobile:unlimited", "mads-rd:progressive", "fedasync:hinge:unlimited"]


@dataclass
class Notes:
    contacts: list[ContactEvent] = field(default_factory=list)
    relays: list[RelayEvent] = field(default_factory=list)
    evaluations: list[EvaluationEvent] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def on_contact(self, event: ContactEvent) -> None:
        self.contacts.append(event)

    def on_relay(self, event: RelayEvent) -> None:
        self.relays.append(event)

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        self.evaluations.append(event)

    def on_round(self, round_: int) -> None:
        self.rounds.append(round_)


def simulate(world: World, name: str, engine: str = "auto", policy: Policy = "ahead") -> tuple[Outcome, Notes]:
    notes = Notes()
    scheme = make_method(name, world.scenario)
    return Simulation(world, scheme, notes, engine=engine, policy=policy).run(), notes


@pytest.mark.parametrize("name", ["mads", "mads-rd:progressive", "fedasync:unlimited", "scaffold", "mads + guard"])
def test_uploads_applied_before_the_end_of_their_round_give_the_same_bits(
    name: str, small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = draw_world(small, 3)
    expected, notes = simulate(world, name)
    monkeypatch.setattr("wayfare.simulator.server_side._MOST_WAITING", 0)
    found, again = simulate(world, name)
    assert torch.equal(found.model, expected.model)
    assert again == notes


@pytest.mark.parametrize("name", ["mads", "mads-rd", "mads-rd:progressive", "fedmobile", "scaffold"])
def test_contacts_that_wait_in_turns_give_the_same_bits(
    name: str, small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, groups = draw_world(small, 3), []
    expected, notes = simulate(world, name)
    contacts = DeviceSide.contacts

    def together(fleet: DeviceSide, group: list[tuple[int, int]], states: list[DeviceState]) -> list[Transmission]:
        groups.append([device for _, device in group])
        return contacts(fleet, group, states)

    monkeypatch.setattr(DeviceSide, "contacts", together)
    again = Notes()
    simulation = Simulation(world, make_method(name, small), again)
    simulation._fleet._at_a_time = 3
    found = simulation.run()
    assert torch.equal(found.model, expected.model)
    assert all(torch.equal(one.memory, two.memory) for one, two in zip(found.states, expected.states, strict=True))
    assert again == notes
    assert max(map(len, groups)) == 3
    assert all(len(set(group)) == len(group) for group in groups)


@pytest.mark.parametrize("every", [3, 7])
@pytest.mark.parametrize("name", ["mads", "mads-rd", "mads-rd:progressive", "fedmobile", "scaffold"])
def test_contacts_that_begin_before_their_round_give_the_same_bits(
    name: str, every: int, small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, looks = draw_world(small, 3), itertools.count()
    expected, notes = simulate(world, name)

    def late(numbers: Tensor) -> Arriving[NDArray[Any]]:
        return replace(fetched(numbers), is_here=lambda: next(looks) % every == 0)

    for module in (spectrum, length):
        monkeypatch.setattr(module, "fetched", late)
    again = Notes()
    simulation = Simulation(world, make_method(name, small), again)
    fleet, ahead = simulation._fleet, list[int]()
    fleet._at_a_time = 4
    go_ahead = fleet._go_ahead

    def counted(group: Sequence[tuple[int, int]]) -> bool:
        went = go_ahead(group)
        ahead.extend(row for row in fleet._begun if world.meets.round[row] > world.meets.round[group[0][0]])
        return went

    monkeypatch.setattr(fleet, "_go_ahead", counted)
    found = simulation.run()
    assert torch.equal(found.model, expected.model)
    assert all(torch.equal(one.memory, two.memory) for one, two in zip(found.states, expected.states, strict=True))
    assert again == notes
    # Devices that meet each other may send something else.
    assert bool(ahead) == (name != "fedmobile")


def test_a_device_with_two_contacts_in_a_round_begins_the_second_after_the_first(small: Scenario) -> None:
    fleet = Simulation(draw_world(small, 3), make_method("mads", small), Notes())._fleet
    fleet._at_a_time = 3
    found = list(fleet.groups([(0, 4), (1, 2), (2, 4), (3, 5), (4, 6), (5, 7)]))
    assert found == [[(0, 4), (1, 2)], [(2, 4), (3, 5), (4, 6)], [(5, 7)]]


def test_the_uploads_of_a_large_fleet_do_not_wait_together(small: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfare.simulator.server_side._MOST_WAITING", 0)
    counts = []
    apply = Add.apply

    def counted(rule: Add, model: Tensor, state: State, arrivals: Sequence[Arrival], terms: ServerTerms) -> object:
        counts.append(len(arrivals))
        return apply(rule, model, state, arrivals, terms)

    monkeypatch.setattr(Add, "apply", counted)
    _, notes = simulate(draw_world(small, 3), "mads")
    together = Counter(event.round for event in notes.contacts if event.entries)
    assert max(together.values()) > 1
    assert counts == [1] * together.total()


@pytest.mark.parametrize("name", ADDING)
def test_mass_is_conserved_over_a_whole_run(name: str, small: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything the devices ever computed is in the global model, in a memory, or under way: nothing twice."""
    world = draw_world(small, 0)
    computed = [torch.zeros(world.link.parameters, dtype=torch.float64) for _ in world.held]
    run = StackedMlp.run

    def keep_account(self: StackedMlp, models: Sequence[torch.Tensor], bursts: Sequence[Burst]) -> None:
        before = [model.double() for model in models]
        run(self, models, bursts)
        for burst, model, was in zip(bursts, models, before, strict=True):
            computed[burst.device] += was - model.double()

    monkeypatch.setattr(StackedMlp, "run", keep_account)
    notes = Notes()
    simulation = Simulation(world, make_method(name, small), notes, engine="stacked")
    outcome = simulation.run()
    undelivered = [
        state.memory.double() + state.received.double() - simulation.local_model(device).double()
        for device, state in enumerate(outcome.states)
    ]
    undelivered += [parcel.update.double() for parcel in simulation.state().relays.parcels]
    delivered = (world.initial_model.double() - outcome.model.double()) * len(world.held)
    total = sum(computed)
    assert isinstance(total, torch.Tensor)
    assert float(delivered.norm()) > 0
    assert float((total - delivered - sum(undelivered)).norm()) <= 1e-5 * float(total.norm())
    assert any(event.completed and event.entries for event in notes.contacts)


@pytest.mark.parametrize("name", CHOICES)
def test_two_runs_with_one_seed_are_identical_to_the_bit(name: str, small: Scenario) -> None:
    (first, notes), (second, again) = (simulate(draw_world(small, 5), name) for _ in range(2))
    assert torch.equal(first.model, second.model)
    assert notes == again
    draw_world.cache_clear()
    fresh, _ = simulate(draw_world(small, 5), name)
    assert torch.equal(first.model, fresh.model)


# Not those that quantise: there the last digit decides on which side of a step a value falls.
@pytest.mark.parametrize("name", [name for name in SCHEMES if not name.startswith("mads-rd")])
def test_every_engine_and_policy_gives_the_same_run(name: str, small: Scenario) -> None:
    # In double precision and on noisy images: the corners of all images are equal, so their weights get equal updates,
    # and a rounding error would decide which of them is sent.
    world = draw_world(small, 1)
    assert isinstance(world.task, Classification)
    drawn = np.asarray(np.random.default_rng(0).normal(0, 0.1, world.task.train_inputs.shape), np.float32)
    noise = torch.from_numpy(drawn)
    task = replace(world.task, train_inputs=world.task.train_inputs + noise)
    world = replace(world, initial_model=world.initial_model.double(), task=task)
    expected, notes = simulate(world, name, engine="reference", policy="stepwise")
    # The reference under every policy is the next test.
    policies: tuple[Policy, ...] = ("lazy", "ahead") if name == "mads" else ("ahead",)
    for engine in set(ENGINES) - {"reference", "cuda_graphs", "batched"}:
        for policy in policies:
            found, others = simulate(world, name, engine=engine, policy=policy)
            torch.testing.assert_close(found.model, expected.model, rtol=1e-9, atol=1e-12)
            assert [event.entries for event in others.contacts] == [event.entries for event in notes.contacts]


@pytest.mark.parametrize("name", CHOICES)
def test_when_bursts_run_makes_no_difference_to_the_last_bit(name: str, small: Scenario) -> None:
    world = draw_world(small, 1)
    expected, notes = simulate(world, name, engine="reference", policy="stepwise")
    for policy in ("lazy", "ahead"):
        found, others = simulate(world, name, engine="reference", policy=policy)
        assert torch.equal(found.model, expected.model)
        assert others == notes


def test_every_scheme_meets_the_identical_world(small: Scenario) -> None:
    worlds = set()
    for name in SCHEMES:
        _, notes = simulate(draw_world(small, 2), name)
        worlds.add(tuple((e.round, e.device, e.contact_s, e.gain_per_watt, e.distance_m) for e in notes.contacts))
    assert len(worlds) == 1


def test_every_part_of_a_world_depends_on_its_seed(small: Scenario) -> None:
    one, two = draw_world(small, 0), draw_world(small, 1)
    assert not np.array_equal(one.plan.start_s[:5], two.plan.start_s[:5])
    assert not np.array_equal(one.plan.distance_m[:5], two.plan.distance_m[:5])
    assert not np.array_equal(one.gains_per_watt[:5], two.gains_per_watt[:5])
    assert not np.array_equal(one.budgets_joules, two.budgets_joules)
    assert not np.array_equal(one.held[0], two.held[0])
    assert not np.array_equal(one.batches.of(0, 1, 1), two.batches.of(0, 1, 1))
    assert not torch.equal(one.initial_model, two.initial_model)
    exponential = wayfare.load("fashion-small", ["mobility.model=exponential", "rounds=60"])
    assert not np.array_equal(draw_world(exponential, 0).plan.start_s[:5], draw_world(exponential, 1).plan.start_s[:5])


def test_budgets_lie_in_their_range_and_sum_to_the_total() -> None:
    assert draw_world(wayfare.load(), 3).budgets_joules.sum() == pytest.approx(500)
    budgets = draw_world(wayfare.load(overrides=["fleet.energy_total_joules=5000", "rounds=1"]), 3).budgets_joules
    assert budgets.max() / budgets.min() <= 3
    # Without a total, the drawn ones are used as they are.
    scenario = wayfare.load("paper-cifar10-waypoint", ["learning.task=fashion-small", "rounds=1"])
    assert 50 <= draw_world(scenario, 0).budgets_joules.min() <= draw_world(scenario, 0).budgets_joules.max() <= 150


def test_staleness_counts_the_rounds_since_a_model_was_received(small: Scenario) -> None:
    for name in ("mads", "afl"):
        _, notes = simulate(draw_world(small, 0), name)
        received = dict.fromkeys(range(6), 0)
        for event in notes.contacts:
            assert event.staleness_rounds == event.round - received[event.device] >= 1
            if event.completed:
                received[event.device] = event.round


def test_a_failed_dense_upload_changes_nothing_but_the_energy(small: Scenario) -> None:
    scenario = wayfare.load(
        "fashion-small",
        ["rounds=40", "radio.bandwidth_hz=1", "learning.hidden=[8]", "learning.evaluate_every_rounds=40"],
    )
    world = draw_world(scenario, 0)
    outcome, notes = simulate(world, "afl:unlimited")
    assert notes.contacts
    assert not any(event.completed for event in notes.contacts)
    assert torch.equal(outcome.model, world.initial_model)
    assert all(state.received_round == 0 and not torch.count_nonzero(state.memory) for state in outcome.states)
    assert sum(state.spent_joules for state in outcome.states) > 0


def test_an_upload_of_nothing_still_brings_the_model(small: Scenario) -> None:
    silent = small.model_copy(update={"control": small.control.model_copy(update={"weight": 0.0})})
    outcome, notes = simulate(draw_world(silent, 0), "mads")
    assert all(event.completed and event.entries == 0 and event.energy_joules == 0 for event in notes.contacts)
    last = {event.device: event.round for event in notes.contacts}
    assert all(outcome.states[device].received_round == round_ for device, round_ in last.items())
    assert all(float(outcome.states[device].memory.norm()) > 0 for device in last)


def test_evaluations_come_at_the_start_at_every_interval_and_at_the_end(small: Scenario) -> None:
    uneven = small.model_copy(update={"rounds": 50})
    _, notes = simulate(draw_world(uneven, 0), "optimal")
    assert [event.round for event in notes.evaluations] == [0, 20, 40, 50]
    assert notes.rounds == list(range(1, 51))
    assert [event.time_s for event in notes.evaluations] == [0.0, 200.0, 400.0, 500.0]


def test_devices_that_never_meet_the_server_learn_nothing_and_break_nothing() -> None:
    scenario = wayfare.load(
        "fashion-small",
        ["rounds=5", "radio.range_m=1e-6", "learning.hidden=[8]", "mobility.speed_mps=0.001"],
    )
    world = draw_world(scenario, 0)
    outcome, notes = simulate(world, "mads")
    assert not notes.contacts
    assert torch.equal(outcome.model, world.initial_model)


def test_a_scenario_that_augments_draws_crops_and_one_that_does_not_draws_none(small: Scenario) -> None:
    assert draw_world(small, 0).batches.crops_of(0, 1, 1) is None
    task = draw_world(small, 0).task
    augmented = small.model_copy(update={"learning": small.learning.model_copy(update={"augment": True})})
    crops = draw_world(augmented, 0, task).batches.crops_of(0, 1, 2)
    assert crops is not None
    assert crops.shape == (2, 8, 3)


def test_normalisation_statistics_travel_with_every_upload_and_are_conserved(
    small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((120, 3, 32, 32)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 10, 120))
    model = Resnet9(width=2)
    task = Classification(
        name="noise",
        model=model,
        classes=10,
        train_inputs=images,
        train_labels=labels,
        test_inputs=images[:20],
        test_labels=labels[:20],
    )
    scenario = wayfare.load("fashion-small", [*SMALL, "rounds=12", "fleet.devices=3"])
    world = draw_world(scenario, 0, task)
    assert world.link.statistics_bits == 32 * model.statistics > 0
    computed = torch.zeros(len(world.initial_model), dtype=torch.float64)
    run = Reference.run

    def keep_account(self: Reference, models: Sequence[torch.Tensor], bursts: Sequence[Burst]) -> None:
        nonlocal computed
        before = [model.double() for model in models]
        run(self, models, bursts)
        computed = computed + sum(was - model.double() for was, model in zip(before, models, strict=True))

    monkeypatch.setattr(Reference, "run", keep_account)
    notes = Notes()
    simulation = Simulation(world, make_method("optimal", scenario), notes, engine="reference")
    outcome = simulation.run()
    left = sum(
        state.memory.double() + state.received.double() - simulation.local_model(device).double()
        for device, state in enumerate(outcome.states)
    )
    delivered = (world.initial_model.double() - outcome.model.double()) * 3
    assert float((computed - delivered - left).norm()) <= 1e-5 * float(computed.norm())
    assert float((world.initial_model - outcome.model)[model.parameters :].norm()) > 0
    for event in notes.contacts:
        expected = event.entries * world.link.bits_per_entry + (world.link.statistics_bits if event.entries else 0.0)
        assert event.bits == pytest.approx(expected)
    # A mean of what devices saw is never delivered in part: the tail of a memory is empty after an upload.
    sent = {event.device for event in notes.contacts if event.entries}
    assert all(not torch.count_nonzero(outcome.states[device].memory[model.parameters :]) for device in sent)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Every model that is evaluated, once for each time."""
    models, evaluate = [], Evaluator.__call__

    def counted(evaluator: Evaluator, model: torch.Tensor) -> Evaluation:
        models.append(model)
        return evaluate(evaluator, model)

    monkeypatch.setattr(Evaluator, "__call__", counted)
    return models


def test_a_model_that_does_not_change_is_judged_once(small: Scenario, judged: list[torch.Tensor]) -> None:
    scenario = small.model_copy(update={"learning": small.learning.model_copy(update={"evaluate_every_rounds": 1})})
    _, notes = simulate(draw_world(scenario, 0), "statistics")
    sending = {event.round for event in notes.contacts if event.entries}
    assert len(judged) == len(sending) + 1 < len(notes.evaluations)


def test_the_initial_model_is_judged_once_for_all_schemes(small: Scenario, judged: list[torch.Tensor]) -> None:
    world = replace(draw_world(small, 0))
    notes = [simulate(world, name)[1] for name in ("mads", "optimal")]
    assert sum(bool(torch.equal(model, world.initial_model)) for model in judged) == 1
    assert notes[0].evaluations[0] == notes[1].evaluations[0]
    # Another world of the same scenario judges for itself.
    assert not replace(world).initial_evaluations
