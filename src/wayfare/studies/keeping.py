"""Writes checkpoints during a run, and stops it cleanly on request."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from wayfare.errors import DivergenceError, InvariantError, ScenarioError
from wayfare.identity import changes, method_identity
from wayfare.methods import Method
from wayfare.records import RunWriter
from wayfare.signals import StopRequest
from wayfare.simulator import Checks, Simulation

# By default a checkpoint is due after this many seconds, and after this many times the duration of the last one, so
# that checkpoints take less than 2 % of the time for a fleet of any size.
_DEFAULT_EVERY_S = 30.0
_TIMES_ITS_COST = 50.0
# Note only large jumps of the clock, not regular small corrections.
_CLOCK_JUMP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Safeguards:
    """Checkpoints and checks of a run. They do not affect its results."""

    checkpoint_every_s: float | None = None  # None: 30 s, or longer if writing a checkpoint is slow
    checkpoint_every_rounds: int | None = None
    keep_checkpoint: bool = False  # keep one after the end, so that the run can be extended
    allow_divergence: bool = False
    paranoid: bool = False
    fresh: bool = False  # ignore finished runs and checkpoints

    def __post_init__(self) -> None:
        if self.checkpoint_every_s is not None and not self.checkpoint_every_s > 0:
            raise ScenarioError("checkpoint_every_s", self.checkpoint_every_s, "must be above 0")
        if self.checkpoint_every_rounds is not None and self.checkpoint_every_rounds < 1:
            raise ScenarioError("checkpoint_every_rounds", self.checkpoint_every_rounds, "must be at least 1")

    @property
    def checks(self) -> Checks:
        return Checks(allow_divergence=self.allow_divergence, paranoid=self.paranoid)


class StoppedError(Exception):
    """Unwinds a run that was asked to stop and has written a checkpoint."""


class Keeper:
    """An observer that passes events to the writer, writes checkpoints, and stops a run on request."""

    def __init__(
        self,
        safeguards: Safeguards,
        stop: StopRequest,
        on_round: Callable[[int], None] | None,
        *,
        method: Method,
        extend_from: int,
    ) -> None:
        self._safeguards, self._stop, self._on_round = safeguards, stop, on_round
        self._method, self._before = method, method_identity(method, files=False)
        # Up to this round a longer run is equal.
        self._extend_from = extend_from
        self._started = self._last = time.monotonic()
        self._clock = time.time()
        self._cost_s = 0.0

    def open(self, writer: RunWriter, simulation: Simulation) -> None:
        # The simulation refers to this observer. A strong reference back would be a cycle, which keeps gigabytes of
        # models alive until Python's garbage collector runs, perhaps many runs later.
        self._writer, self._simulation = writer, weakref.proxy(simulation)
        self.on_contact, self.on_relay, self.on_evaluation = writer.on_contact, writer.on_relay, writer.on_evaluation

    @property
    def elapsed_s(self) -> float:
        """Seconds since this process started the run, by a monotonic clock."""
        return time.monotonic() - self._started

    def on_round(self, round_: int) -> None:
        """Report progress, write a checkpoint if one is due, and stop if requested."""
        if self._on_round is not None:
            self._on_round(round_)
        if self._stop.signal is not None:
            self.checkpoint()
            raise StoppedError
        # Check early, so that a fault in the first contacts does not cost hours; every checkpoint checks too.
        if round_.bit_count() == 1:
            self.reject_changed_parts()
        pinned = self._safeguards.keep_checkpoint and round_ == self._extend_from
        if pinned or self._due(round_):
            self.checkpoint(pinned=pinned)

    def checkpoint(self, *, pinned: bool = False) -> None:
        """Save everything so far; raise DivergenceError instead of saving a diverged state."""
        began = time.monotonic()
        self.reject_changed_parts()
        state = self._simulation.state()
        if not self._safeguards.allow_divergence and (where := state.first_nonfinite()):
            raise DivergenceError(f"training diverged: after round {state.round} {where} holds NaN or infinity")
        self._writer.checkpoint(state, self.elapsed_s, pinned=pinned)
        self._last = time.monotonic()
        self._cost_s = self._last - began
        jump_s = time.time() - self._clock - self.elapsed_s
        if abs(jump_s) > _CLOCK_JUMP_S:
            self._clock += jump_s
            self._writer.note(
                f"the clock of this machine jumped by {jump_s:+.0f} s; run times are not affected, because they come "
                "from a monotonic clock"
            )

    def reject_changed_parts(self) -> None:
        """Raise InvariantError if a part changed: its state would leak into the next run and be lost on resume."""
        changed = changes({"scheme": self._before}, {"scheme": method_identity(self._method, files=False)})
        if changed:
            raise InvariantError(
                f"the scheme {self._method.name} changed during its run: {'; '.join(changed)}. Parts must not change; "
                "keep state of devices and server in the state of a memory rule, local rule or server rule"
            )

    def _due(self, round_: int) -> bool:
        safeguards = self._safeguards
        if safeguards.checkpoint_every_rounds is not None and round_ % safeguards.checkpoint_every_rounds == 0:
            return True
        every_s = safeguards.checkpoint_every_s
        if every_s is None:
            if safeguards.checkpoint_every_rounds is not None:
                return False
            every_s = max(_DEFAULT_EVERY_S, _TIMES_ITS_COST * self._cost_s)
        return time.monotonic() - self._last >= every_s
