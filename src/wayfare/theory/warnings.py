"""Where a forecast rests on something that does not hold, or a setting is far from a better one, in plain sentences."""

from __future__ import annotations

from wayfare.contacts.statistics import verdict_sentence
from wayfare.theory.planner import Forecast

_FEW_CONTACTS = 5.0
_OVER, _UNDER = 1.03, 0.85
_AUTO = "control.weight=auto"


def warnings_of(forecast: Forecast) -> list[str]:
    """What to mind, the gravest first."""
    if forecast.full_power is None or forecast.rehearsed is None:
        return ["No device ever meets the server: nothing can be learnt together."]
    return [
        *_about_forecasts(forecast),
        *_about_contacts(forecast),
        *_about_uploads(forecast),
        *_about_energy(forecast),
    ]


def _about_forecasts(forecast: Forecast) -> list[str]:
    error = forecast.scenario.contacts.forecast_error
    if not error:
        return []
    return [
        f"Everything here takes the length of a contact as known. With contacts.forecast_error = {error:g} uploads are "
        "cut short, and runs keep less."
    ]


def _about_contacts(forecast: Forecast) -> list[str]:
    statistics, round_s = forecast.statistics, forecast.scenario.round_s
    found = []
    if statistics.devices_without_contact:
        number = statistics.devices_without_contact
        found.append(f"{number} of {statistics.devices} devices never meet the server; their data are not learnt from.")
    mean = statistics.contacts_per_device["mean"]
    if mean < _FEW_CONTACTS:
        found.append(f"A device meets the server {mean:.1f} times on average: too rarely for averages to mean much.")
    verdict = verdict_sentence(statistics)
    if "holds (" not in verdict:
        found.append(f"{verdict} Trust the rehearsal more than the closed forms.")
    contact_s = statistics.contact.mean_s
    if contact_s is not None and contact_s > round_s:
        found.append(
            f"Contacts last {contact_s:.3g} s on average, longer than a round ({round_s:g} s): each counts once, in "
            "the round in which it starts."
        )
    return found


def _about_uploads(forecast: Forecast) -> list[str]:
    full, speed = forecast.full_power, forecast.best_speed
    found = []
    if full and full.dense_chance < 0.1:
        chance = f"{100 * full.dense_chance:.1f} %"
        found.append(f"A dense upload fits into {chance} of the contacts: without sparsification little gets through.")
    if speed and speed.own_factor > 2 * speed.factor:
        found.append(
            f"At {speed.own_speed_mps:g} m/s the bound is {speed.own_factor / speed.factor:.1f} times its minimum, "
            f"which lies at {speed.speed_mps:.2g} m/s."
        )
    return found


def _about_energy(forecast: Forecast) -> list[str]:
    full, played, fixed = forecast.full_power, forecast.rehearsed, forecast.fixed_weight
    found = []
    if full and full.usable_joules < forecast.budget_joules:
        found.append(
            f"Contacts can use {full.usable_joules:,.0f} J, less than the budget of {forecast.budget_joules:,.0f} J: "
            "energy is no limit here."
        )
    if played and played.scheme == "mads" and played.weight != "auto":
        if played.energy_joules > _OVER * forecast.budget_joules:
            over = played.energy_joules / forecast.budget_joules - 1
            found.append(
                f"V = {played.weight:g} exceeds the budget by {100 * over:.0f} %; control.weight=auto never does."
            )
        elif played.energy_joules < _UNDER * played.available_joules:
            unused = 1 - played.energy_joules / played.available_joules
            found.append(
                f"V = {played.weight:g} leaves {100 * unused:.0f} % of the energy unused; {_AUTO} would use it."
            )
        if fixed and not fixed.known:
            found.append(
                "How large updates of this network are is a guess, and the energy of a fixed V depends on it a little "
                "(some 7 % for a factor of 3); --like RUN takes it from a run."
            )
    return found
