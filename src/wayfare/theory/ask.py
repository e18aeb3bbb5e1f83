"""`plan`: a forecast from a preset, scenario file, trace or saved plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wayfare.contacts.source import SourcedPlan, plan_from_source
from wayfare.errors import ScenarioError
from wayfare.learning.known import KNOWN, vector_sizes
from wayfare.scenario import DEFAULT_PRESET, Scenario
from wayfare.theory.assumptions import SERVER_POWERS_WATTS, check_server_power
from wayfare.theory.norms import NormModel, norms_of_run, typical_norms
from wayfare.theory.planner import Forecast, forecast


def plan(
    source: str = DEFAULT_PRESET,
    overrides: Sequence[str] = (),
    *,
    speed_mps: float | None = None,
    parameters: int | None = None,
    budget_joules: float | None = None,
    range_m: float | None = None,
    scheme: str = "mads",
    like: Path | None = None,
    server_power_watts: Sequence[float] = SERVER_POWERS_WATTS,
    rates_bps: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Forecast:
    """Forecast what a fleet will achieve, without training.

    The source is a preset, a scenario file, a trace or a saved plan. ``budget_joules`` is the budget of each device.
    ``like`` is a finished run from which the size of updates is estimated. ``server_power_watts`` lists powers at which
    the server might send the whole model; only the downlink shares depend on it. ``rates_bps`` are measured rates at
    full power by name of a device; they replace path loss and shadowing.
    """
    if parameters is not None and parameters < 2:
        raise ScenarioError("parameters", parameters, "must be at least 2")
    for name, value in (("speed", speed_mps), ("budget_joules", budget_joules)):
        if value is not None and not value > 0:
            raise ScenarioError(name, value, "must be above 0")
    for power_watts in server_power_watts:
        check_server_power(power_watts)
    if speed_mps is not None:
        overrides = [*overrides, f"mobility.speed_mps={speed_mps!r}"]
    found = plan_from_source(source, seed=seed, overrides=overrides, range_m=range_m)
    if budget_joules is not None:
        found = _with_budget(found, budget_joules)
    size, statistics = (parameters, 0) if parameters is not None else vector_sizes(found.scenario.learning)
    norms = _norms(found.scenario, like, own_model=parameters is not None)
    return forecast(
        found,
        parameters=size,
        statistics=statistics,
        norms=norms,
        scheme=scheme,
        server_power_watts=server_power_watts,
        rates_bps=rates_bps,
        seed=seed,
    )


def _with_budget(found: SourcedPlan, budget_joules: float) -> SourcedPlan:
    same = {"energy_min_joules": budget_joules, "energy_max_joules": budget_joules, "energy_total_joules": None}
    fleet = found.scenario.fleet.model_copy(update=same)
    return replace(found, scenario=found.scenario.model_copy(update={"fleet": fleet}))


def _norms(scenario: Scenario, like: Path | None, *, own_model: bool) -> NormModel:
    if like is not None:
        from wayfare.records import read_run

        return norms_of_run(read_run(like))
    network: str = scenario.learning.network
    if own_model:
        network = ""
    elif network == "auto":
        known = KNOWN.get(scenario.learning.task)
        network = known.networks[0] if known else network
    return typical_norms(network)
