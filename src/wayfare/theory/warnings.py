"""Warnings of a forecast: assumptions that do not hold, and settings far from better ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wayfare.contacts.statistics import overall_verdict, verdict_sentence
from wayfare.theory.planner import Forecast

_FEW_CONTACTS = 5.0
_OVER, _UNDER = 1.03, 0.85
_AUTO = "control.weight=auto"


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """Warnings of the same kind differ only in their numbers."""

    kind: str
    text: str


def warnings_of(forecast: Forecast) -> list[PlanWarning]:
    """All warnings, the most serious first."""
    if forecast.full_power is None or forecast.rehearsed is None:
        return [PlanWarning("no contacts", "No device ever meets the server, so nothing can be learned together.")]
    return [
        *_about_forecasts(forecast),
        *_about_contacts(forecast),
        *_about_uploads(forecast),
        *_about_energy(forecast),
        *_about_weight(forecast),
    ]


def _about_forecasts(forecast: Forecast) -> Iterator[PlanWarning]:
    if error := forecast.scenario.contacts.forecast_error:
        text = (
            f"The forecast assumes known contact lengths. With contacts.forecast_error = {error:g} some uploads "
            "are cut short, and runs deliver less."
        )
        yield PlanWarning("forecast error", text)


def _about_contacts(forecast: Forecast) -> Iterator[PlanWarning]:
    statistics, round_s = forecast.statistics, forecast.scenario.round_s
    if number := statistics.devices_without_contact:
        text = f"{number} of {statistics.devices} devices never meet the server, so their data are not used."
        yield PlanWarning("devices without contact", text)
    mean = statistics.contacts_per_device["mean"]
    if mean < _FEW_CONTACTS:
        text = f"A device meets the server {mean:.1f} times on average, too rarely for reliable averages."
        yield PlanWarning("few contacts", text)
    verdict, failing = overall_verdict(statistics)
    if verdict != "holds":
        text = f"{verdict_sentence(statistics)} Trust the rehearsal more than the closed forms."
        yield PlanWarning(" ".join(["exponential model", verdict, *failing]), text)
    contact_s = statistics.contact.mean_s
    if contact_s is not None and contact_s > round_s:
        text = (
            f"Contacts last {contact_s:.3g} s on average, longer than a round ({round_s:g} s). Each counts once, in "
            "the round in which it starts."
        )
        yield PlanWarning("contacts longer than a round", text)


def _about_uploads(forecast: Forecast) -> Iterator[PlanWarning]:
    full, speed = forecast.full_power, forecast.best_speed
    if full and full.dense_chance < 0.1:
        chance = f"{100 * full.dense_chance:.1f} %"
        text = f"A dense upload fits into {chance} of the contacts. Without sparsification little arrives."
        yield PlanWarning("dense uploads", text)
    if speed and speed.own_factor > 2 * speed.factor:
        text = (
            f"At {speed.own_speed_mps:g} m/s the bound is {speed.own_factor / speed.factor:.1f} times its minimum, "
            f"which is at {speed.speed_mps:.0f} m/s."
        )
        yield PlanWarning("far from the best speed", text)


def _about_energy(forecast: Forecast) -> Iterator[PlanWarning]:
    """Compare usable energy with budgets device by device: devices do not share energy."""
    full, devices = forecast.full_power, forecast.statistics.devices
    if not full or full.usable_joules >= forecast.budget_joules:
        return
    usable, budget = (
        f"{joules:,.0f}" if joules >= 100 else f"{joules:.3g}"
        for joules in (full.usable_joules, forecast.budget_joules)
    )
    less = f"Contacts can use {usable} J, less than the budget of {budget} J"
    if full.devices_short:
        text = (
            f"{less}. But {full.devices_short} of {devices} devices have contacts that can use more than their budget: "
            "energy limits only these devices."
        )
        yield PlanWarning("energy limits some devices", text)
    elif full.devices_short_at_full_power:
        text = (
            f"{less}, and no device can use more than its budget: energy is not a limit for a scheme that chooses its "
            f"power. At full power {full.devices_short_at_full_power} of {devices} devices would run out."
        )
        yield PlanWarning("energy limits full power alone", text)
    else:
        text = f"{less}, and no device can use more than its budget: energy is not a limit."
        yield PlanWarning("energy is no limit", text)


def _about_weight(forecast: Forecast) -> Iterator[PlanWarning]:
    played, fixed = forecast.rehearsed, forecast.fixed_weight
    if not played or played.scheme != "mads" or played.weight == "auto":
        return
    if played.energy_joules > _OVER * forecast.budget_joules:
        over = played.energy_joules / forecast.budget_joules - 1
        text = f"V = {played.weight:g} exceeds the budget by {100 * over:.0f} %; {_AUTO} never does."
        yield PlanWarning("V exceeds the budget", text)
    elif played.energy_joules < _UNDER * played.available_joules:
        unused = 1 - played.energy_joules / played.available_joules
        text = f"V = {played.weight:g} leaves {100 * unused:.0f} % of the energy unused; {_AUTO} would use it."
        yield PlanWarning("V leaves energy unused", text)
    if fixed and not fixed.known:
        text = (
            "The size of this network's updates is a guess. The energy of a fixed V depends on it slightly "
            "(about 7 % for a factor of 3); `like=RUN` estimates it from a run."
        )
        yield PlanWarning("norms are a guess", text)
