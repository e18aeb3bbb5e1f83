"""Account of everything that devices compute, so that mass can be balanced."""

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


class Ledger:
    """An engine that keeps account of everything it computes, so that mass can be balanced.

    What devices computed since the last balance must be at the server, in a memory, in a local model or with a relay.
    What the server has taken is told by its rule. Where that does not tell, as Adam does not, what arrived takes its
    place. Where the server mixes models instead of adding updates there is no such balance. ``weights`` are those
    with which the server takes the updates of devices.
    """

    def __init__(self, engine: Engine, initial: Tensor, *, weights: Sequence[float] | None = None) -> None:
        self._engine, self._weights = engine, weights
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
        """So many uploads were added to the global model, or relayed, each with its rounding."""
        self._uploads += uploads

    def given(self, update: Tensor) -> None:
        """The server's rule was given this, and makes of it what it likes."""
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
        """Compare with the balance before; a difference beyond rounding is a fault."""
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
    """The account of a run; None, with a word, where a method does not conserve mass."""
    if method.server.takes == "models":
        why = "mixes models at the server"
    elif not method.memory.conserves:
        why = "does not remember all that was not sent"
    else:
        return Ledger(engine, initial, weights=weights)
    _log.warning("%s %s: mass is not conserved, and not balanced; all else is", method.name, why)
    return None
