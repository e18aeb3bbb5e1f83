"""Load a contact plan from a preset, a scenario file, a trace file or a saved plan."""

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
from wayfare.mobility.extent import reject_oversized
from wayfare.mobility.traces import Selection, Trace
from wayfare.scenario import DEFAULT_PRESET, Scenario, load, preset_names
from wayfare.scenario.dump import toml_value
from wayfare.scenario.mobility import NodeServer, TraceMobility


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedPlan:
    """A plan, the scenario with its radio and model, and notes about its source."""

    name: str
    kind: str
    scenario: Scenario
    plan: ContactPlan  # unsplit contacts
    exchanges: ContactPlan  # long contacts split by the scenario's rule
    # Names of a trace's nodes; drawn plans have only numbers.
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
    """Load the plan of a source.

    A preset or ``.toml`` gives the plan that a run would use. Any other file is a trace: all its nodes for its whole
    duration, with the radio and model of the default preset. Overrides may change both.
    """
    overrides = [*overrides, *([f"radio.range_m={range_m!r}"] if range_m is not None else [])]
    is_scenario = source in preset_names() or source.endswith(".toml")
    if not is_scenario:
        if not Path(source).exists():
            known = ", ".join(preset_names())
            raise ScenarioError("source", source, f"neither a preset ({known}) nor an existing file")
        file = [f"mobility.model={TraceMobility.model_fields['model'].default}", f"mobility.file={toml_value(source)}"]
        overrides = [*file, *overrides]
    scenario = load(source if is_scenario else DEFAULT_PRESET, overrides)
    trace = scenario.mobility
    if not isinstance(trace, TraceMobility):
        if server is not None:
            raise ScenarioError("server", server, "only the nodes of a trace have names")
        reject_oversized(trace, scenario.fleet.devices, scenario.duration_s)
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
        scenario = _sized_as(scenario, chosen)
    # Contacts between devices that a file lists are always included.
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
    """Drop contacts that are too short for the scenario, and split the others into exchanges."""
    rules, plan = found.scenario.contacts, found.plan.lasting(found.scenario.contacts.min_contact_s)
    short, notes = len(found.plan.with_server()) - len(plan.with_server()), found.notes
    if short:
        contacts = "contact" if short == 1 else "contacts"
        notes = (*notes, f"{short:,} {contacts} with the server dropped: shorter than {rules.min_contact_s:g} s")
    exchanges = split_into_exchanges(plan, rules.max_exchange_s, drawn)
    return replace(found, plan=plan, exchanges=exchanges, notes=notes)


def _sized_as(scenario: Scenario, chosen: Selection) -> Scenario:
    """The scenario with the trace's number of devices and rounds; the last round may be incomplete."""
    rounds = max(-int(-chosen.duration_s // scenario.round_s), 1)
    fleet = scenario.fleet.model_copy(update={"devices": len(chosen.devices)})
    return scenario.model_copy(update={"rounds": rounds, "fleet": fleet})
