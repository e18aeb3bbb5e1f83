"""Forecast a fleet without training: delivered entries, staleness and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Floats
from wayfare.codec import make_link
from wayfare.contacts import opportunities
from wayfare.contacts.source import SourcedPlan
from wayfare.contacts.statistics import PlanStatistics, plan_statistics
from wayfare.control.budgets import draw_budgets
from wayfare.control.closed_form import full_update_power_watts
from wayfare.errors import ScenarioError
from wayfare.methods import make_method
from wayfare.radio import Link, gains_per_watt
from wayfare.radio.link import MAX_BPS_PER_HZ
from wayfare.scenario import Scenario
from wayfare.theory.assumptions import SERVER_POWERS_WATTS, Assumption, Downlink, assumptions_of, downlinks
from wayfare.theory.bounds import kept_share, lemma_2_staleness, mobility_coefficient
from wayfare.theory.norms import NormModel
from wayfare.theory.rehearsal import Stage, energies_by_weight, rehearse
from wayfare.theory.staleness import staleness_moments

# The limit on rehearsed contacts, about three seconds of work. In larger fleets the first devices represent all.
_REHEARSED = 10_000
_WEIGHTS = np.geomspace(1e-9, 1e6, 61)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullPower:
    """Every contact of the plan at full power, without a budget."""

    median_rate_bps: float
    mean_contact_bits: float  # mean capacity of a contact
    kept_share: float  # mean k/s
    whole_chance: float  # the chance that all entries fit as a sparse upload
    dense_chance: float  # the chance that a dense upload fits
    energy_joules: float  # at maximum power until everything is sent
    usable_joules: float  # at the lowest power that sends everything, or at maximum power
    devices_short: int  # devices whose contacts can use more than their budget
    devices_short_at_full_power: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTheory:
    """The closed forms for exponential times with the plan's means."""

    kept_share: float  # E k/s at full power, over the channels of the plan
    staleness_rounds: float  # E theta at a contact
    staleness_square: float  # Theta of the corrected Lemma 2
    contacts_per_device: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The scheme's own decisions at every contact, with modelled norms."""

    scheme: str
    weight: float | str
    kept_fraction: float
    staleness_rounds: float
    energy_joules: float
    available_joules: float  # sum over devices of the smaller of budget and usable energy
    uploads_per_device: float
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSpeed:
    """The minimum of the corrected bound (Theorem 2) over speeds, with both times proportional to 1 / speed."""

    speed_mps: float
    factor: float
    own_speed_mps: float
    own_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedWeight:
    """The fixed V that spends the budget; None if no V in a wide range does."""

    weight: float | None
    step_norm_sq: float  # the |grad|^2 behind it: only V times this matters
    known: bool  # whether that norm was measured for this network; otherwise a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    name: str
    scenario: Scenario
    statistics: PlanStatistics
    link: Link
    opportunities: int
    budget_joules: float
    assumptions: tuple[Assumption, ...]
    downlinks: tuple[Downlink, ...]  # one for each power of the server; empty without contacts
    full_power: FullPower | None  # None without contacts, as all below
    theory: ByTheory | None
    rehearsed: Rehearsed | None  # the scheme with the scenario's settings
    recommended: Rehearsed | None  # MADS with the automatic weight
    best_speed: BestSpeed | None
    fixed_weight: FixedWeight | None


def forecast(
    found: SourcedPlan,
    *,
    parameters: int,
    statistics: int,
    norms: NormModel,
    scheme: str = "mads",
    server_power_watts: Sequence[float] = SERVER_POWERS_WATTS,
    rates_bps: Mapping[str, float] | None = None,
    seed: int,
) -> Forecast:
    """Forecast a contact plan for a model with given numbers of parameters and statistics.

    With measured ``rates_bps``, every contact of a device has its rate at full power, as a device in the field assumes.
    """
    method = make_method(scheme, found.scenario)
    if method.local.collects() is not None:
        raise ScenarioError(
            "scheme", scheme, "a rehearsal has no samples to collect statistics from; plan mads instead"
        )
    if method.peers is not None:
        raise ScenarioError("scheme", scheme, "a rehearsal has no contacts between devices; plan afl instead")
    if make_method(scheme, found.scenario).privacy is not None:
        raise ScenarioError("scheme", scheme, "a rehearsal models no clipping and noise; plan it without private(...)")
    scenario, contacts = found.scenario, plan_statistics(found.plan)
    link = make_link(scenario, parameters, statistics)
    meets = opportunities(found.exchanges, scenario.round_s, scenario.rounds)
    gains = gains_per_watt(meets, scenario.radio, seed)
    if rates_bps:
        gains = np.array([link.gain_per_watt(rate) for rate in _rates_of(found, rates_bps, link)])[meets.device]
    budgets = draw_budgets(scenario.fleet, seed)
    full = theory = rehearsed = recommended = speed = weight = None
    down: tuple[Downlink, ...] = ()
    if len(meets):
        stage = Stage(
            meets=meets,
            gains_per_watt=gains,
            budgets_joules=budgets,
            link=link,
            rounds=scenario.rounds,
            norms=norms,
            seed=seed,
        )
        down = downlinks(stage, server_power_watts)
        full = _full_power(stage)
        theory = _by_theory(scenario, contacts, stage)
        rehearsed = _rehearsed(scenario, stage, scheme)
        automatic = scenario.model_copy(update={"control": scenario.control.model_copy(update={"weight": "auto"})})
        same = scheme == "mads" and scenario.control.weight == "auto"
        recommended = rehearsed if same else _rehearsed(automatic, stage, "mads")
        speed = _best_speed(scenario, contacts, stage)
        weight = _fixed_weight(scenario, stage)
    return Forecast(
        name=found.name,
        scenario=scenario,
        statistics=contacts,
        link=link,
        opportunities=len(meets),
        budget_joules=float(budgets.sum()),
        assumptions=assumptions_of(link),
        downlinks=down,
        full_power=full,
        theory=theory,
        rehearsed=rehearsed,
        recommended=recommended,
        best_speed=speed,
        fixed_weight=weight,
    )


def _rates_of(found: SourcedPlan, rates_bps: Mapping[str, float], link: Link) -> list[float]:
    """The rate of every device of a plan; a device without a measurement has the median of the others."""
    usual = float(np.median([*rates_bps.values()]))
    rates = [rates_bps.get(name, usual) for name in found.devices]
    if max(rates) > MAX_BPS_PER_HZ * link.bandwidth_hz:
        most, least = max(rates), max(rates) / MAX_BPS_PER_HZ
        rule = f"too small for a measured rate of {most / 1e6:.3g} Mbit/s; set that of the radio, at least {least:.3g}"
        raise ScenarioError("radio.bandwidth_hz", link.bandwidth_hz, rule)
    return rates


def _usable_joules(stage: Stage) -> Floats:
    """The usable energy of each contact, in joules: the power at which all entries fit, times its length."""
    link = stage.link
    power = full_update_power_watts(
        contact_s=stage.meets.contact_s,
        gain_per_watt=stage.gains_per_watt,
        bandwidth_hz=link.bandwidth_hz,
        parameters=link.parameters,
        bits_per_entry=link.bits_per_entry,
        max_power_watts=link.max_power_watts,
        statistics_bits=link.statistics_bits,
    )
    return np.asarray(power * stage.meets.contact_s)


def _full_power(stage: Stage) -> FullPower:
    link, rate_bps = stage.link, stage.rates_bps(stage.link.max_power_watts)
    capacity_bits = stage.meets.contact_s * rate_bps
    sparse_bits = link.parameters * link.bits_per_entry + link.statistics_bits
    room = np.clip((capacity_bits - link.statistics_bits) / (link.parameters * link.bits_per_entry), 0.0, 1.0)
    energy_joules = link.max_power_watts * np.minimum(stage.meets.contact_s, sparse_bits / rate_bps)
    usable_joules = _usable_joules(stage)
    return FullPower(
        median_rate_bps=float(np.median(rate_bps)),
        mean_contact_bits=float(capacity_bits.mean()),
        kept_share=float(room.mean()),
        whole_chance=float((capacity_bits >= sparse_bits).mean()),
        dense_chance=float((capacity_bits >= link.dense_bits).mean()),
        energy_joules=float(energy_joules.sum()),
        usable_joules=float(usable_joules.sum()),
        devices_short=int((stage.by_device(usable_joules) > stage.budgets_joules).sum()),
        devices_short_at_full_power=int((stage.by_device(energy_joules) > stage.budgets_joules).sum()),
    )


def _by_theory(scenario: Scenario, contacts: PlanStatistics, stage: Stage) -> ByTheory | None:
    """The closed forms; None if the plan has no complete contact time or inter-contact time."""
    contact_s, inter_contact_s = contacts.contact.mean_s, contacts.mean_wait_s
    if contact_s is None or inter_contact_s is None:
        return None
    link = stage.link
    kept = kept_share(stage.rates_bps(link.max_power_watts), contact_s, link.parameters, link.bits_per_entry)
    moments = staleness_moments(contact_s, inter_contact_s, scenario.round_s, "start")
    return ByTheory(
        kept_share=float(kept.mean()),
        staleness_rounds=float(moments.at_contact_mean),
        staleness_square=float(lemma_2_staleness(contact_s, inter_contact_s, scenario.round_s, counting="start")),
        contacts_per_device=float(moments.contact_round_share) * scenario.rounds,
    )


def _rehearsed(scenario: Scenario, stage: Stage, name: str) -> Rehearsed:
    devices, count = len(stage.budgets_joules), _devices_rehearsed(stage)
    played = rehearse(stage, make_method(name, scenario), devices=count)
    available = np.minimum(stage.by_device(_usable_joules(stage)), stage.budgets_joules)
    sent = (played.completed > 0) & (played.kept_fraction > 0)
    some = len(played.device) > 0
    return Rehearsed(
        scheme=name,
        weight=scenario.control.weight,
        kept_fraction=float(played.kept_fraction.mean()) if some else 0.0,
        staleness_rounds=float(played.staleness_rounds.mean()) if some else 0.0,
        energy_joules=float(played.energy_joules.sum()) * devices / count,
        available_joules=float(available.sum()),
        uploads_per_device=float(sent.sum()) / count,
        devices=count,
    )


def _devices_rehearsed(stage: Stage) -> int:
    share = min(_REHEARSED / len(stage.meets), 1.0)
    return max(int(len(stage.budgets_joules) * share), 1)


def _best_speed(scenario: Scenario, contacts: PlanStatistics, stage: Stage) -> BestSpeed | None:
    """Minimise the corrected bound over speeds; the plan's times scale with 1 / v."""
    own = getattr(scenario.mobility, "speed_mps", None)
    contact_s, inter_contact_s = contacts.contact.mean_s, contacts.mean_wait_s
    if own is None or contact_s is None or inter_contact_s is None:
        return None
    link = stage.link
    rate_bps = stage.rates_bps(link.max_power_watts)
    room = stage.meets.contact_s * rate_bps / (link.parameters * link.bits_per_entry)
    slower = np.geomspace(1e-2, 1e2, 401)  # own speed / speed
    gamma = np.array([np.minimum(room * times, 1.0).mean() for times in slower])
    theta = lemma_2_staleness(contact_s * slower, inter_contact_s * slower, scenario.round_s, counting="start")
    factor = mobility_coefficient(gamma, "sharp") * theta
    best = int(factor.argmin())
    return BestSpeed(
        speed_mps=float(own / slower[best]),
        factor=float(factor[best]),
        own_speed_mps=float(own),
        own_factor=float(factor[len(slower) // 2]),
    )


def _fixed_weight(scenario: Scenario, stage: Stage) -> FixedWeight:
    """Find the weight by rehearsing many weights at once; energy grows with the weight."""
    some = stage.of_first(_devices_rehearsed(stage))
    spent = energies_by_weight(some, _WEIGHTS, scenario.control.variant).sum(axis=1)
    budget = float(some.budgets_joules.sum())
    weight = None
    if spent[0] <= budget <= spent[-1]:
        weight = float(np.exp(np.interp(budget, np.maximum.accumulate(spent), np.log(_WEIGHTS))))
    return FixedWeight(weight=weight, step_norm_sq=stage.norms.step_norm_sq, known=stage.norms.known)
