"""Pulling a download in parts: those of an earlier contact are not requested again."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator

import nats.errors

from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.errors import FieldError
from wayfare.field.runtime.begun import BegunDownload
from wayfare.field.runtime.messages import Manifest, Part
from wayfare.field.runtime.windowed import windowed

_LEAST_PART_BYTES, _FIRST_PART_BYTES, _MOST_PART_BYTES = 1 << 10, 16 << 10, 512 << 10
# Errors of a lost link. The next attempt starts with an Ask.
PASSING = (nats.errors.Error, FieldError, TimeoutError, ConnectionError)


class PartPuller:
    """Requests parts of about a tenth of a second of air: a cut costs little, and so do round trips."""

    def __init__(
        self, request: Callable[[bytes], Awaitable[bytes]], layout: Layout, *, slow_window: int, fast_window: int
    ) -> None:
        self._request, self.slow_window, self.fast_window = request, slow_window, fast_window
        self.part_bytes = _FIRST_PART_BYTES
        # A value and an index per entry, and a header: no download of this model is larger.
        self.max_bytes = 8 * (layout.parameters + layout.statistics) + 4096

    async def pull(self, begun: BegunDownload, manifest: Manifest, *, released: bool = False) -> None:
        """Download what is missing; ``released`` is the version for inference."""
        most = max(manifest.size_bytes, manifest.handed_bytes)
        if most > self.max_bytes:
            raise WireError(f"a download of {most} bytes, the limit is {self.max_bytes}")
        begun.begin(manifest)
        # On a slow link, many requests would wait longer than an answer may take.
        window = self.fast_window if self.part_bytes > _FIRST_PART_BYTES else self.slow_window

        async def pull(place: tuple[int, int]) -> None:
            offset, size_bytes = place
            asked = Part(
                version=manifest.version,
                base_version=manifest.base_version,
                offset=offset,
                size_bytes=size_bytes,
                released=released,
            )
            began_s = time.monotonic()
            try:
                piece = await self._request(asked.packed())
            except PASSING:
                self.part_bytes = max(self.part_bytes // 4, _LEAST_PART_BYTES)
                raise
            if len(piece) != size_bytes:
                begun.clear()
                raise WireError("the server no longer keeps this model")
            begun.add(offset, piece)
            # Several parts share the air.
            faster = time.monotonic() - began_s < 0.1 * window
            self.part_bytes = min(self.part_bytes * 2, _MOST_PART_BYTES) if faster else self.part_bytes

        for hole in begun.holes():
            await windowed(pull, self._places(*hole), window)

    def _places(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Split a missing range into parts, with the best size at the time of each request."""
        while begin < end:
            size_bytes = min(self.part_bytes, end - begin)
            yield begin, size_bytes
            begin += size_bytes
