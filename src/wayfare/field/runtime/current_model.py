"""The model of a device for whatever does inference on it: `current.safetensors`, replaced atomically."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from wayfare.errors import WayfareError
from wayfare.field.runtime.life_cycle import network_of, write_safetensors
from wayfare.field.runtime.outbox import Outbox
from wayfare.learning.models.base import Model

_log = logging.getLogger("wayfare.field")
CURRENT = "current.safetensors"
_LOOK_EVERY_S = 1.0


async def keep_current(outbox: Outbox, model: Model, file: Path, every_s: float) -> None:
    """Write the global model when the device has received another, at most every so many seconds to spare flash."""
    written: int | None = None
    while True:
        with outbox.holding():
            version, vector = outbox.progress.version, outbox.model
        if version is not None and version != written:
            try:
                await asyncio.to_thread(write_safetensors, network_of(model, vector), file, version)
                outbox.budget.wrote(4 * len(vector))
            except (OSError, WayfareError) as error:
                # The device trains on without the file.
                _log.warning("%s cannot be written: %s", file, error)
            written = version
            await asyncio.sleep(every_s)
        await asyncio.sleep(_LOOK_EVERY_S)
