"""The balance of mass: everything that devices compute must be somewhere."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from wayfare.device import DeviceState
from wayfare.engine import Burst, Engine
from wayfare.errors import InvariantError
from wayfare.methods import Method

_log = logging.getLogger("wayfare")


class Ledger(Engine):
    """An engine that records everything it computes, so that mass can be balanced.

    Everything computed since the last balance must be at the server, in a memory, in a local model or with a relay.
    The server rule reports the sum that it has used. If it cannot, as with Adam, the sum of arrivals replaces it.
    A server that mixes models has no such balance. ``weights`` are the server's weights of the devices' updates.
    """

    def __init__(self, engine: Engine, initial: Tensor, *, weights: Sequence[float] | None = None) -> None:
        self._engine, self._weights, self.ahead_steps = engine, weights, engine.ahead_steps
        self._given = torch.zeros_like(initial, dtype=torch.float64)
        self._computed = torch.zeros_like(initial, dtype=torch.float64)
        self._before: Tensor | None = None
        self._uploads = 0

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        before = [model.double() for model in models]
        self._engine.run(models, bursts)
        for was, model, burst in zip(before, models, bursts, strict=True):
            self._computed += self._weight(burst.device) * (was - model)

    def uploaded(self, uploads: int) -> None:
        """Count uploads that were added to the global model or relayed; each adds a rounding error."""
        self._uploads += uploads

    def added(self, device: int, noise: Tensor) -> None:
        """Count what a privacy rule added to a device's change, which is learned like everything else."""
        self._computed += self._weight(device) * noise

    def given(self, update: Tensor) -> None:
        """Record the sum of arrivals for a server rule that does not report what it used."""
        self._given += update

    def balance(
        self,
        model: Tensor,
        taken: Tensor | None,
        states: Sequence[DeviceState],
        local: Sequence[Tensor],
        relayed: Iterable[Tensor],
        round_: int,
    ) -> None:
        """Compare with the last balance. Raise InvariantError on a difference beyond rounding."""
        holdings = (self._given if taken is None else taken).clone()
        # Single precision rounds every upload into the server's vectors, and every update where it is formed.
        largest = max(len(states) * float(model.double().norm()), float(holdings.norm()))
        for number, (state, own) in enumerate(zip(states, local, strict=True)):
            holdings += self._weight(number) * (state.memory.double() + (state.received.double() - own.double()))
        for update in relayed:
            holdings += update.double()
        if self._before is not None:
            missing = float((holdings - self._before - self._computed).norm())
            rounding = torch.finfo(torch.float32).eps * largest
            if math.isfinite(missing) and missing > rounding * math.sqrt(1 + self._uploads):
                raise InvariantError(
                    f"round {round_}: updates of norm {missing:.3g} were lost or counted twice, of "
                    f"{float(self._computed.norm()):.3g} computed since the last balance"
                )
        self._before, self._uploads = holdings, 0
        self._computed.zero_()

    def _weight(self, device: int) -> float:
        return 1.0 if self._weights is None else self._weights[device]


def make_ledger(
    method: Method, engine: Engine, initial: Tensor, weights: Sequence[float] | None = None
) -> Ledger | None:
    """The ledger of a run; None, with a warning, if the method does not conserve mass."""
    if method.server.takes == "models":
        why = "mixes models at the server"
    elif not method.memory.conserves:
        why = "does not keep everything that was not sent"
    else:
        return Ledger(engine, initial, weights=weights)
    _log.warning("%s %s, so mass is not balanced; all other checks run", method.name, why)
    return None
