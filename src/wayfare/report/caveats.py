"""What a reader must know before any number: warnings that every table, page and JSON object repeats."""

from __future__ import annotations

from collections.abc import Sequence

from wayfare.records import RunSummary
from wayfare.studies.results import StudyResults

NOTHING_LEARNED = (
    "No device met the server in any run: every score is that of the untrained model. "
    "A larger radio.range_m, more rounds, more devices or another server gives contacts"
)


def caveats_of(results: StudyResults) -> list[str]:
    """All warnings about the finished runs of a study."""
    manifest = results.manifest
    silent = no_contact([(manifest.point_name(one.run.point), one.summary) for one in results.results])
    return [silent] if silent else []


def no_contact(runs: Sequence[tuple[str, RunSummary]]) -> str | None:
    """Which runs, each with the name of its point, had no contact at all; None if all had some."""
    worlds = dict.fromkeys((point, run.seed) for point, run in runs if not run.contacts)
    if not worlds:
        return None
    if all(not run.contacts for _, run in runs):
        return NOTHING_LEARNED
    listed = ", ".join(f"{point}, seed {seed}" if point else f"seed {seed}" for point, seed in worlds)
    return f"No device met the server ({listed}): the scores there are those of the untrained model"
