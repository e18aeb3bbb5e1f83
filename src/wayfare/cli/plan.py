"""``wayfare plan``: what a fleet will achieve, without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wayfare.cli.contact_tables import working
from wayfare.cli.terminal import JsonOption, SetOption, output, print_json
from wayfare.contacts.source import plan_from_source
from wayfare.contacts.statistics import verdict_sentence
from wayfare.errors import ScenarioError
from wayfare.scenario import DEFAULT_PRESET

if TYPE_CHECKING:
    from wayfare.scenario import Scenario
    from wayfare.theory.norms import NormModel
    from wayfare.theory.planner import Forecast


def plan_command(
    source: Annotated[str, typer.Argument(help="A preset, scenario.toml, trace file or saved plan.")] = DEFAULT_PRESET,
    speed: Annotated[
        list[float] | None, typer.Option("--speed", help="A speed in m/s; may be repeated for a table.")
    ] = None,
    parameters: Annotated[
        int | None, typer.Option(help="Parameters of a model of your own, instead of the scenario's network.")
    ] = None,
    budget_joules: Annotated[
        float | None, typer.Option("--budget-joules", help="What each device may spend.", min=1e-9)
    ] = None,
    scheme: Annotated[str, typer.Option(help="The scheme that is rehearsed, see `wayfare schemes`.")] = "mads",
    like: Annotated[
        Path | None, typer.Option(help="A finished run whose updates tell how large updates are.", metavar="RUN")
    ] = None,
    range_m: Annotated[
        float | None, typer.Option("--range-m", min=1e-3, help="Radio range in metres (radio.range_m).")
    ] = None,
    set_: SetOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="The seed of everything that is drawn.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """What gets through, how stale models are, what it costs and what to set: in seconds, without training.

    Example: `wayfare plan --speed 12 --parameters 6000000 --budget-joules 100 --set radio.bandwidth_hz=1e6`
    """
    from wayfare.cli.plan_tables import print_forecast, print_forecasts
    from wayfare.theory.planner import forecast

    overrides = list(set_)
    if budget_joules is not None:
        both = (f"fleet.energy_{end}_joules={budget_joules!r}" for end in ("min", "max"))
        total = f"fleet.energy_total_joules={budget_joules!r}"
        overrides += [*both, total]
    forecasts: list[Forecast] = []
    speeds: Sequence[float | None] = speed or [None]
    with working("Planning", total=len(speeds) if len(speeds) > 1 else None) as advance:
        for at in speeds:
            found = plan_from_source(source, seed=seed, overrides=_at_speed(overrides, at), range_m=range_m)
            if budget_joules is not None:
                found = _with_budget(found, budget_joules)
            size = _size(found.scenario, parameters)
            norms = _norms(found.scenario, like, own=parameters is not None)
            forecasts.append(
                forecast(found, parameters=size[0], statistics=size[1], norms=norms, scheme=scheme, seed=seed)
            )
            advance("" if at is None else f"{at:g} m/s")
    if as_json:
        print_json({"seed": seed, "plans": [forecast_json(each) for each in forecasts]})
    elif len(forecasts) == 1:
        print_forecast(output, forecasts[0])
    else:
        print_forecasts(output, forecasts)


def _at_speed(overrides: list[str], speed_mps: float | None) -> list[str]:
    if speed_mps is None:
        return overrides
    if not speed_mps > 0:
        raise ScenarioError("--speed", speed_mps, "must be above 0")
    return [*overrides, f"mobility.speed_mps={speed_mps!r}"]


def _with_budget(found: Any, budget_joules: float) -> Any:
    """Every device the same budget: the total follows from how many there are, which a trace decides."""
    from dataclasses import replace

    total = budget_joules * found.scenario.fleet.devices
    fleet = found.scenario.fleet.model_copy(update={"energy_total_joules": total})
    return replace(found, scenario=found.scenario.model_copy(update={"fleet": fleet}))


def _size(scenario: Scenario, parameters: int | None) -> tuple[int, int]:
    """Parameters and normalisation statistics; a number that is given needs no network, and so no PyTorch."""
    if parameters is not None:
        if parameters < 2:
            raise ScenarioError("--parameters", parameters, "must be at least 2")
        return parameters, 0
    from wayfare.learning.tasks import model_of

    model = model_of(scenario.learning)
    return model.parameters, model.statistics


def _norms(scenario: Scenario, like: Path | None, *, own: bool) -> NormModel:
    from wayfare.theory.norms import norms_of_run, typical_norms

    if like is not None:
        from wayfare.records import read_run

        return norms_of_run(read_run(like))
    if own:
        return typical_norms("")
    network: str = scenario.learning.network
    if network == "auto":
        from wayfare.learning.tasks import TASKS

        known = TASKS.get(scenario.learning.task)
        network = known.networks[0] if known else network
    return typical_norms(network)


def forecast_json(forecast: Forecast) -> dict[str, Any]:
    """A forecast for programs."""
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
            "devices_without_contact": statistics.devices_without_contact,
            "verdict": verdict_sentence(statistics),
        },
        **{name: None if getattr(forecast, name) is None else asdict(getattr(forecast, name)) for name in parts},
        "warnings": warnings_of(forecast),
    }
