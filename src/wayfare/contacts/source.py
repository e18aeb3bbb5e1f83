"""Where a contact plan comes from: a preset, a scenario file, a trace file or a saved plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wayfare import mobility
from wayfare.contacts.draw import contacts_in
from wayfare.contacts.exchanges import split_into_exchanges
from wayfare.contacts.plan import ContactPlan
from wayfare.errors import ScenarioError
from wayfare.mobility import Meetings, Motion
from wayfare.mobility.extent import refuse_endless
from wayfare.mobility.traces import Selection, Trace
from wayfare.scenario import DEFAULT_PRESET, Scenario, load, preset_names
from wayfare.scenario.dump import toml_value
from wayfare.scenario.mobility import NodeServer, TraceMobility


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedPlan:
    """A plan, the scenario whose radio and model it is looked at with, and what is to be said of where it came from."""

    name: str
    kind: str
    scenario: Scenario
    plan: ContactPlan  # whole contacts
    exchanges: ContactPlan  # the same, long ones split as the scenario says
    # Names of a trace's nodes; a drawn plan has only numbers.
    devices: tuple[str, ...] = ()
    server: str | None = None
    skipped: int = 0
    notes: tuple[str, ...] = ()


def plan_from_source(
    source: str,
    *,
    seed: int,
    overrides: Sequence[str] = (),
    server: str | None = None,
    range_m: float | None = None,
    lenient: bool = False,
    devices_meet: bool = False,
) -> SourcedPlan:
    """The plan of a source.

    A preset or ``.toml`` gives the plan a run of it would have. Any other file is a trace: all its nodes, as long as
    it lasts, with the radio and the model of the embedded default; overrides may change either.
    """
    overrides = [*overrides, *([f"radio.range_m={range_m!r}"] if range_m is not None else [])]
    is_scenario = source in preset_names() or source.endswith(".toml")
    if not is_scenario:
        if not Path(source).exists():
            known = ", ".join(preset_names())
            raise ScenarioError("source", source, f"neither a preset ({known}) nor a file that is there")
        file = [f"mobility.model={TraceMobility.model_fields['model'].default}", f"mobility.file={toml_value(source)}"]
        overrides = [*file, *overrides]
    scenario = load(source if is_scenario else DEFAULT_PRESET, overrides)
    trace = scenario.mobility
    if not isinstance(trace, TraceMobility):
        if server is not None:
            raise ScenarioError("server", server, "only the nodes of a trace have names")
        refuse_endless(trace, scenario.fleet.devices, scenario.duration_s)
        model = mobility.from_spec(trace, scenario.radio.range_m)
        drawn = model.draw(scenario.fleet.devices, scenario.duration_s, seed)
        plan = contacts_in(drawn, scenario.radio.range_m, scenario.duration_s, seed, devices_meet=devices_meet)
        return _sourced(SourcedPlan(name=source, kind=trace.model, scenario=scenario, plan=plan, exchanges=plan), drawn)
    chosen = trace.server if server is None else NodeServer(name=server)
    trace = trace.model_copy(update={"server": chosen, "lenient": lenient or trace.lenient})
    scenario = scenario.model_copy(update={"mobility": trace})
    return _from_trace(source, scenario, trace, seed, whole=not is_scenario, devices_meet=devices_meet)


def _from_trace(
    source: str, scenario: Scenario, spec: TraceMobility, seed: int, *, whole: bool, devices_meet: bool
) -> SourcedPlan:
    trace = Trace(spec, range_m=scenario.radio.range_m)
    chosen = trace.selection() if whole else trace.selection(scenario.fleet.devices, scenario.duration_s)
    recording = trace.recording()
    notes = recording.notes
    if recording.skipped:
        notes = (f"{recording.skipped:,} lines skipped; the first: {recording.first_skipped}", *notes)
    if whole:
        scenario = _as_long_as(scenario, chosen)
    # Contacts that a file lists between devices are always looked at.
    listed = devices_meet or isinstance(chosen.content, Meetings)
    plan = contacts_in(chosen.content, scenario.radio.range_m, chosen.duration_s, seed, devices_meet=listed)
    plan = replace(plan, names=(*chosen.devices, chosen.server))
    found = SourcedPlan(
        name=Path(source).name,
        kind=recording.format,
        scenario=scenario,
        plan=plan,
        exchanges=plan,
        devices=chosen.devices,
        server=chosen.server,
        skipped=recording.skipped,
        notes=notes,
    )
    return _sourced(found, chosen.content)


def _sourced(found: SourcedPlan, drawn: Motion | Meetings) -> SourcedPlan:
    """Without contacts that are too short for the scenario, and with its exchanges."""
    rules, plan = found.scenario.contacts, found.plan.lasting(found.scenario.contacts.min_contact_s)
    short, notes = len(found.plan.with_server()) - len(plan.with_server()), found.notes
    if short:
        contacts = "contact" if short == 1 else "contacts"
        notes = (*notes, f"{short:,} {contacts} with the server dropped: shorter than {rules.min_contact_s:g} s")
    exchanges = split_into_exchanges(plan, rules.max_exchange_s, drawn)
    return replace(found, plan=plan, exchanges=exchanges, notes=notes)


def _as_long_as(scenario: Scenario, chosen: Selection) -> Scenario:
    """The scenario with as many devices and rounds as the trace has, the last round perhaps cut."""
    rounds = max(-int(-chosen.duration_s // scenario.round_s), 1)
    fleet = scenario.fleet.model_copy(update={"devices": len(chosen.devices)})
    return scenario.model_copy(update={"rounds": rounds, "fleet": fleet})
