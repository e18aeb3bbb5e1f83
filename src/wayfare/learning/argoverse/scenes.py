"""Scenes: the parts of sequences that a forecast needs, in flat arrays.

The origin of a scene is the agent's position in the last observed step, and the agent heads along +x. A scene holds the
road users near the agent that were seen in that step, and the numbers of the lane segments near it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wayfare.arrays import Floats, Ints
from wayfare.errors import InputError
from wayfare.learning.argoverse.lanes import LaneGraph
from wayfare.learning.argoverse.sequence import CITIES, OBSERVED_STEPS, STEPS, Sequence

UNIT_M = 0.01
"""Positions in a scene are whole centimetres: far below the noise of the tracks, and half the size of a float."""
UNSEEN = np.iinfo(np.int16).min
# The window for fitting a velocity, up to the last observed step: shorter is noisier, longer is older.
_FITTED_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneSettings:
    actor_radius_m: float = 60.0
    lane_radius_m: float = 80.0
    lane_spacing_m: float = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """Many scenes: entries ``first[i]`` up to ``first[i + 1]`` belong to scene i, and the first actor is its agent."""

    names: tuple[str, ...]
    city: Ints  # (scenes,), indices in CITIES
    origin_m: Floats  # (scenes, 2): the agent in city coordinates
    heading_rad: Floats  # (scenes,): of the agent
    first_actor: Ints  # (scenes + 1,)
    tracks: NDArray[np.int16]  # (actors, 50, 2): in the frame of the scene, in units of UNIT_M; UNSEEN if not seen
    kinds: Ints  # (actors,)
    first_lane: Ints  # (scenes + 1,)
    lanes: Ints  # numbers of segments in the lane graph

    def __len__(self) -> int:
        return len(self.names)

    def places_m(self) -> Floats:
        """The tracks in metres, NaN if not seen."""
        return np.where(self.tracks == UNSEEN, np.nan, self.tracks * UNIT_M)


def fitted_velocity(places_m: Floats) -> Floats:
    """Metres per step at the last observed step, for tracks (n, 20, 2): the least-squares slope over the last steps.

    Zero for a track seen only once in the window.
    """
    window = places_m[:, -_FITTED_STEPS:]
    seen = ~np.isnan(window[..., :1])
    count = np.maximum(seen.sum(axis=1, keepdims=True), 1)
    times = np.broadcast_to(np.arange(window.shape[1], dtype=np.float64)[None, :, None], seen.shape)
    times = np.where(seen, times - np.where(seen, times, 0).sum(axis=1, keepdims=True) / count, 0)
    # Differences from the last position keep the sums small; the times have mean zero, so a constant cancels.
    offsets = np.where(seen, window - places_m[:, -1:], 0)
    spread = (times**2).sum(axis=1)
    return np.asarray((times * offsets).sum(axis=1) / np.maximum(spread, 1e-9))


class LaneFinder:
    """Finds lane segments near a position, in a list sorted from west to east."""

    def __init__(self, graph: LaneGraph) -> None:
        centre = graph.centre_m
        self._number = np.argsort(centre[:, 0], kind="stable")
        self._centre, self._city = centre[self._number], graph.city[self._number]

    def __len__(self) -> int:
        return len(self._number)

    def near(self, city: int, place_m: Floats, radius_m: float) -> Ints:
        """The sorted numbers of a city's segments whose centre lies within a radius."""
        west, east = np.searchsorted(self._centre[:, 0], [place_m[0] - radius_m, place_m[0] + radius_m])
        band = slice(int(west), int(east))
        near = np.hypot(*(self._centre[band] - place_m).T) <= radius_m
        return np.sort(self._number[band][near & (self._city[band] == city)])


def scene_of(sequence: Sequence, lanes: LaneFinder, settings: SceneSettings, name: str) -> Scenes:
    """One sequence as a scene; raise InputError if the lane graph has nothing near the agent."""
    now = OBSERVED_STEPS - 1
    places = sequence.places_m
    origin = places[0, now]
    velocity = fitted_velocity(places[:1, :OBSERVED_STEPS])[0]
    heading = float(np.arctan2(velocity[1], velocity[0]))
    near = np.hypot(*(places[:, now] - origin).T) <= settings.actor_radius_m  # unseen is NaN, which is not near
    local = (places[near] - origin) @ rotation(heading)
    units = np.round(np.clip(local / UNIT_M, UNSEEN + 1, -UNSEEN - 1))
    city = CITIES.index(sequence.city)
    found = lanes.near(city, origin, settings.lane_radius_m)
    if len(lanes) and not len(found):
        raise InputError(
            f"{name}: the lane graph does not cover the scene: no lane of {sequence.city} within "
            f"{settings.lane_radius_m:g} m of the agent at ({origin[0]:.1f}, {origin[1]:.1f})"
        )
    return Scenes(
        names=(Path(name).stem,),
        city=np.array([city]),
        origin_m=origin[None],
        heading_rad=np.array([heading]),
        first_actor=np.array([0, len(units)]),
        tracks=np.where(np.isnan(units), UNSEEN, units).astype(np.int16),
        kinds=sequence.kinds[near],
        first_lane=np.array([0, len(found)]),
        lanes=found,
    )


def gathered(parts: Seq[Scenes]) -> Scenes:
    def joined(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(scene, name) for scene in parts])

    def begins(name: str) -> Ints:
        counts = np.concatenate([np.diff(getattr(scene, name)) for scene in parts])
        return np.concatenate([[0], np.cumsum(counts)])

    plain = ("city", "origin_m", "heading_rad", "tracks", "kinds", "lanes")
    return Scenes(
        names=tuple(name for part in parts for name in part.names),
        first_actor=begins("first_actor"),
        first_lane=begins("first_lane"),
        **{name: joined(name) for name in plain},  # type: ignore[arg-type]
    )


def constant_velocity(places_m: Floats, window_steps: int = OBSERVED_STEPS - 1) -> Floats:
    """The baseline: continue tracks (n, 50, 2) at the mean velocity of their last steps; (n, 30, 2).

    The default window is the whole 2 s observed, as in the baseline of the data set.
    """
    now = places_m[:, OBSERVED_STEPS - 1]
    velocity = (now - places_m[:, OBSERVED_STEPS - 1 - window_steps]) / window_steps
    ahead = np.arange(1, STEPS - OBSERVED_STEPS + 1)
    return np.asarray(now[:, None] + ahead[None, :, None] * velocity[:, None])


def fitted_constant_velocity(places_m: Floats) -> Floats:
    """The same with a velocity fitted to the last steps by least squares, a stronger baseline."""
    observed = places_m[:, :OBSERVED_STEPS]
    ahead = np.arange(1, STEPS - OBSERVED_STEPS + 1)
    return np.asarray(observed[:, -1:] + ahead[None, :, None] * fitted_velocity(observed)[:, None])


def rotation(heading_rad: float) -> Floats:
    """R such that ``places @ R`` rotates a heading to +x."""
    cos, sin = np.cos(heading_rad), np.sin(heading_rad)
    return np.array([[cos, -sin], [sin, cos]])
