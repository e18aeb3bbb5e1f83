"""The status of a fleet: one dataclass, as JSON and as Prometheus metrics."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wayfare.errors import InputError
from wayfare.field.runtime.alerts import Alert, alerts_of
from wayfare.field.runtime.metrics import Metric

if TYPE_CHECKING:
    from wayfare.field.runtime.intake import Intake

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device, as the server knows it. Counters start with the server; energy and versions persist."""

    name: str
    exchanges: int = 0
    chunks: int = 0
    repeated: int = 0
    refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    version: int | None = None  # of the model last offered to it
    loss: float | None = None  # of its local model on its own data, as it reported last since the server was started
    heard_s_ago: float | None = None
    spent_joules: float = 0.0
    quarantined: bool = False
    released_version: int | None = None  # for inference; None: the model received last
    running_version: int | None = None  # the version that it uses for inference, as it reported last
    # Of a private device, as it reported them in its last exchange since the server was started.
    releases: int | None = None
    epsilon: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The last evaluation of the global model on held-out data of the server."""

    version: int
    metric: str
    score: float
    loss: float
    untrained_loss: float | None = None  # of the initial model on the same data; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    fleet: str
    version: int  # of the global model
    queued_chunks: int  # recorded, not applied
    broker_in_reach: bool
    up_s: float
    memory_bytes: int
    devices: tuple[DeviceStatus, ...]
    leads: bool = True  # of the servers of this fleet, this one answers
    base_version: int = 0  # the oldest version that can be replayed
    disk_bytes: int = 0  # of the server's state
    free_disk_bytes: int | None = None
    alerts: tuple[Alert, ...] = ()
    judged: Judged | None = None
    best: Judged | None = None  # with the least loss since the server was started
    settings: Mapping[str, float] = field(default_factory=dict)  # of devices, changed while the fleet runs

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> FleetStatus:
        try:
            content: dict[str, Any] = json.loads(text)
            devices = tuple(DeviceStatus(**device) for device in content.pop("devices"))
            alerts = tuple(Alert(**alert) for alert in content.pop("alerts"))
            evaluated = (content.pop(name) for name in ("judged", "best"))
            judged, best = (None if found is None else Judged(**found) for found in evaluated)
            return FleetStatus(**content, devices=devices, alerts=alerts, judged=judged, best=best)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError("the answer is not the status of a fleet; check the address") from None


def status_of(
    intake: Intake,
    *,
    fleet: str,
    heard_at_s: Mapping[int, float],
    began_s: float,
    broker_in_reach: bool,
    leads: bool = True,
    judged: Judged | None = None,
    best: Judged | None = None,
) -> FleetStatus:
    """The status of a server, with times of ``time.monotonic``."""
    ledger, now_s = intake.ledger, time.monotonic()
    settings = ledger.aggregation.settings_at(ledger.version)
    spent, held = ledger.spent_joules(), ledger.state.guard_state.get("quarantined", {})
    devices = tuple(
        DeviceStatus(
            name=name,
            heard_s_ago=None if (at_s := heard_at_s.get(number)) is None else now_s - at_s,
            spent_joules=spent[number],
            quarantined=str(number) in held,
            released_version=ledger.released.state.of(name),
            running_version=ledger.released.running(name),
            **asdict(intake.counts[number]),
        )
        for number, name in enumerate(intake.names)
    )
    status = FleetStatus(
        fleet=fleet,
        version=ledger.version,
        queued_chunks=len(ledger.queued()),
        broker_in_reach=broker_in_reach,
        up_s=now_s - began_s,
        memory_bytes=_memory_bytes(),
        devices=devices,
        leads=leads,
        judged=judged,
        best=best,
        base_version=ledger.base_version,
        disk_bytes=ledger.disk_bytes(),
        settings={} if settings is None else settings.model_dump(exclude_none=True),
        free_disk_bytes=shutil.disk_usage(ledger.folder).free,
    )
    return replace(status, alerts=alerts_of(status))


def metrics_of(status: FleetStatus) -> list[Metric]:
    metrics = [
        Metric("wayfare_model_version", "gauge", "Version of the global model.", [({}, status.version)]),
        Metric("wayfare_queued_chunks", "gauge", "Chunks recorded and not applied.", [({}, status.queued_chunks)]),
        Metric("wayfare_broker_up", "gauge", "1 while the broker is in reach.", [({}, int(status.broker_in_reach))]),
        Metric("wayfare_leads", "gauge", "1 while this server holds the lease.", [({}, int(status.leads))]),
        Metric("wayfare_up_seconds", "gauge", "Time since the server was started.", [({}, status.up_s)]),
        Metric("wayfare_disk_bytes", "gauge", "Size of the server's state.", [({}, status.disk_bytes)]),
        Metric("wayfare_alerts", "gauge", "Alerts now.", [({}, len(status.alerts))]),
        Metric("wayfare_memory_bytes", "gauge", "Resident memory of the server.", [({}, status.memory_bytes)]),
    ]
    if (judged := status.judged) is not None:
        metrics += [
            Metric(
                "wayfare_model_score", "gauge", "Score on held-out data.", [({"metric": judged.metric}, judged.score)]
            ),
            Metric("wayfare_model_loss", "gauge", "Loss on held-out data.", [({}, judged.loss)]),
            Metric("wayfare_judged_version", "gauge", "Version last evaluated.", [({}, judged.version)]),
        ]
    for name, kind, help_, figure in _OF_DEVICES:
        values = [({"device": device.name}, getattr(device, figure)) for device in status.devices]
        metrics.append(Metric(name, kind, help_, [(labels, +value) for labels, value in values if value is not None]))
    return metrics


_OF_DEVICES = (
    ("wayfare_device_exchanges_total", "counter", "Complete exchanges.", "exchanges"),
    ("wayfare_device_chunks_total", "counter", "Chunks recorded.", "chunks"),
    ("wayfare_device_repeated_chunks_total", "counter", "Chunks received again.", "repeated"),
    ("wayfare_device_refused_total", "counter", "Messages rejected.", "refused"),
    ("wayfare_device_received_bytes_total", "counter", "Bytes of chunks from the device.", "received_bytes"),
    ("wayfare_device_sent_bytes_total", "counter", "Bytes of models to the device.", "sent_bytes"),
    ("wayfare_device_version", "gauge", "Version of the model last offered.", "version"),
    ("wayfare_device_loss", "gauge", "Loss of its local model on its own data, as it reports it.", "loss"),
    ("wayfare_device_heard_seconds", "gauge", "Time since the last message.", "heard_s_ago"),
    ("wayfare_device_quarantined", "gauge", "1 while its updates are not used.", "quarantined"),
    ("wayfare_device_released_version", "gauge", "Version released to it for inference.", "released_version"),
    ("wayfare_device_running_version", "gauge", "Version that it uses for inference.", "running_version"),
    ("wayfare_device_spent_joules", "gauge", "Energy spent, as reported by the device.", "spent_joules"),
    ("wayfare_device_releases_total", "counter", "Releases of a private device, as it reports them.", "releases"),
    ("wayfare_device_epsilon", "gauge", "Differential privacy, as reported by the device.", "epsilon"),
)


def _memory_bytes() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES if statm.is_file() else 0
