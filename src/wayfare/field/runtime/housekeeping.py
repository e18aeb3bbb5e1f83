"""What a server does beside its messages: carry out orders, log contacts, compact history, evaluate the model."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from wayfare.field.runtime.compaction import Window
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.status import Judged

_log = logging.getLogger("wayfare.field")
_OBEY_EVERY_S, _COMPACT_EVERY_S = 0.5, 60.0

Judge: TypeAlias = Callable[[int, Tensor], Judged]
"""Evaluates a version of the model on held-out data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingOptions:
    window: Window | None = field(default_factory=Window)  # older history becomes a snapshot; None: keep everything
    judge: Judge | None = None
    judge_every_s: float = 300.0


class Housekeeping:
    """Works on the ledger in its own thread, through ``in_thread``."""

    def __init__(
        self, ledger: Ledger, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]], options: HousekeepingOptions
    ) -> None:
        self._ledger, self._in_thread, self._options = ledger, in_thread, options
        self.judged: Judged | None = None
        self.best: Judged | None = None

    async def run(self) -> None:
        await asyncio.gather(self._keep(), self._evaluate())

    async def _keep(self) -> None:
        ledger, window, compacted_s = self._ledger, self._options.window, -math.inf
        while True:
            await self._in_thread(self._obey)
            if window is not None and time.monotonic() - compacted_s > _COMPACT_EVERY_S:
                # A replay takes seconds with a large model; devices need not wait for it.
                snapshot = await asyncio.to_thread(ledger.base_within, window)
                if snapshot is not None:
                    found = await self._in_thread(partial(ledger.compact, snapshot))
                    _log.info("compacted", extra=asdict(found))
                compacted_s = time.monotonic()
            await asyncio.sleep(_OBEY_EVERY_S)

    def _obey(self) -> None:
        self._ledger.obey()
        self._ledger.contacts.flush()

    async def _evaluate(self) -> None:
        """Evaluate new versions from time to time, beside the work on the ledger."""
        ledger, judge = self._ledger, self._options.judge
        while judge is not None:
            version, model = await self._in_thread(lambda: (ledger.version, ledger.state.judged))
            if self.judged is None or self.judged.version != version:
                self.judged = await asyncio.to_thread(judge, version, model)
                if math.isfinite(self.judged.loss) and (self.best is None or self.judged.loss < self.best.loss):
                    self.best = self.judged
                _log.info("evaluated", extra=asdict(self.judged))
            await asyncio.sleep(self._options.judge_every_s)
