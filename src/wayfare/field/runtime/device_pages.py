"""The pages of a device: whether it works, whether it reaches the broker, and its metrics."""

from __future__ import annotations

from collections.abc import Callable

from wayfare.field.runtime.current_model import CurrentModel
from wayfare.field.runtime.daily import DailyBytes
from wayfare.field.runtime.endpoint import Page, Pages, metrics_page, unavailable
from wayfare.field.runtime.guide import no_loss
from wayfare.field.runtime.metrics import Metric
from wayfare.field.runtime.outbox import Outbox


def device_pages(
    outbox: Outbox,
    daily: DailyBytes,
    current: CurrentModel | None,
    is_connected: Callable[[], bool],
    training_loss: Callable[[], float | None] = no_loss,
) -> Pages:
    async def health() -> Page:
        return Page("ok\n")

    async def readiness() -> Page:
        return Page("ok\n") if is_connected() else unavailable("the broker is out of reach")

    async def metrics() -> Page:
        progress = outbox.progress
        figures = [
            ("wayfare_broker_up", "gauge", "1 while the broker is in reach.", int(is_connected())),
            ("wayfare_model_version", "gauge", "Version of the device's model.", progress.version or 0),
            ("wayfare_running_version", "gauge", "Version in use for inference.", (current and current.running) or 0),
            ("wayfare_trained_round", "gauge", "Last trained step.", progress.trained_round),
            ("wayfare_finished_round", "gauge", "Step of the last complete exchange.", progress.finished_round),
            ("wayfare_updates_total", "counter", "Updates cut so far.", progress.last_update),
            ("wayfare_written_bytes_total", "counter", "Bytes written to the store.", outbox.written_bytes),
            ("wayfare_daily_bytes", "gauge", "Bytes sent and received today.", daily.used_bytes),
            ("wayfare_spent_joules", "gauge", "Energy spent on uploads.", outbox.state.spent_joules),
        ]
        if (loss := training_loss()) is not None:
            figures.append(("wayfare_training_loss", "gauge", "Loss of the local model on own data.", loss))
        return metrics_page([Metric(name, kind, help_, [({}, float(value))]) for name, kind, help_, value in figures])

    return {"/metrics": metrics, "/healthz": health, "/readyz": readiness}
