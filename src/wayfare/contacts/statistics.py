"""Statistics of a contact plan, and whether the exponential model of the theory holds for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from wayfare.arrays import Bools, Floats
from wayfare.contacts.plan import ContactPlan

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# KS distances: up to the first the theory's averages hold, beyond the second they do not.
_CLOSE, _ROUGH = 0.10, 0.20
_FEWEST = 20

Verdict = Literal["holds", "roughly", "fails", "too few"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialFit:
    """The exponential distribution with the sample's mean, and how far the sample is from it.

    ``ks_distance`` is D = sup |F_n(t) - (1 - exp(-t / mean))|. Because the mean is estimated, D is judged by the
    modified statistic of Stephens (1974), (D - 0.2/n)(sqrt n + 0.26 + 0.5/sqrt n), whose 5 % point is 1.094.
    """

    mean_s: float
    ks_distance: float
    rejected_at_5_percent: bool
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Complete times inside the plan; ``cut`` more were cut by its start or end."""

    count: int
    cut: int
    mean_s: float | None
    quantiles_s: dict[str, float]
    fit: ExponentialFit | None
    times_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatistics:
    """The contacts of a plan's devices with the server."""

    devices: int
    duration_s: float
    contacts: int
    device_contacts: int
    devices_without_contact: int
    contacts_per_device: dict[str, float]
    time_in_contact_share: float
    contact: Distribution
    inter_contact: Distribution
    # Time out of contact per contact that starts; None if no contact starts. Complete times inside a plan are the
    # shorter ones, so their mean is too small if the plan is not much longer than they are.
    mean_wait_s: float | None
    # The mean while at least one device is in contact. With a shared band each device would have 1 / this of its
    # contact time. This and the next are None without contacts.
    mean_devices_in_contact: float | None
    overlapping_contact_time_share: float | None  # share of contact time with at least two devices in contact


def plan_statistics(plan: ContactPlan) -> PlanStatistics:
    """Counts, distributions and exponential fits of the contacts with the server."""
    served = plan.with_server()
    per_device = np.bincount(served.device, minlength=plan.devices).astype(np.float64)
    length_s = served.end_s - served.start_s
    whole = (served.start_s > 0) & (served.end_s < plan.duration_s)
    same = served.device[1:] == served.device[:-1]
    gap_s = (served.start_s[1:] - served.end_s[:-1])[same]
    # The times before a device's first contact and after its last are incomplete.
    waits = np.concatenate([served.start_s[np.append(True, ~same)[: len(served)]] > 0, _last_ends(served, same)])
    silent, begun = int((per_device == 0).sum()), int((served.start_s > 0).sum())
    mean_devices, overlapping = _overlap(served)
    return PlanStatistics(
        devices=plan.devices,
        duration_s=plan.duration_s,
        contacts=len(served),
        device_contacts=len(plan) - len(served),
        devices_without_contact=silent,
        contacts_per_device={"mean": float(per_device.mean()), **_quantiles(per_device)},
        time_in_contact_share=float(length_s.sum() / (plan.devices * plan.duration_s)),
        contact=distribution(length_s[whole], cut=int((~whole).sum())),
        inter_contact=distribution(gap_s, cut=int(waits.sum()) + silent),
        mean_wait_s=(plan.devices * plan.duration_s - float(length_s.sum())) / begun if begun else None,
        mean_devices_in_contact=mean_devices,
        overlapping_contact_time_share=overlapping,
    )


def _overlap(served: ContactPlan) -> tuple[float | None, float | None]:
    """The mean number n of devices in contact while n >= 1, and the share of contact time with n >= 2.

    Exact: n changes only where a contact starts or ends, so both are sums over the times between these.
    """
    if not len(served):
        return None, None
    times_s = np.concatenate([served.start_s, served.end_s])
    order = np.argsort(times_s)
    n = np.cumsum(np.repeat([1, -1], len(served))[order])[:-1]
    lasts_s = np.diff(times_s[order])
    contact_s = float((n * lasts_s).sum())
    return contact_s / float(lasts_s[n >= 1].sum()), float((n * lasts_s)[n >= 2].sum()) / contact_s


def _last_ends(served: ContactPlan, same: Bools) -> Bools:
    last: Bools = served.end_s[np.append(~same, True)[: len(served)]] < served.duration_s
    return last


def distribution(times_s: Floats, cut: int) -> Distribution:
    """Mean, quantiles and exponential fit of a sample of times."""
    return Distribution(
        count=len(times_s),
        cut=cut,
        mean_s=float(times_s.mean()) if len(times_s) else None,
        quantiles_s=_quantiles(times_s) if len(times_s) else {},
        fit=exponential_fit(times_s) if len(times_s) else None,
        times_s=np.sort(times_s),
    )


def exponential_fit(times_s: Floats) -> ExponentialFit:
    """Fit by the sample's mean. The distance is the larger of the steps above and below the fitted curve."""
    times_s = np.sort(times_s)
    n, mean_s = len(times_s), float(times_s.mean())
    model = -np.expm1(-times_s / mean_s)
    distance = float(max((np.arange(1, n + 1) / n - model).max(), (model - np.arange(n) / n).max()))
    modified = (distance - 0.2 / n) * (np.sqrt(n) + 0.26 + 0.5 / np.sqrt(n))
    rejected = bool(modified > 1.094)
    verdict: Verdict
    if n < _FEWEST:
        verdict = "too few"
    elif distance <= _CLOSE or (not rejected and distance <= _ROUGH):
        verdict = "holds"
    else:
        verdict = "roughly" if distance <= _ROUGH else "fails"
    return ExponentialFit(mean_s=mean_s, ks_distance=distance, rejected_at_5_percent=rejected, verdict=verdict)


def overall_verdict(statistics: PlanStatistics) -> tuple[Verdict, tuple[str, ...]]:
    """Whether the exponential model of the theory holds, and for which times it fails."""
    verdicts = {name: times.fit.verdict if times.fit else "too few" for name, times in _times(statistics)}
    if "too few" in verdicts.values():
        return "too few", ()
    if "fails" in verdicts.values():
        return "fails", tuple(name for name, verdict in verdicts.items() if verdict == "fails")
    return ("roughly" if "roughly" in verdicts.values() else "holds"), ()


def verdict_sentence(statistics: PlanStatistics) -> str:
    """Whether the exponential model of the theory holds, in one sentence."""
    verdict, failing = overall_verdict(statistics)
    if verdict == "too few":
        counts = " and ".join(f"{times.count} complete {name} times" for name, times in _times(statistics))
        return f"Too few contacts to test the exponential model: {counts}; at least {_FEWEST} of each are needed."
    parts = [f"{name} times {times.fit.ks_distance:.2f}" for name, times in _times(statistics) if times.fit]
    distance = f"Kolmogorov-Smirnov distance: {', '.join(parts)}"
    if verdict == "holds":
        return f"The exponential model of the theory holds ({distance})."
    if verdict == "roughly":
        return f"The exponential model of the theory holds roughly ({distance}). Its bounds are approximate."
    return f"The exponential model of the theory does not hold for {' and '.join(failing)} times ({distance})."


def _times(statistics: PlanStatistics) -> tuple[tuple[str, Distribution], ...]:
    return ("contact", statistics.contact), ("inter-contact", statistics.inter_contact)


def _quantiles(values: Floats) -> dict[str, float]:
    found = np.quantile(values, QUANTILES)
    return {f"p{round(100 * level)}": float(value) for level, value in zip(QUANTILES, found, strict=True)}
