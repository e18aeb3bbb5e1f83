"""The tables of ``wayfare plan``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wayfare.cli.terminal import facts, number_text
from wayfare.cli.words import with_options
from wayfare.methods import scheme_label
from wayfare.report.columns import Column, rich_table, side_by_side
from wayfare.theory.planner import Forecast, Rehearsed
from wayfare.theory.warnings import warnings_of


def print_forecast(console: Console, forecast: Forecast) -> None:
    """Print one forecast: contacts, uploads, recommended settings, assumptions and warnings."""
    scenario, contacts = forecast.scenario, forecast.statistics
    console.print(
        f"[bold]{escape(forecast.name)}[/bold]: {contacts.devices} devices, {scenario.rounds:,} rounds of "
        f"{scenario.round_s:g} s, a model of {forecast.link.parameters:,} parameters, {forecast.budget_joules:,.0f} J",
        highlight=False,
    )
    if forecast.full_power is not None:
        console.print(_contacts(forecast))
        console.print(_uploads(forecast))
        for line in _advice(forecast):
            console.print(line, highlight=False)
    _print_assumptions(console, forecast)
    _print_warnings(console, [warning.text for warning in warnings_of(forecast)])


def _print_assumptions(console: Console, forecast: Forecast) -> None:
    for assumption in forecast.assumptions:
        console.print(f"[cyan]assumption[/cyan]  {assumption.text}", highlight=False)


def _print_warnings(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(f"[yellow]warning[/yellow]  {escape(with_options(line))}", highlight=False)


def print_forecasts(console: Console, forecasts: Sequence[Forecast]) -> None:
    first = forecasts[0]
    scheme = scheme_label(first.rehearsed.scheme) if first.rehearsed else ""
    title = (
        f"{first.name}: {first.link.parameters:,} parameters, budget {first.budget_joules:,.0f} J, {scheme} rehearsed"
    )
    headings = ("speed", "contact", "between", "uploads", "age", "dense", "k/s", "k/s", "energy", "energy", "bound")
    units = ("m/s", "s", "s", "/device", "rounds", "fits %", "full", "scheme", "full, J", "scheme", "/1000")
    rows: list[tuple[str, ...]] = []
    for each in forecasts:
        full, played = each.full_power, each.rehearsed
        if full is None or played is None:
            rows.append((_speed(each), *["-"] * (len(headings) - 1)))
            continue
        cells = (
            _speed(each),
            number_text(each.statistics.contact.mean_s),
            number_text(each.statistics.inter_contact.mean_s),
            number_text(played.uploads_per_device),
            number_text(played.staleness_rounds),
            f"{100 * full.dense_chance:.0f}",
            f"{full.kept_share:.2f}",
            f"{played.kept_fraction:.2f}",
            f"{full.energy_joules:,.0f}",
            f"{played.energy_joules:,.0f}",
            number_text(each.best_speed.own_factor / 1e3) if each.best_speed else "-",
        )
        rows.append(cells)
    columns = [
        Column(heading="\n".join(heading), cells=list(cells))
        for heading, cells in zip(zip(headings, units, strict=True), zip(*rows, strict=True), strict=True)
    ]
    console.print(title, style="italic", markup=False, highlight=False)
    for group in side_by_side(columns, console.width):
        console.print(rich_table(group, range(len(rows))))
    if any(each.best_speed for each in forecasts):
        console.print("bound: factor of G²/R in the corrected Theorem 2; lower is better", highlight=False)
    console.print(_assumption_table(forecasts))
    _print_assumptions(console, first)
    _print_warnings(console, _merged_warnings(forecasts))


def _assumption_table(forecasts: Sequence[Forecast]) -> Table:
    """How well the first two assumptions hold: free downloads and exclusive bandwidth."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    # Spaces let a cell with many powers wrap between numbers.
    downlinks = next((each.downlinks for each in forecasts if each.downlinks), ())
    powers = " / ".join(f"{each.server_power_watts:.3g}" for each in downlinks)
    down = f"complete downloads, % of contacts\nat {powers} W"
    for heading in ("speed\nm/s", down, "contact time\nwith others", "devices in\ncontact"):
        table.add_column(heading, justify="right")
    for each in forecasts:
        table.add_row(
            _speed(each),
            " / ".join(number_text(100 * at.downlink_whole_model_share) for at in each.downlinks) or "-",
            _percent(each.statistics.overlapping_contact_time_share),
            number_text(each.statistics.mean_devices_in_contact),
        )
    return table


def _merged_warnings(forecasts: Sequence[Forecast]) -> list[str]:
    """One line per kind of warning, with all its speeds and the numbers of the first."""
    speeds: dict[str, list[str]] = {}
    texts: dict[str, list[str]] = {}
    for each in forecasts:
        for warning in warnings_of(each):
            speeds.setdefault(warning.kind, []).append(_speed(each))
            texts.setdefault(warning.kind, []).append(warning.text)
    lines = []
    for kind, at in speeds.items():
        source = f" (numbers for {at[0]})" if len(set(texts[kind])) > 1 else ""
        lines.append(f"{', '.join(at)} m/s{source}: {texts[kind][0]}")
    return lines


def _speed(forecast: Forecast) -> str:
    return f"{getattr(forecast.scenario.mobility, 'speed_mps', 0.0):g}"


def _contacts(forecast: Forecast) -> Table:
    contacts = forecast.statistics
    rows = (
        ("contacts per device", f"{contacts.contacts_per_device['mean']:.1f}"),
        ("contact time", f"{number_text(contacts.contact.mean_s)} s"),
        ("inter-contact time", f"{number_text(contacts.inter_contact.mean_s)} s"),
        ("time in contact", f"{100 * contacts.time_in_contact_share:.2f} %"),
        ("contact time with others", _percent(contacts.overlapping_contact_time_share)),
        ("devices in contact, when any", f"{number_text(contacts.mean_devices_in_contact)} on average"),
    )
    return facts(rows)


def _uploads(forecast: Forecast) -> Table:
    """Uploads by closed forms, by the drawn contacts at full power, and by rehearsed schemes."""
    full, theory, played, auto = forecast.full_power, forecast.theory, forecast.rehearsed, forecast.recommended
    assert full is not None
    assert played is not None
    assert auto is not None
    rehearsed = [played] if played == auto else [played, auto]
    table = Table()
    table.add_column("", no_wrap=True)
    for heading in ("closed\nforms", "contacts,\nfull power", *map(_heading, rehearsed)):
        table.add_column(heading, justify="right")
    kept, stale, uploads = (
        (theory.kept_share, theory.staleness_rounds, theory.contacts_per_device) if theory else (None, None, None)
    )
    joules = [full.energy_joules, *(each.energy_joules for each in rehearsed)]
    shares = [f"{100 * each / forecast.budget_joules:,.0f}" for each in joules]
    usable = [f"{100 * each.energy_joules / each.available_joules:,.0f}" for each in rehearsed]
    for row in (
        ("k/s, share of an update sent", kept, full.kept_share, *(each.kept_fraction for each in rehearsed)),
        ("staleness, rounds", stale, None, *(each.staleness_rounds for each in rehearsed)),
        ("uploads per device", uploads, None, *(each.uploads_per_device for each in rehearsed)),
        ("complete sparse uploads, %", None, 100 * full.whole_chance),
        ("complete dense uploads, %", None, 100 * full.dense_chance),
        ("upload capacity, Mbit/contact", None, full.mean_contact_bits / 1e6),
        *(
            (f"complete downloads, {each.server_power_watts:.3g} W, %", None, 100 * each.downlink_whole_model_share)
            for each in forecast.downlinks
        ),
        ("energy, J", None, *joules),
        ("energy, % of the budget", None, *shares),
        ("energy, % of usable energy", None, None, *usable),
    ):
        name, *cells = row
        table.add_row(str(name), *(cell if isinstance(cell, str) else number_text(cell, "") for cell in cells))
    return table


def _heading(played: Rehearsed) -> str:
    return f"{scheme_label(played.scheme)}\n" + (f"V = {played.weight}" if played.scheme == "mads" else "rehearsed")


def _advice(forecast: Forecast) -> list[str]:
    lines = []
    speed, fixed = forecast.best_speed, forecast.fixed_weight
    if speed is not None:
        ratio = speed.own_factor / speed.factor
        lines.append(
            f"best speed    {speed.speed_mps:.0f} m/s by the corrected bound, "
            f"which is {ratio:.2f} times as high at {speed.own_speed_mps:g} m/s"
        )
    lines.append("weight V      --set control.weight=auto uses all usable energy within the budget")
    if fixed is not None and fixed.weight is not None:
        basis = "measured in runs" if fixed.known else "a guess"
        step = f"|grad|² = {fixed.step_norm_sq:.3g} ({basis})"
        lines.append(f"              or set it to about {fixed.weight:.1g}, for {step}")
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
