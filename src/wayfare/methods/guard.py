"""The guard before the server rule: it bounds what one device can do to the global model.

A device may be broken or hostile, and the server cannot see its data. It sees the norms of updates, which are similar
across a fleet. Every device has one vote on what is usual, however often it uploads.

P. Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017, show that one unbounded update can move a mean
anywhere. Clipping to a multiple of the median follows Z. Sun et al., "Can You Really Backdoor Federated Learning?",
2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.errors import ScenarioError
from wayfare.methods.directions import Directions, sketch_of
from wayfare.methods.parts import Arrival, Part, ServerRule, State

if TYPE_CHECKING:
    from torch import Tensor

# Norms remembered per device.
_REMEMBERED = 5
# With fewer devices there is no usual norm, and updates are compared with the model instead.
_FEWEST_VOTES = 3
# Weights are halved when they exceed this multiple of the usual norm, so that old uploads are forgotten.
_FORGET_AT = 40.0


@dataclass(frozen=True)
class Guard(Part):
    """Clips updates to a multiple of the usual norm, bounds the weight of a device, and quarantines outliers.

    The usual norm is the median over devices of the median of each device's last five norms. The weight of a device is
    the sum of its applied norms; all weights are halved from time to time.
    """

    clip: float = 2.0  # updates above this multiple of the usual norm are scaled down to it
    share: float = 2.0  # the weight of a device is at most this multiple of the median weight, plus a few updates
    outlier: float = 10.0  # updates above this multiple of the usual norm are outliers and are dropped
    strikes: int = 3  # a device is quarantined after so many outliers in a row
    directions: bool = True  # updates in harmful directions lose weight, see `directions`

    def __post_init__(self) -> None:
        for name, value, least in (
            ("clip", self.clip, 0.0),
            ("share", self.share, 1.0),
            ("outlier", self.outlier, 1.0),
        ):
            if not least < value < math.inf:
                raise ScenarioError(name, value, f"must be a finite number above {least:g}")
        if not isinstance(self.strikes, int) or self.strikes < 1:
            raise ScenarioError("strikes", self.strikes, "must be a whole number of at least 1")
        if self.directions not in (False, True):
            raise ScenarioError("directions", self.directions, "must be 0 or 1")
        # Compositions have numbers only.
        object.__setattr__(self, "directions", bool(self.directions))

    def init(self) -> State:
        return {"norms": {}, "usual": {}, "weights": {}, "strikes": {}, "quarantined": {}, "directions": {}, "path": {}}

    def screen(
        self, model: Tensor, state: State, arrivals: Sequence[Arrival], rule: ServerRule
    ) -> tuple[list[Arrival], State]:
        """The arrivals that the server rule may use, scaled down where necessary, and the new state."""
        # States of earlier versions lack the tables of directions.
        state = {**self.init(), **state}
        tables, passed = _Tables(state), []
        directions = Directions(state) if self.directions else None
        for arrival in arrivals:
            share = self._share(model, tables, directions, arrival, rule)
            if share > 0:
                passed.append(_scaled(model, arrival, share, rule))
        return passed, {**state, **tables.state(), **({} if directions is None else directions.state())}

    def released(self, state: State, device: int) -> State:
        """The state after a person released a device from quarantine; its history is forgotten."""
        kept = {
            kind: {name: row for name, row in table.items() if name != str(device)} for kind, table in state.items()
        }
        return {**kept, "weights": state["weights"]}

    def _share(
        self, model: Tensor, tables: _Tables, directions: Directions | None, arrival: Arrival, rule: ServerRule
    ) -> float:
        """The factor of an update; 0 drops it."""
        device = str(arrival.device)
        if device in tables.quarantined:
            return 0.0
        update = _update(model, arrival, rule)
        norm, usual = length(update), tables.usual_norm()
        # Before there is a usual norm, no update may exceed the model.
        bound = self.clip * usual if usual else max(length(model), 1.0)
        # NaN fails every comparison, so it counts as an outlier.
        if not norm <= bound * max(self.outlier / self.clip, 1.0):
            tables.strike(device, self.strikes, arrival.round)
            return 0.0
        tables.vote(device, norm)
        if norm == 0:
            return 1.0
        applied = min(norm, bound, tables.room(device, self.share, bound))
        if directions is not None:
            sketch = sketch_of(arrival.sent.indices, update, len(model))
            applied *= directions.weight(device, sketch)
            directions.applied(device, sketch, applied / norm)
        tables.weigh(device, applied, usual)
        return applied / norm if applied < norm else 1.0


class _Tables:
    """The tables of a guard, by device, while it screens arrivals."""

    def __init__(self, state: State) -> None:
        self._norms: dict[str, Any] = dict(state["norms"])
        self._usual: dict[str, float] = dict(state["usual"])
        self._weights: dict[str, float] = dict(state["weights"])
        self._strikes: dict[str, int] = dict(state["strikes"])
        self.quarantined: dict[str, int] = dict(state["quarantined"])

    def state(self) -> State:
        return {
            "norms": self._norms,
            "usual": self._usual,
            "weights": self._weights,
            "strikes": self._strikes,
            "quarantined": self.quarantined,
        }

    def usual_norm(self) -> float:
        """The median over devices; 0 while too few of them have voted."""
        return median(self._usual.values()) if len(self._usual) >= _FEWEST_VOTES else 0.0

    def strike(self, device: str, most: int, round_: int) -> None:
        self._strikes[device] = self._strikes.get(device, 0) + 1
        if self._strikes[device] >= most:
            self.quarantined[device] = round_

    def vote(self, device: str, norm: float) -> None:
        self._strikes.pop(device, None)
        kept = [*self._norms.get(device, {}).values(), norm][-_REMEMBERED:]
        self._norms[device] = {str(place): value for place, value in enumerate(kept)}
        self._usual[device] = median(kept)

    def room(self, device: str, share: float, bound: float) -> float:
        """How much more a device may weigh now: a few updates more than a multiple of the median weight."""
        return max(share * self._median_weight() + _REMEMBERED * bound - self._weights.get(device, 0.0), 0.0)

    def weigh(self, device: str, norm: float, usual: float) -> None:
        # A device that joins later starts like the others.
        self._weights[device] = self._weights.get(device, self._median_weight() if usual else 0.0) + norm
        if usual and self._median_weight() > _FORGET_AT * usual:
            self._weights = {name: weight / 2 for name, weight in self._weights.items()}

    def _median_weight(self) -> float:
        return median(self._weights.values()) if self._weights else 0.0


def _update(model: Tensor, arrival: Arrival, rule: ServerRule) -> Tensor:
    """An update, or the one that leads from the global to an arriving model."""
    values = arrival.sent.values
    return values if rule.takes == "updates" else model[arrival.sent.indices] - values


def length(vector: Tensor) -> float:
    """The Euclidean norm. NumPy sums in a fixed order, so a replay with other threads gives the same number."""
    values = vector.detach().cpu().numpy()
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()))


def _scaled(model: Tensor, arrival: Arrival, share: float, rule: ServerRule) -> Arrival:
    from wayfare.sparsify import Sparse

    if share == 1.0:
        return arrival
    sent = arrival.sent
    values = sent.values * share if rule.takes == "updates" else model[sent.indices].lerp(sent.values, share)
    return replace(arrival, sent=Sparse(sent.indices, values))
