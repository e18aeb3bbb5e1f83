"""Properties of every method in the registry, in one small world."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.simulator.golden_cases import BASE, Case
from tests.simulator.goldens import Records

import wayfare
from wayfare.engine import Policy
from wayfare.errors import ScenarioError
from wayfare.methods import Arrival, Method, PeerRule, Recipe, ServerTerms, compose, make_method
from wayfare.methods.registry import KINDS, PARTS, RULES, TABLE, part_class
from wayfare.methods.states import vectors_of
from wayfare.scenario.exchange import Mixing, Relays
from wayfare.scenario.model import Control
from wayfare.simulator import Checks, Outcome, Simulation, SimulationState
from wayfare.simulator.checkpoint import state_from_plain
from wayfare.sparsify import Sparse
from wayfare.streams import Stream, generator
from wayfare.studies.keys import run_key
from wayfare.studies.single import Execution
from wayfare.world import World, draw_world, world_for

ROUNDS, SAVED_AFTER = 40, 17
# Rounding in double precision of what an upload costs.
SLACK = 1e-9


@cache
def world(*, meets: bool = True) -> World:
    drawn = draw_world(wayfare.load("fashion-small", [*BASE, f"rounds={ROUNDS}"]), 0)
    if meets:
        return drawn
    columns = {column.name: getattr(drawn.meets, column.name)[:0] for column in fields(drawn.meets)}
    nothing = np.empty(0)
    return replace(drawn, meets=replace(drawn.meets, **columns), forecast_s=nothing, gains_per_watt=nothing)


def names() -> list[Any]:
    """Every row, and rows with an energy rule under a paced budget too."""
    found = []
    for name, row in TABLE.items():
        found.append(name)
        found += [f"{name}:paced"] if RULES in row.choices else []
        found += [f"{name}:from-statistics"] if name == "mads-rd" else []
    return found


NAMES = names()


@dataclass
class Saving(Records):
    """Records of a run, and its state in the middle of it, as it comes out of a checkpoint."""

    simulation: Simulation | None = None
    saved: SimulationState | None = None

    def on_round(self, round_: int) -> None:
        if round_ == SAVED_AFTER and self.simulation is not None:
            self.saved = through_a_file(self.simulation.state())


def through_a_file(state: SimulationState) -> SimulationState:
    file = io.BytesIO()
    torch.save(state.plain(), file)
    file.seek(0)
    return state_from_plain(torch.load(file, weights_only=True))


@dataclass(frozen=True)
class Run:
    outcome: Outcome
    records: Saving


def run(
    name: Recipe,
    *,
    engine: str = "stacked",
    policy: Policy = "ahead",
    paranoid: bool = False,
    resume: SimulationState | None = None,
    where: World | None = None,
) -> Run:
    where, records = where or world(), Saving()
    method, checks = make_method(name, where.scenario), Checks(paranoid=paranoid)
    records.simulation = Simulation(where, method, records, engine=engine, policy=policy, checks=checks)
    if resume is not None:
        records.simulation.restore(resume)
    return Run(records.simulation.run(), records)


@cache
def undisturbed(name: str) -> Run:
    return run(name)


def assert_same_end(one: Outcome, other: Outcome) -> None:
    """The same bits in the model, and in everything that devices carry."""
    assert torch.equal(one.model, other.model)
    for mine, others in zip(one.states, other.states, strict=True):
        for each in fields(mine):
            assert_same(getattr(mine, each.name), getattr(others, each.name))


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, Mapping):
        assert set(one) == set(other)
        for name in one:
            assert_same(one[name], other[name])
    else:
        assert one == other


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_frozen_values_that_travel_and_compare(name: str) -> None:
    method = make_method(name, world().scenario)
    for part in method.parts.values():
        assert is_dataclass(part)
        assert type(part).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(method)) == method == make_method(name, world().scenario)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_brings_updates_through_and_spends_no_more_than_its_budget(name: str) -> None:
    done, method = undisturbed(name), make_method(name, world().scenario)
    assert not torch.equal(done.outcome.model, world_for(world(), method).initial_model)
    assert sum(done.records.column("contacts", "entries")) > 0
    if method.energy_rule in ("greedy", "paced"):
        assert all(state.spent_joules <= state.budget_joules * (1 + SLACK) for state in done.outcome.states)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_repeats_to_the_bit_and_passes_every_check(name: str) -> None:
    first, again = undisturbed(name), run(name, paranoid=True)
    assert again.records.tables == first.records.tables
    assert_same_end(again.outcome, first.outcome)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumes_to_the_bit_from_its_checkpoint(name: str) -> None:
    whole = undisturbed(name)
    assert whole.records.saved is not None
    resumed = run(name, resume=whole.records.saved)
    assert_same_end(resumed.outcome, whole.outcome)
    for table, rows in resumed.records.tables.items():
        assert rows == [row for row in whole.records.tables[table] if int(row[0]) > SAVED_AFTER]


@pytest.mark.parametrize("name", ["fedbuff", "ca2fl", "fadas", "scaffold", "feddyn"])
def test_servers_with_vectors_of_their_own_resume_with_statistics_of_normalisation(name: str) -> None:
    images = Case(name, "fleet.energy_total_joules=1000 rounds=20", "stacked", images=True).world()
    whole = run(name, where=images, paranoid=True)
    assert whole.records.saved is not None
    assert not torch.equal(whole.records.saved.server.model, whole.outcome.model)
    assert_same_end(run(name, where=images, resume=whole.records.saved).outcome, whole.outcome)


@pytest.mark.parametrize("name", NAMES)
def test_when_local_steps_are_computed_changes_nothing(name: str) -> None:
    ahead, stepwise = (run(name, engine="reference", policy=policy) for policy in ("ahead", "stepwise"))
    assert ahead.records.tables == stepwise.records.tables
    assert_same_end(ahead.outcome, stepwise.outcome)


@pytest.mark.parametrize("name", NAMES)
def test_a_fleet_that_never_meets_the_server_leaves_the_model_as_it_was(name: str) -> None:
    alone = run(name, where=world(meets=False))
    method = make_method(name, world().scenario)
    assert torch.equal(alone.outcome.model, world_for(world(), method).initial_model)
    assert not alone.records.tables["contacts"]


@pytest.mark.parametrize("name", NAMES)
def test_parts_change_nothing_in_place_and_depend_on_their_arguments_alone(name: str) -> None:
    method = make_method(name, world().scenario)
    rng = np.random.default_rng(0)
    model, memory, change = (torch.from_numpy(rng.standard_normal(30).astype(np.float32)) for _ in range(3))
    for call in (_server_call(method, model, rng), _device_call(method, memory, change, model)):
        arguments = [value for argument in call.arguments for value in _tensors(argument)]
        copies = [value.clone() for value in arguments]
        assert_same(call(), call())
        assert all(torch.equal(value, copy) for value, copy in zip(arguments, copies, strict=True))


# Another value for every field that counts in the key of a run only where a part of the method holds it.
ELSEWHERE: dict[str, dict[str, Any]] = {
    "control": {"weight": 0.05, "variant": "printed"},
    "mixing": {"weight": 0.1, "polynomial_exponent": 2.0, "hinge_rounds": 1, "hinge_slope": 1.0},
    "relays": {
        "upload_after_rounds": 2,
        "upload_window_rounds": 1,
        "uploads_per_interval": 3,
        "download_after_rounds": 1,
        "download_window_rounds": 1,
        "downloads_per_interval": 3,
        "energy": "budget",
        "attempts": "all",
        "delivery": "separate",
        "parcels_per_relay": 1,
    },
}
USES = {"mads": "control", "mads-rd": "control", "fedasync": "mixing", "fedmobile": "relays"}


@cache
def elsewhere(sections: tuple[str, ...]) -> World:
    changed = {name: getattr(world().scenario, name).model_copy(update=ELSEWHERE[name]) for name in sections}
    return draw_world(world().scenario.model_copy(update=changed), 0)


@pytest.mark.parametrize("name", NAMES)
def test_fields_outside_the_key_of_a_run_change_no_bit(name: str) -> None:
    def key(sections: tuple[str, ...]) -> str:
        scenario = elsewhere(sections).scenario
        return run_key(scenario, make_method(name, scenario), 0, Execution())

    unused = tuple(section for section in ELSEWHERE if key((section,)) == key(()))
    base = name.split(":")[0]
    assert set(ELSEWHERE) - set(unused) == ({USES[base]} if base in USES else set())
    changed = run(name, where=elsewhere(unused))
    assert changed.records.tables == undisturbed(name).records.tables
    assert_same_end(changed.outcome, undisturbed(name).outcome)


def test_every_field_that_may_be_outside_a_key_is_changed() -> None:
    assert set(ELSEWHERE["control"]) == set(Control.model_fields) - {"update_norm"}
    assert set(ELSEWHERE["mixing"]) == set(Mixing.model_fields)
    assert set(ELSEWHERE["relays"]) == set(Relays.model_fields)


@pytest.mark.parametrize(("name", "section"), [("mads", "control"), ("fedasync", "mixing"), ("fedmobile", "relays")])
def test_each_field_counts_in_the_key_of_a_method_that_uses_it(name: str, section: str) -> None:
    base = world().scenario
    for field, value in ELSEWHERE[section].items():
        changed = base.model_copy(update={section: getattr(base, section).model_copy(update={field: value})})
        keys = {run_key(scenario, make_method(name, scenario), 0, Execution()) for scenario in (base, changed)}
        assert len(keys) == 2, field


def test_relays_of_a_composition_keep_their_own_windows() -> None:
    never = compose("never", "afl", PeerRule(Relays(uploads_per_interval=0, downloads_per_interval=0)))
    short = compose("short", "afl", PeerRule(Relays(upload_window_rounds=1, download_window_rounds=1)))
    counts = [len(run(scheme).records.tables["relays"]) for scheme in (never, short, "fedmobile")]
    assert counts[0] == 0 < counts[1] < counts[2]


@dataclass(frozen=True)
class Call:
    function: Any
    arguments: tuple[Any, ...]

    def __call__(self) -> Any:
        return dict(enumerate(self.function(*self.arguments)))


def _server_call(method: Method, model: torch.Tensor, rng: np.random.Generator) -> Call:
    """A round in which every device sends everything, twice what any buffer holds, after another such round."""
    terms, rule = ServerTerms(devices=6, statistics=2), method.server
    sent = [Sparse(torch.arange(30), torch.from_numpy(rng.standard_normal(30).astype(np.float32))) for _ in range(12)]
    arrivals = [Arrival(device=n % 6, sent=update, reach=0.5) for n, update in enumerate(sent)]
    before, state = rule.apply(model, rule.init(model, terms), arrivals[:7], terms)
    return Call(rule.apply, (before, state, arrivals[7:], terms))


def _device_call(method: Method, memory: torch.Tensor, change: torch.Tensor, like: torch.Tensor) -> Call:
    """What a device does in a contact: offer, select, keep, deliver, receive."""

    def contact(memory: torch.Tensor, change: torch.Tensor, kept: Any, own: Any) -> tuple[Any, ...]:
        update, kept = method.memory.offer(memory, change, kept)
        sent = method.compressor.select(update, 7, lambda: generator(0, Stream.COMPRESSION, 1, 2))
        memory, kept = method.memory.keep(update, sent, kept)
        own = method.local.received(method.local.delivered(own, change), {})
        return update, sent.indices, sent.values, memory, kept, own

    return Call(contact, (memory, change, method.memory.init(like), method.local.init(like)))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [vector for _, vector in vectors_of(value)]
    if isinstance(value, list):
        return [each.sent.values for each in value]
    return []


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_the_table_is_of_one_kind(name: str) -> None:
    assert sum(issubclass(part_class(name), base) for base in KINDS.values()) == 1


def test_a_server_with_a_rule_of_its_own_refuses_the_scenarios_optimiser() -> None:
    scenario = wayfare.load("fashion-small", ["server.optimizer=adam"])
    for name in ("fedbuff", "scaffold", "feddyn"):
        with pytest.raises(ScenarioError, match="has its own server rule"):
            make_method(name, scenario)


def test_scaffold_refuses_a_proximal_term_which_its_server_would_take_for_gradients() -> None:
    with pytest.raises(ScenarioError, match="derives gradients"):
        make_method("scaffold", wayfare.load("fashion-small", ["learning.local_loss=prox"]))
