"""A run without training: real contacts, channels, budgets and decisions, with modelled norms."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.contacts import Opportunities
from wayfare.control.closed_form import Variant, kept_entries, optimal_power_watts
from wayfare.methods import Method
from wayfare.methods.account import Account, Meeting, meet, pay
from wayfare.radio import Link
from wayfare.theory.norms import NormModel, captured_share, typical_loss, typical_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    meets: Opportunities
    gains_per_watt: Floats
    budgets_joules: Floats
    link: Link
    rounds: int
    norms: NormModel
    seed: int

    def rows_of(self, device: int) -> Ints:
        return np.flatnonzero(self.meets.device == device)

    def of_first(self, devices: int) -> Stage:
        chosen = self.meets.device < devices
        meets = Opportunities(**{field.name: getattr(self.meets, field.name)[chosen] for field in fields(self.meets)})
        budgets_joules = self.budgets_joules[:devices]
        return replace(self, meets=meets, gains_per_watt=self.gains_per_watt[chosen], budgets_joules=budgets_joules)

    def rates_bps(self, power_watts: float) -> Floats:
        """A = B log2(1 + p g) of every contact, in bit/s."""
        return np.asarray(self.link.bandwidth_hz * np.log1p(power_watts * self.gains_per_watt) / np.log(2.0))

    def by_device(self, of_contacts: Floats) -> Floats:
        """Sum a quantity over the contacts of each device."""
        return np.bincount(self.meets.device, of_contacts, len(self.budgets_joules)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The decisions of a method at every contact of the rehearsed devices."""

    device: Ints
    kept_fraction: Floats
    staleness_rounds: Floats
    energy_joules: Floats
    completed: Floats


def rehearse(stage: Stage, method: Method, *, devices: int | None = None) -> Rehearsal:
    """Rehearse a method on the first ``devices`` devices, or on all."""
    count = min(devices or len(stage.budgets_joules), len(stage.budgets_joules))
    rows = [row for device in range(count) for row in _device(stage, method, device)]
    device, *others = np.array(rows, dtype=np.float64).reshape(len(rows), 5).T
    return Rehearsal(device.astype(np.int64), *others)


def _device(stage: Stage, method: Method, device: int) -> list[tuple[int, float, int, float, bool]]:
    found, link = stage.rows_of(device), method.compressor.priced(stage.link)
    factors = stage.norms.factors(stage.seed, device, len(found))
    account, memory_sq = Account(budget_joules=float(stage.budgets_joules[device])), 0.0
    looks = cache(lambda: typical_profile(link.parameters, link.statistics_bits))
    rows = []
    for row, factor in zip(found, factors, strict=True):
        meeting = Meeting(
            round=int(stage.meets.round[row]),
            contact_s=float(stage.meets.contact_s[row]),
            gain_per_watt=float(stage.gains_per_watt[row]),
            device=device,
        )
        stale = meeting.round - account.received_round
        norm_sq = float(stage.norms.next_norm_sq(memory_sq, stale, factor))
        account = replace(account, met_s=account.met_s + meeting.contact_s, contacts=account.contacts + 1)
        account, encounter = meet(
            account,
            meeting,
            method.upload,
            link,
            rounds=stage.rounds,
            update_norm_sq=norm_sq,
            staleness_rounds=stale,
            profile=looks,
        )
        upload = method.upload.decide(encounter, link)
        account = pay(account, encounter, upload.energy_joules)
        kept = upload.entries / link.parameters
        if upload.completes:
            captured = float(captured_share(kept)) * (1.0 - typical_loss(upload.value_bits))
            account, memory_sq = replace(account, received_round=meeting.round), norm_sq * (1.0 - captured)
        rows.append((device, kept, stale, upload.energy_joules, upload.completes))
    return rows


def energies_by_weight(stage: Stage, weights: Floats, variant: Variant) -> Floats:
    """The energy of MADS in joules for many weights (weights x devices), vectorised over both."""
    devices = len(stage.budgets_joules)
    own = [stage.rows_of(device) for device in range(devices)]
    longest = max((len(rows) for rows in own), default=0)
    table = np.full((devices, longest), -1)
    factor = np.ones((devices, longest))
    for device, rows in enumerate(own):
        table[device, : len(rows)] = rows
        factor[device, : len(rows)] = stage.norms.factors(stage.seed, device, len(rows))
    pace = stage.budgets_joules / stage.rounds
    backlog, spent, memory_sq = (np.zeros((len(weights), devices)) for _ in range(3))
    last = np.zeros(devices, dtype=np.int64)
    link = stage.link
    for turn in range(longest):
        here = np.flatnonzero(table[:, turn] >= 0)
        rows = table[here, turn]
        radio = {
            "contact_s": stage.meets.contact_s[rows],
            "gain_per_watt": stage.gains_per_watt[rows],
            "bandwidth_hz": link.bandwidth_hz,
            "parameters": link.parameters,
            "bits_per_entry": link.bits_per_entry,
            "statistics_bits": link.statistics_bits,
        }
        stale = stage.meets.round[rows] - last[here]
        norm_sq = stage.norms.next_norm_sq(memory_sq[:, here], stale, factor[here, turn])
        waiting = np.maximum(backlog[:, here] - np.maximum(stale - 1, 0) * pace[here], 0.0)
        power = optimal_power_watts(
            staleness_rounds=stale,
            update_norm_sq=norm_sq,
            backlog_joules=waiting,
            weight=weights[:, None],
            max_power_watts=link.max_power_watts,
            variant=variant,
            **radio,
        )
        entries = kept_entries(power, **radio)
        bits = np.where(entries > 0, entries * link.bits_per_entry + link.statistics_bits, 0.0)
        rate_bps = link.bandwidth_hz * np.log1p(power * radio["gain_per_watt"]) / np.log(2.0)
        energy = np.divide(power * bits, rate_bps, out=np.zeros_like(bits), where=rate_bps > 0)
        spent[:, here] += energy
        backlog[:, here] = np.maximum(waiting + energy - pace[here], 0.0)
        memory_sq[:, here] = norm_sq * (1.0 - captured_share(entries / link.parameters))
        last[here] = stage.meets.round[rows]
    return spent
