"""Warnings for the reader, and the part of a trace that was used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from wayfare.contacts import TraceUse
from wayfare.methods import scheme_label
from wayfare.records import RunSummary, SchemeSummary
from wayfare.report.labels import backbone_label
from wayfare.scenario.model import NO_BACKBONE
from wayfare.studies.results import StudyResults

NOTHING_LEARNED = (
    "No device met the server in any run, so every score is that of the untrained model. "
    "For contacts, try a larger radio.range_m, more rounds, more devices or another server"
)


def caveats_of(results: StudyResults) -> list[str]:
    runs = [(results.manifest.point_name(one.run.point), one.summary) for one in results.results]
    silent = no_contact(runs)
    return [*([silent] if silent else []), *withheld(runs)]


def withheld(runs: Sequence[tuple[str, RunSummary]]) -> list[str]:
    """A warning for each scheme whose statistics lack classes in some worlds."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for point, run in runs:
        if run.withheld is not None:
            worlds = found.setdefault((scheme_label(run.scheme), run.withheld.reason), {})
            worlds.setdefault(str(run.withheld), []).append(_world(point, run.seed))
    lines = []
    for (scheme, reason), worlds in found.items():
        those = [f"{classes} ({', '.join(where)})" for classes, where in worlds.items()]
        lines.append(f"{scheme}: {reason}: {'; '.join(those)}")
    return lines


def no_contact(runs: Sequence[tuple[str, RunSummary]]) -> str | None:
    """A warning about runs without contacts, each with the name of its point; None if all runs had contacts."""
    worlds = dict.fromkeys((point, run.seed) for point, run in runs if not run.contacts)
    if not worlds:
        return None
    if all(not run.contacts for _, run in runs):
        return NOTHING_LEARNED
    listed = ", ".join(_world(point, seed) for point, seed in worlds)
    return f"No device met the server ({listed}): these scores are those of the untrained model"


def _world(point: str, seed: int) -> str:
    return f"{point}, seed {seed}" if point else f"seed {seed}"


def backbone_text(sections: Iterable[Mapping[str, Any]], schemes: Sequence[SchemeSummary]) -> str | None:
    """The pre-trained networks in sections `learning` of scenarios, and what schemes learn; None without a network."""
    on_top = [one for one in sections if one.get("backbone", NO_BACKBONE) != NO_BACKBONE]
    if not on_top:
        return None
    names = dict.fromkeys(backbone_label(one["backbone"]) for one in on_top)
    trains, sums = any(one.parameters > one.sums for one in schemes), any(one.sums for one in schemes)
    learned = dict.fromkeys([one["trained"] for one in on_top] * trains + ["class statistics"] * sums)
    return f"{', '.join(names)}, trained beforehand on other data; learned here: {', '.join(learned)}"


def distinct(traces: Iterable[TraceUse | None]) -> list[TraceUse]:
    return list(dict.fromkeys(use for use in traces if use is not None))


def trace_text(use: TraceUse) -> str:
    repeated = ", repeated" if use.repeated else ""
    skipped = f"; {use.lines_skipped:,} lines skipped" if use.lines_skipped else ""
    name, others = PurePath(use.file).name, use.nodes - 1
    exchanges = "" if use.max_exchange_s is None else f" in exchanges of at most {use.max_exchange_s:g} s"
    why = "other nodes or times"
    if use.min_contact_s > 0:
        others_dropped = use.contacts_dropped - use.contacts_too_short
        why = f"{others_dropped:,} of {why}, {use.contacts_too_short:,} shorter than {use.min_contact_s:g} s"
    return (
        f"{name} ({use.format}), server {use.server}, {use.devices:,} of {others:,} other nodes; "
        f"{use.used_s:,.0f} of {use.duration_s:,.0f} s from {use.start_s:,.0f} s on{repeated}; "
        f"{use.contacts_used:,} contacts used{exchanges}, {use.contacts_dropped:,} dropped ({why}){skipped}"
    )
