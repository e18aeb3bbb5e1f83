"""Alerts: what a person should look at, by fixed rules on the status of a fleet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wayfare.progress import duration_text

if TYPE_CHECKING:
    from wayfare.field.runtime.status import DeviceStatus, FleetStatus, Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRules:
    silent_s: float = 86_400.0  # a device that was heard before
    behind_versions: int = 100_000
    refused_share: float = 0.1  # of a device's messages with chunks
    free_disk_bytes: int = 2 << 30
    # The loss on held-out data, compared with the least since the server was started: a multiple of it, and an increase
    # relative to the loss of the untrained model, because a tiny loss doubles easily.
    worse_loss: float = 1.5
    worse_increase: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    rule: str
    about: str  # a device, the model or the server
    text: str


def alerts_of(status: FleetStatus, rules: AlertRules | None = None) -> tuple[Alert, ...]:
    rules = rules or AlertRules()
    found = []
    if not status.broker_in_reach:
        found.append(Alert(rule="broker", about="server", text="the broker is out of reach"))
    if status.free_disk_bytes is not None and status.free_disk_bytes < rules.free_disk_bytes:
        text = f"{status.free_disk_bytes / 1e9:.1f} GB of disk are left"
        found.append(Alert(rule="disk", about="server", text=text))
    judged, best = status.judged, status.best
    if judged is not None and best is not None and _is_worse(judged, best, rules):
        text = f"loss {judged.loss:.3g} at version {judged.version:,}, but {best.loss:.3g} at version {best.version:,}"
        found.append(Alert(rule="worse", about="model", text=text))
    for device in status.devices:
        found += _of_device(device, status.version, rules)
    return tuple(found)


def _is_worse(judged: Judged, best: Judged, rules: AlertRules) -> bool:
    """Whether a model is much worse than the best one; NaN is."""
    scale = judged.untrained_loss or 0.0
    most = best.loss + rules.worse_increase * (scale if math.isfinite(scale) else 0.0)
    return not judged.loss <= max(rules.worse_loss * best.loss, most)


def _of_device(device: DeviceStatus, version: int, rules: AlertRules) -> list[Alert]:
    found = []
    if device.quarantined:
        found.append(Alert(rule="quarantine", about=device.name, text="in quarantine: its updates are not used"))
    if device.heard_s_ago is not None and device.heard_s_ago > rules.silent_s:
        text = f"silent for {duration_text(device.heard_s_ago)}"
        found.append(Alert(rule="silent", about=device.name, text=text))
    if device.version is not None and version - device.version > rules.behind_versions:
        found.append(Alert(rule="behind", about=device.name, text=f"{version - device.version:,} versions behind"))
    if device.refused > rules.refused_share * max(device.chunks, 100):
        found.append(Alert(rule="rejected", about=device.name, text=f"{device.refused:,} messages rejected"))
    return found
