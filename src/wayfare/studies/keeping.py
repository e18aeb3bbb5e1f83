"""Keeps a run safe while it goes on: checkpoints when they are due, and an orderly stop when one is asked for."""

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

# Unless told otherwise a checkpoint is due after so many seconds, and no sooner than so many times what the last took:
# however large a fleet is, less than 2 % of the time goes into checkpoints.
_DEFAULT_EVERY_S = 30.0
_TIMES_ITS_COST = 50.0
# A clock that is set right by an hour is worth a word; one that is kept right by fractions is not.
_CLOCK_JUMP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Safeguards:
    """What is done so that a run survives. None of it changes what comes out."""

    checkpoint_every_s: float | None = None  # None: 30 s, or longer where a checkpoint takes long
    checkpoint_every_rounds: int | None = None
    keep_checkpoint: bool = False  # also after the end, so that the run can be made longer
    allow_divergence: bool = False
    paranoid: bool = False
    fresh: bool = False  # an unfinished run of the same name is started over

    def __post_init__(self) -> None:
        if self.checkpoint_every_s is not None and not self.checkpoint_every_s > 0:
            raise ScenarioError("checkpoint_every_s", self.checkpoint_every_s, "must be above 0")
        if self.checkpoint_every_rounds is not None and self.checkpoint_every_rounds < 1:
            raise ScenarioError("checkpoint_every_rounds", self.checkpoint_every_rounds, "must be at least 1")

    @property
    def checks(self) -> Checks:
        return Checks(allow_divergence=self.allow_divergence, paranoid=self.paranoid)


class StoppedError(Exception):
    """Unwinds a run that was asked to stop and has saved where it was."""


class Keeper:
    """An observer that hands everything to the writer, writes checkpoints, and stops a run that is asked to."""

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
        # Up to this round a longer run is the same.
        self._extend_from = extend_from
        self._started = self._last = time.monotonic()
        self._clock = time.time()
        self._cost_s = 0.0

    def open(self, writer: RunWriter, simulation: Simulation) -> None:
        # The simulation holds this observer. Holding it in turn would keep its models, gigabytes of them in a large
        # network, until Python looks for such rings, which may be many runs later.
        self._writer, self._simulation = writer, weakref.proxy(simulation)
        self.on_contact, self.on_relay, self.on_evaluation = writer.on_contact, writer.on_relay, writer.on_evaluation

    @property
    def elapsed_s(self) -> float:
        """Seconds since this process began the run, by a clock that is never set."""
        return time.monotonic() - self._started

    def on_round(self, round_: int) -> None:
        """Show progress; write a checkpoint if one is due; stop if asked to."""
        if self._on_round is not None:
            self._on_round(round_)
        if self._stop.signal is not None:
            self.checkpoint()
            raise StoppedError
        # Early, so that a fault of the first contacts does not cost hours; all checkpoints look as well.
        if round_.bit_count() == 1:
            self.refuse_state()
        pinned = self._safeguards.keep_checkpoint and round_ == self._extend_from
        if pinned or self._due(round_):
            self.checkpoint(pinned=pinned)

    def checkpoint(self, *, pinned: bool = False) -> None:
        """Make everything up to now safe. A state that has diverged is not worth going on from."""
        began = time.monotonic()
        self.refuse_state()
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
                f"the clock of this machine jumped by {jump_s:+.0f} s; times in the records are not affected, "
                "they come from a clock that is never set"
            )

    def refuse_state(self) -> None:
        """A part that changed would carry state to the next run, and lose it when this one is resumed."""
        changed = changes({"scheme": self._before}, {"scheme": method_identity(self._method, files=False)})
        if changed:
            raise InvariantError(
                f"the scheme {self._method.name} changed during its run: {'; '.join(changed)}. Parts must not change: "
                "keep what devices or the server remember in the state of a memory rule, local rule or server rule"
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
