"""Judge the directions of updates without any data. Two tests that a device with unusual data passes:

*Reaction.* A device trains from the models w_1, w_2, ... that it received, and sends s_1, s_2, ..., which follow the
gradient of its own loss. Where a loss is convex, its gradient is monotone: (s_2 - s_1) (w_2 - w_1) >= 0, whatever the
data. A device that flips the sign of its updates reacts the other way round, and one that repeats an old update does
not react at all. Only what others did to the model counts in w_2 - w_1, because every update is consistent with itself.

*Opposition.* In a fleet whose devices pull in different directions, updates nearly cancel. The cosines of a device's
mean update with those of the N - 1 others then add up to about -1. A device that works against everybody, such as one
with wrong labels, has a sum far below.

Both compare sketches: every entry is added to one of a few thousand sums, with a sign that depends on its index (M.
Charikar, K. Chen and M. Farach-Colton, "Finding frequent items in data streams", 2002). Inner products survive.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wayfare.methods.parts import State

if TYPE_CHECKING:
    from torch import Tensor

Sketch: TypeAlias = NDArray[np.float64]
SUMS = 1024
_MOST_ENTRIES = 1 << 18
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Both tests average over the last 20 updates of a device or so, and judge after 8.
_KEEP, _LEAST_COUNT = 0.95, 8
# With fewer devices, or if the median reaction is lower, nothing is usual.
_FEWEST, _LEAST_REACTION = 4, 0.08
# The weight falls from 1 to 0 between these reactions, relative to the median. Honest devices are above.
_REACTION = (0.15, -0.05)
# It falls to 0.7 between these sums of cosines, unless a device has a friend, with a cosine between these two. No
# further, because an honest device with data like nobody else's may be below.
_OPPOSITION, _FRIEND, _LEAST_OPPOSED = (-1.4, -1.75), (0.4, 0.2), 0.7
# In a small fleet every device may oppose all others.
_FEWEST_OPPOSED = 8


class Directions:
    """What a server knows of the directions of its devices, while it screens the arrivals of a round."""

    def __init__(self, state: State) -> None:
        self._rows: dict[str, dict[str, Any]] = {name: dict(row) for name, row in state["directions"].items()}
        self._path = _array(state["path"].get("sum"))
        self._judged: dict[str, tuple[Sketch, float]] = {}  # in this round

    def state(self) -> State:
        """The state after the round, from whose model the devices of its arrivals train now."""
        for device, (sketch, _) in self._judged.items():
            row = self._rows[device]
            # What others did to the model, since the device received the one before.
            base = self._path - _array(row.get("own"))
            row |= {"last": _rounded(sketch), "base": _tensor(base)}
            row["move"] = _rounded(base - row.pop("before") if "before" in row else np.zeros(SUMS))
        return {"directions": self._rows, "path": {"sum": _tensor(self._path)}}

    def weight(self, device: str, sketch: Sketch) -> float:
        """The weight of an update, 0 to 1. Of several updates in a round, the first one is judged."""
        if device not in self._judged:
            row = self._rows[device] = self._noted(self._rows.get(device, {}), sketch)
            least = min(self._by_reaction(row), self._by_opposition(device, row))
            row["weight"] = least
            self._judged[device] = (sketch, least)
        return self._judged[device][1]

    def applied(self, device: str, sketch: Sketch, share: float) -> None:
        self._path = self._path + share * sketch
        row = self._rows[device]
        row["own"] = _tensor(_array(row.get("own")) + share * sketch)

    def _noted(self, row: dict[str, Any], sketch: Sketch) -> dict[str, Any]:
        row = dict(row)
        length = math.sqrt(float(sketch @ sketch))
        mean = _KEEP * _array(row.get("mean")) + (sketch / length if length else 0.0)
        row |= {"mean": _rounded(mean), "length": math.sqrt(float(mean @ mean)), "count": row.get("count", 0) + 1}
        if "base" in row:
            row["before"] = _array(row["base"])
            move, change = _array(row["move"]), sketch - _array(row["last"])
            for name, one, other in (("both", change, move), ("changes", change, change), ("moves", move, move)):
                row[name] = _KEEP * row.get(name, 0.0) + float(one @ other)
        scale = math.sqrt(row.get("changes", 0.0) * row.get("moves", 0.0))
        row["reaction"] = -row["both"] / scale if scale else 0.0
        return row

    def _by_reaction(self, row: dict[str, Any]) -> float:
        usual = [other["reaction"] for other in self._rows.values() if other["count"] >= _LEAST_COUNT]
        if row["count"] < _LEAST_COUNT or len(usual) < _FEWEST or (middle := median(usual)) < _LEAST_REACTION:
            return 1.0
        return _ramp(row["reaction"] / middle, *_REACTION)

    def _by_opposition(self, device: str, row: dict[str, Any]) -> float:
        others = [other for name, other in self._rows.items() if name != device and other["count"] >= _LEAST_COUNT]
        if row["count"] < _LEAST_COUNT or len(others) + 1 < _FEWEST_OPPOSED or not row["length"]:
            return 1.0
        mean = _array(row["mean"]) / row["length"]
        cosines = [float(mean @ _array(other["mean"])) / other["length"] for other in others if other["length"]]
        passed = max(_ramp(sum(cosines), *_OPPOSITION), _ramp(max(cosines, default=0.0), *_FRIEND))
        return _LEAST_OPPOSED + (1 - _LEAST_OPPOSED) * passed


def _ramp(value: float, full: float, none: float) -> float:
    return min(max((value - none) / (full - none), 0.0), 1.0)


def _array(vector: Tensor | None) -> Sketch:
    return np.zeros(SUMS) if vector is None else vector.numpy().astype(np.float64)


def _tensor(sketch: Sketch) -> Tensor:
    import torch

    return torch.from_numpy(sketch)


def _rounded(sketch: Sketch) -> Tensor:
    """Half the size; only sums over months need the precision."""
    return _tensor(sketch).float()


def sketch_of(indices: Tensor, values: Tensor, entries: int) -> Sketch:
    """Sums of the values with signs, in an order that does not depend on the machine.

    Of a model with many entries, every second, fourth, eighth, ... entry suffices.
    """
    places, numbers = indices.cpu().numpy(), values.detach().cpu().numpy()
    stride = 1 << (entries // _MOST_ENTRIES).bit_length()
    if stride > 1:
        picked = slice(None, None, stride) if len(places) == entries else np.flatnonzero((places & (stride - 1)) == 0)
        places, numbers = places[picked], numbers[picked]
    mixed, numbers = places.astype(np.uint64) * _GOLDEN, numbers.astype(np.float64)
    signed = np.where(mixed >> np.uint64(63), numbers, -numbers)
    found = np.bincount(((mixed >> np.uint64(32)) & np.uint64(SUMS - 1)).astype(np.int64), signed, SUMS)
    return np.asarray(found, np.float64)
