"""The model of a device for whatever does inference on it: `current.safetensors`, replaced atomically.

It is the version that the server has released to this device, or the model received last if there is none. A device
that was told of a release keeps its file until it has the released version.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.errors import WayfareError
from wayfare.field.runtime.begun import BegunDownload
from wayfare.field.runtime.life_cycle import network_of, write_safetensors
from wayfare.field.runtime.messages import Manifest, Released, parse
from wayfare.field.runtime.model_encoding import model_digest, unpacked
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.parts import PartPuller
from wayfare.files import write_atomically
from wayfare.learning.models.base import Model

_log = logging.getLogger("wayfare.field")
CURRENT, RELEASED = "current.safetensors", "released.json"
_LOOK_EVERY_S = 1.0


class CurrentModel:
    """The file, what it holds, and what the server wants in it."""

    def __init__(self, outbox: Outbox, model: Model, layout: Layout, folder: Path) -> None:
        self._outbox, self._model, self._layout, self._folder = outbox, model, layout, folder
        self._begun = BegunDownload(folder / "released")
        self._writing = asyncio.Lock()
        # The version in the file, and the digest of its vector.
        self.running, self._digest = _content_of(folder / CURRENT)
        self._wanted = _read(folder / RELEASED)

    def want(self, released: Released | None) -> bool:
        """What the server has released to this device; whether that is new."""
        if released == self._wanted:
            return False
        file = self._folder / RELEASED
        if released is None:
            file.unlink(missing_ok=True)
        else:
            write_atomically(file, released.packed())
        self._wanted = released
        self._begun.clear()
        return True

    async def install(self, puller: PartPuller) -> bool:
        """Download the released version, unless the file has it already; whether the file changed."""
        wanted = self._wanted
        if wanted is None or (wanted.version, wanted.digest) == (self.running, self._digest):
            return False
        with self._outbox.holding():
            version, vector = self._outbox.progress.version, self._outbox.model
        if version != wanted.version or model_digest(vector) != wanted.digest:
            vector = await self._pulled(puller, wanted)
        is_written = await self._write(vector, wanted.version)
        if is_written:
            self._begun.clear()
        return is_written

    async def keep(self, every_s: float) -> None:
        """Without a release, write every received model, at most every so many seconds to spare flash."""
        while True:
            with self._outbox.holding():
                version, vector = self._outbox.progress.version, self._outbox.model
            if self._wanted is None and version is not None and version != self.running:
                await self._write(vector, version)
                await asyncio.sleep(every_s)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _pulled(self, puller: PartPuller, wanted: Released) -> Tensor:
        manifest = Manifest(state="ready", version=wanted.version, size_bytes=wanted.size_bytes, digest=wanted.digest)
        try:
            await puller.pull(self._begun, manifest, released=True)
            data = self._begun.data()
            return await asyncio.to_thread(unpacked, data, self._layout, base=None, digest=wanted.digest)
        except WireError:
            self._begun.clear()
            raise
        except BaseException:
            # The link was lost, or the contact ended: keep the parts.
            await asyncio.to_thread(self._begun.save)
            raise

    async def _write(self, vector: Tensor, version: int) -> bool:
        file, found = self._folder / CURRENT, model_digest(vector)

        def write() -> None:
            write_safetensors(network_of(self._model, vector), file, version, digest=found)

        async with self._writing:
            try:
                await asyncio.to_thread(write)
            except (OSError, WayfareError) as error:
                # The device trains on without the file.
                _log.warning("%s cannot be written: %s", file, error)
                return False
            self._outbox.budget.wrote(4 * len(vector))
            self.running, self._digest = version, found
            return True


def _content_of(file: Path) -> tuple[int | None, str]:
    """The version and the digest in the metadata of a file; None if there is no valid file."""
    try:
        from safetensors import safe_open

        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata()
            return int(metadata["version"]), metadata.get("digest", "")
    except Exception:  # safetensors raises its own types; the file is written again
        return None, ""


def _read(file: Path) -> Released | None:
    try:
        return parse(Released, file.read_bytes())
    except (OSError, WireError):
        return None
