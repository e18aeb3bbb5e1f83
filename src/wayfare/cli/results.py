"""Print the results of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wayfare.cli.terminal import output, print_json
from wayfare.errors import RunError

if TYPE_CHECKING:
    from wayfare.records import RunSummary
    from wayfare.studies.results import StudyResults
    from wayfare.studies.sweeping import Sweep


def print_sweep(done: Sweep, *, as_json: bool) -> None:
    """Print a sweep or comparison; raise an error if runs failed or no device met the server."""
    from wayfare.report.study_json import results_json

    folder = done.results.folder
    if as_json:
        print_json(results_json(done.results) | {"failures": {one.job.name: one.reason for one in done.failures}})
    elif done.results.results or not done.failures:
        print_results(done.results)
        output.print(f"Records: {folder}   View: wayfare report {folder} --open", markup=False, soft_wrap=True)
    done.raise_failures()
    require_contact([result.summary for result in done.results.results])


def require_contact(runs: Sequence[RunSummary]) -> None:
    """Raise an error if no device of any run met the server: a script must not use such scores as results."""
    from wayfare.report.caveats import NOTHING_LEARNED

    if runs and not any(run.contacts for run in runs):
        raise RunError(NOTHING_LEARNED)


def print_results(results: StudyResults) -> None:
    """Print the table of a study; a comparison gets the table with a legend."""
    from wayfare.report.columns import rich_notes
    from wayfare.report.study_tables import missing_notes, study_table
    from wayfare.report.tables import comparison_table

    if not results.manifest.is_comparison or not results.rows:
        output.print(study_table(results, width=output.width))
        return
    output.print(comparison_table(results.schemes, results.runs, width=output.width))
    if notes := missing_notes(results):
        output.print(rich_notes(notes))
