"""The page of a figure: picture, table, the paper's numbers and ours, and how it was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, datetime
from pathlib import Path

from wayfare.contacts.speeds import SpeedPoint
from wayfare.files import writing
from wayfare.records.origin import commit_of_code
from wayfare.report.contact_figures import plot_speeds
from wayfare.report.markdown import table_lines
from wayfare.report.paper_figures import draw
from wayfare.studies.export import evaluation_rows, run_rows, write_csv
from wayfare.studies.paper import PaperFigure
from wayfare.studies.results import StudyResults
from wayfare.version import __version__


def write_figure_page(
    figure: PaperFigure, results: StudyResults, folder: Path, *, command: str, quick: bool = False
) -> None:
    """Write the page, its picture, and the runs and evaluations behind it as CSV."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        draw(figure, results, folder / f"{figure.name}.png", quick=quick)
        for name, rows in (("runs", run_rows(results)), ("evaluations", evaluation_rows(results))):
            # Local folders mean nothing to other readers.
            write_csv(
                [{key: value for key, value in row.items() if key != "folder"} for row in rows],
                folder / f"{figure.name}-{name}.csv",
            )
        page = "\n".join(_lines(figure, results, command, quick))
        (folder / f"{figure.name}.md").write_text(page, encoding="utf-8")


def write_contact_times_page(
    figure: PaperFigure, points: Sequence[SpeedPoint], folder: Path, *, command: str, seed: int
) -> None:
    """Write the page of a figure without training, which shows only contacts."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        plot_speeds(list(points), folder / f"{figure.name}.png", title=figure.title)
        write_csv([asdict(point) for point in points], folder / f"{figure.name}.csv")
        lines = [
            *_head(figure, command),
            "| speed, m/s | contacts | contact, s | inter-contact, s | C, m | Lambda, m |",
        ]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        for point in points:
            numbers = (point.contact_s, point.inter_contact_s, point.contact_m, point.inter_contact_m)
            cells = " | ".join("-" if number is None else f"{number:,.4g}" for number in numbers)
            lines.append(f"| {point.speed_mps:g} | {point.contacts:,} | {cells} |")
        origin = (
            f"Seed {seed}. Wayfare {__version__} (commit {commit_of_code() or 'unknown'}), {date.today():%Y-%m-%d}."
        )
        lines += ["", f"{origin} Raw numbers: [points]({figure.name}.csv).", ""]
        (folder / f"{figure.name}.md").write_text("\n".join(lines), encoding="utf-8")


def _head(figure: PaperFigure, command: str, *, quick: bool = False) -> list[str]:
    number = figure.name.removeprefix("fig")
    title = figure.title if figure.title[:2].isupper() else figure.title[0].lower() + figure.title[1:]
    lines = [f"# Fig. {number}: {title}", ""]
    if quick:
        lines += [f"**{figure.stand_in[0].upper()}{figure.stand_in[1:]}.** It shows how the figure is made.", ""]
    return [*lines, f"    {command}", "", f"The paper: {figure.claim}.", "", f"![Fig. {number}]({figure.name}.png)", ""]


def _lines(figure: PaperFigure, results: StudyResults, command: str, quick: bool) -> list[str]:
    lines = [*_head(figure, command, quick=quick), *table_lines(results), ""]
    if figure.numbers:
        here = f"here, {figure.stand_in}" if quick else "here"
        lines += [f"| | paper | {here} |", "| --- | --- | --- |"]
        for quoted in figure.numbers:
            ours = quoted.ours(results)
            lines.append(f"| {quoted.what} | {quoted.paper:,.6g} | {'-' if ours is None else f'{ours:,.4g}'} |")
        lines.append("")
    lines += [f"{line}  " for line in _origin(results)]
    csv = f"[runs]({figure.name}-runs.csv), [evaluations]({figure.name}-evaluations.csv)"
    return [*lines, f"Raw numbers: {csv}.", ""]


def _origin(results: StudyResults) -> list[str]:
    records = results.runs
    versions = records[0].meta["versions"]
    hardware = sorted({str(record.meta["versions"]["hardware"]) for record in records})
    precisions = sorted({str(record.meta["execution"]["precision"]) for record in records})
    sessions = [session for record in records for session in record.meta["sessions"]]
    ended = max(str(session["at"]) for session in sessions)
    commits = sorted({str(session.get("commit") or "unknown") for session in sessions})
    seeds = sorted({record.seed for record in records})
    hours = sum(record.wall_s for record in records) / 3600
    lines = [
        f"Runs: {len(records)}, seeds {', '.join(map(str, seeds))}, {records[0].scenario.rounds:,} rounds, "
        f"{', '.join(precisions)}; {hours:.2f} h of run time in all.",
        f"Hardware: {', '.join(hardware)}. Wayfare {versions['wayfare']} (commit {', '.join(commits)}), "
        f"PyTorch {versions['torch']}; last run begun {datetime.fromisoformat(ended):%Y-%m-%d}.",
    ]
    if results.missing:
        lines.append(f"**{results.missing} of {len(results.manifest.distinct)} runs are missing.**")
    return lines
