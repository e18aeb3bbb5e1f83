"""The tables of ``wayfare contacts``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import TimeElapsedColumn
from rich.table import Table

from wayfare.cli.terminal import bars, errors, facts, number_text
from wayfare.contacts.source import SourcedPlan
from wayfare.contacts.speeds import SpeedPoint
from wayfare.contacts.statistics import Distribution, PlanStatistics, verdict_sentence
from wayfare.report.contact_summary import UploadOutlook


@contextmanager
def working(what: str, total: int | None = None, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a transient progress bar on standard error. Without a terminal, print one line per step."""
    if not errors.is_terminal:
        # Only long work with several steps gets lines; `quiet` suppresses them for very short steps.
        yield (lambda step: errors.print(escape(step))) if total is not None and not quiet else (lambda _: None)
        return
    with bars(TimeElapsedColumn(), spinner=True) as progress:
        task = progress.add_task(escape(what), total=total)
        yield lambda step: progress.update(task, advance=1, description=escape(step))


def print_inspection(
    console: Console, found: SourcedPlan, statistics: PlanStatistics, outlook: UploadOutlook, written: Sequence[str]
) -> None:
    console.print(f"[bold]{escape(found.name)}[/bold] ({found.kind})", highlight=False)
    for note in found.notes:
        console.print(f"  {escape(note)}", style="yellow", highlight=False)
    console.print(_overview(found, statistics))
    console.print(_times(statistics))
    console.print(verdict_sentence(statistics), highlight=False)
    console.print(_uploads(outlook))
    for file in written:
        console.print(f"Wrote {escape(file)}", highlight=False)


def print_speeds(console: Console, points: Sequence[SpeedPoint]) -> None:
    """One row per model and speed. The last two columns are constant where times follow 1 / speed."""
    table = Table(title="Contact times against speed", title_justify="left")
    table.add_column("model", no_wrap=True)
    for heading in ("speed\nm/s", "\ncontacts", "contact\ns", "between\ns", "contact\nm", "between\nm"):
        table.add_column(heading, justify="right")
    for index, point in enumerate(points):
        last = index + 1 == len(points) or points[index + 1].model != point.model
        numbers = (point.contact_s, point.inter_contact_s, point.contact_m, point.inter_contact_m)
        table.add_row(
            point.model,
            f"{point.speed_mps:g}",
            f"{point.contacts:,}",
            *(number_text(value) for value in numbers),
            end_section=last,
        )
    console.print(table)


def _overview(found: SourcedPlan, statistics: PlanStatistics) -> Table:
    per_device = statistics.contacts_per_device
    spread = f"{per_device['p5']:.0f} to {per_device['p95']:.0f}"
    rows = [
        ("devices", f"{statistics.devices:,}" + (f", server {escape(found.server)}" if found.server else "")),
        ("duration", f"{statistics.duration_s:,.0f} s"),
        ("radio range", f"{found.scenario.radio.range_m:g} m"),
        ("contacts with the server", f"{statistics.contacts:,}"),
        ("contacts per device", f"{per_device['mean']:.1f} (5 to 95 %: {spread})"),
        ("devices without contact", f"{statistics.devices_without_contact:,}"),
        ("time in contact", f"{100 * statistics.time_in_contact_share:.2f} %"),
    ]
    exchanges = len(found.exchanges.with_server())
    if exchanges != statistics.contacts:
        longest = f"at most {found.scenario.contacts.max_exchange_s:g} s each"
        rows.insert(4, ("exchanges with the server", f"{exchanges:,} ({longest})"))
    if statistics.device_contacts:
        rows.insert(4, ("contacts between devices", f"{statistics.device_contacts:,}"))
    return facts(rows)


def _times(statistics: PlanStatistics) -> Table:
    table = Table(title="Times in seconds", title_justify="left")
    table.add_column("")
    columns = []
    for name, times in (("contact", statistics.contact), ("inter-contact", statistics.inter_contact)):
        table.add_column(name, justify="right")
        columns.append(_cells(times))
    headings = ("complete", "truncated", "mean", "5 %", "25 %", "50 %", "75 %", "95 %", "KS distance", "exponential")
    for index, (heading, *cells) in enumerate(zip(headings, *columns, strict=True)):
        table.add_row(heading, *cells, end_section=index in (1, 7))
    return table


def _cells(times: Distribution) -> list[str]:
    quantiles = [number_text(times.quantiles_s.get(level)) for level in ("p5", "p25", "p50", "p75", "p95")]
    fit = (f"{times.fit.ks_distance:.3f}", times.fit.verdict) if times.fit else ("-", "-")
    return [f"{times.count:,}", f"{times.cut:,}", number_text(times.mean_s), *quantiles, *fit]


def _uploads(outlook: UploadOutlook) -> Table:
    rows = [
        ("parameters", f"{outlook.parameters:,}"),
        ("size of a dense upload", f"{outlook.dense_bits / 1e6:,.2f} Mbit"),
        ("opportunities", f"{outlook.opportunities:,}"),
    ]
    if outlook.opportunities:
        assert outlook.median_rate_bps is not None
        rows += [
            ("median rate", f"{outlook.median_rate_bps / 1e6:,.3f} Mbit/s"),
            ("mean k/s", _share(outlook.mean_kept_share)),
            ("chance of a complete sparse upload", _share(outlook.whole_sparse_chance)),
            ("chance of a complete dense upload", _share(outlook.dense_chance)),
        ]
    return facts(rows, "Uploads at full power")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"
