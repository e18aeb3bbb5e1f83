"""``wayfare plan``: what a fleet will achieve, without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wayfare.cli.contact_tables import working
from wayfare.cli.terminal import JsonOption, SetOption, errors, output, print_json
from wayfare.cli.words import with_options
from wayfare.contacts.statistics import verdict_sentence
from wayfare.errors import InputError
from wayfare.scenario import DEFAULT_PRESET

if TYPE_CHECKING:
    from wayfare.field.runtime.contact_log import Measured
    from wayfare.theory.planner import Forecast


def plan_command(
    source: Annotated[str, typer.Argument(help="A preset, scenario.toml, trace file or saved plan.")] = DEFAULT_PRESET,
    speed: Annotated[list[float] | None, typer.Option("--speed", help="A speed in m/s; repeat it for a table.")] = None,
    parameters: Annotated[
        int | None, typer.Option(help="Number of parameters of your own model; default: the scenario's network.")
    ] = None,
    budget_joules: Annotated[
        float | None, typer.Option("--budget-joules", help="Energy budget of each device.")
    ] = None,
    scheme: Annotated[str, typer.Option(help="The scheme to rehearse, see `wayfare schemes`.")] = "mads",
    like: Annotated[
        Path | None, typer.Option(help="A finished run from which to take the size of updates.", metavar="RUN")
    ] = None,
    range_m: Annotated[
        float | None, typer.Option("--range-m", min=1e-3, help="Radio range in metres (radio.range_m).")
    ] = None,
    server_power_watts: Annotated[
        list[float] | None,
        typer.Option(
            "--server-power-watts",
            help="The server's transmission power for downloads; repeatable. Default: 0.2, 1 and 5.",
        ),
    ] = None,
    from_field: Annotated[
        Path | None,
        typer.Option(
            "--from-field",
            metavar="FLEET|STATE",
            help="Replay the contacts, rates and energy that a fleet has measured: its folder, or the server's state.",
        ),
    ] = None,
    contact_file: Annotated[
        Path | None,
        typer.Option("--contact-file", metavar="CSV", help="Also keep the contacts of --from-field in this file."),
    ] = None,
    set_: SetOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="The seed of all random draws.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Predict uploads, staleness and energy, and recommend settings. Takes seconds and trains nothing.

    Examples: `wayfare plan paper-cifar10-waypoint --speed 12 --parameters 6000000 --budget-joules 100`,
    `wayfare plan --from-field /var/lib/wayfare/mes`
    """
    from wayfare.cli.plan_tables import print_forecast, print_forecasts
    from wayfare.theory.ask import plan
    from wayfare.theory.assumptions import SERVER_POWERS_WATTS

    if contact_file is not None and from_field is None:
        raise InputError("--contact-file: needs --from-field")
    ending = ExitStack()
    rates_bps: Mapping[str, float] | None = None
    if from_field is not None:
        source, found = _field_contacts(from_field, contact_file, ending)
        rates_bps = found.rates_bps
        if budget_joules is None and found.joules_per_device > 0:
            budget_joules = found.joules_per_device
    forecasts: list[Forecast] = []
    speeds: Sequence[float | None] = speed or [None]
    with ending, working("Planning", total=len(speeds) if len(speeds) > 1 else None) as advance:
        for speed_mps in speeds:
            forecasts.append(
                plan(
                    source,
                    set_,
                    speed_mps=speed_mps,
                    parameters=parameters,
                    budget_joules=budget_joules,
                    range_m=range_m,
                    scheme=scheme,
                    like=like,
                    server_power_watts=server_power_watts or SERVER_POWERS_WATTS,
                    rates_bps=rates_bps,
                    seed=seed,
                )
            )
            advance("Planning" if speed_mps is None else f"Planned for {speed_mps:g} m/s")
    if as_json:
        print_json({"seed": seed, "plans": [forecast_json(each) for each in forecasts]})
    elif len(forecasts) == 1:
        print_forecast(output, forecasts[0])
    else:
        print_forecasts(output, forecasts)


def _field_contacts(folder: Path, kept: Path | None, ending: ExitStack) -> tuple[str, Measured]:
    """Write what a fleet has measured as a contact list, and say what it was."""
    from wayfare.field.runtime.contact_log import measured_contacts
    from wayfare.field.runtime.life_cycle import ledger_in

    found = measured_contacts(ledger_in(folder))
    rates = sorted(found.rates_bps.values())
    uploads = f"{rates[0] / 1e6:.3g} to {rates[-1] / 1e6:.3g} Mbit/s while uploading" if rates else "no upload timed"
    file = kept or Path(ending.enter_context(TemporaryDirectory(prefix="wayfare-"))) / "field.csv"
    file.write_text(found.text, encoding="utf-8")
    errors.print(
        f"{found.contacts:,} contacts of {found.devices} devices; measured {uploads}, "
        f"{found.up_bps / 1e6:.3g} Mbit/s up and {found.down_bps / 1e6:.3g} Mbit/s down over the time in contact, "
        f"{found.joules_per_device:.3g} J per device, {1e6 * found.joules_per_bit:.3g} J per Mbit",
        highlight=False,
        soft_wrap=True,
    )
    return str(file), found


def forecast_json(forecast: Forecast) -> dict[str, Any]:
    from wayfare.theory.warnings import warnings_of

    statistics, scenario = forecast.statistics, forecast.scenario
    parts = ("full_power", "theory", "rehearsed", "recommended", "best_speed", "fixed_weight")
    return {
        "source": forecast.name,
        "scenario": scenario.name,
        "devices": statistics.devices,
        "rounds": scenario.rounds,
        "round_s": scenario.round_s,
        "parameters": forecast.link.parameters,
        "bits_per_entry": forecast.link.bits_per_entry,
        "budget_joules": forecast.budget_joules,
        "opportunities": forecast.opportunities,
        "contacts": {
            "contacts_per_device": statistics.contacts_per_device["mean"],
            "contact_s": statistics.contact.mean_s,
            "inter_contact_s": statistics.inter_contact.mean_s,
            "time_in_contact_share": statistics.time_in_contact_share,
            "mean_devices_in_contact": statistics.mean_devices_in_contact,
            "overlapping_contact_time_share": statistics.overlapping_contact_time_share,
            "devices_without_contact": statistics.devices_without_contact,
            "verdict": verdict_sentence(statistics),
        },
        "downlink_model_bits": forecast.link.dense_bits,
        "downlinks": [asdict(each) for each in forecast.downlinks],
        **{name: None if getattr(forecast, name) is None else asdict(getattr(forecast, name)) for name in parts},
        "assumptions": [asdict(each) for each in forecast.assumptions],
        "warnings": [with_options(warning.text) for warning in warnings_of(forecast)],
    }
