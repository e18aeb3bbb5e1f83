"""Synthetic sequences: cars that follow each other through a street grid, slow down for corners and turn.

They serve tests, examples and users without the data. Sequences have the official CSV format, and their road graph has
navmap's format. They are far more regular than real traffic, so results on them say nothing about real roads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.arrays import Floats
from wayfare.errors import InputError
from wayfare.files import make_folder_atomically
from wayfare.learning.argoverse.cache import Prepared, prepared_from
from wayfare.learning.argoverse.lanes import joined, lane_graph
from wayfare.learning.argoverse.maps import navmap_lanes
from wayfare.learning.argoverse.scenes import SceneSettings
from wayfare.learning.argoverse.sequence import CITIES, KINDS, SPLITS, STEP_S, STEPS, Sequence, write_sequence
from wayfare.streams import FLEET, Stream, generator

# The street grid: intersections per side, their random displacement, distance of a lane from the centre of the road,
# and distance from an intersection at which a turn begins.
_SIDE, _JITTER_M, _LANE_OFFSET_M, _CORNER_M = 8, 12.0, 2.0, 9.0
# The drivers (Treiber's intelligent driver model): acceleration, comfortable braking, gap at rest, headway, length.
_ACCELERATION_MPS2, _BRAKING_MPS2, _REST_GAP_M, _HEADWAY_S, _CAR_M = 1.5, 2.0, 2.0, 1.2, 4.5
_SIDEWAYS_MPS2, _CORNER_MPS = 2.0, 3.0
_WARM_UP_STEPS, _NOISE_M, _LEGS = 20, 0.05, 4


@dataclass(frozen=True, slots=True)
class City:
    """A grid of two-way streets: positions of intersections, and which are joined."""

    name: str
    block_m: float
    speed_mps: float
    places_m: Floats  # (intersections, 2)
    joined_to: tuple[tuple[int, ...], ...]

    def road_graph(self) -> dict[str, Any]:
        """The streets as networkx's adjacency data, as in navmap."""
        return {
            "directed": True,
            "multigraph": False,
            "graph": [],
            "nodes": [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(self.places_m.tolist())],
            "adjacency": [[{"id": other} for other in others] for others in self.joined_to],
        }


@cache
def city(name: str, seed: int) -> City:
    """A city. MIA has long blocks and fast traffic, PIT short blocks and slow traffic, so a split by city matters."""
    number = CITIES.index(name)
    block_m, speed_mps = ((110.0, 14.0), (75.0, 9.0))[number]
    rng = generator(seed, Stream.SYNTHETIC_SCENES, FLEET + number)
    column, row = np.meshgrid(np.arange(_SIDE), np.arange(_SIDE))
    grid = np.stack([column.ravel(), row.ravel()], axis=1) * block_m
    near = np.abs(grid[:, None] - grid[None]).sum(axis=2)
    return City(
        name,
        block_m,
        speed_mps,
        grid + rng.uniform(-_JITTER_M, _JITTER_M, grid.shape) + 1000.0 * (number + 1),
        tuple(tuple(np.flatnonzero(np.isclose(line, block_m)).tolist()) for line in near),
    )


def synthetic_sequence(seed: int, split: str, number: int) -> Sequence:
    """One sequence. It depends only on its key, not on the number of sequences."""
    key = len(CITIES) + number * len(SPLITS) + SPLITS.index(split)
    rng = generator(seed, Stream.SYNTHETIC_SCENES, key)
    streets = city(CITIES[int(rng.integers(len(CITIES)))], seed)
    begin = int(rng.integers(len(streets.places_m)))
    # First the agent's route with its platoon, then traffic from neighbouring intersections.
    around = [begin, *streets.joined_to[begin]]
    platoons = [_platoon(rng, streets, begin, int(rng.integers(1, 5)))]
    platoons += [
        _platoon(rng, streets, around[int(rng.integers(len(around)))], int(rng.integers(1, 4)))
        for _ in range(int(rng.integers(1, 4)))
    ]
    agent = int(rng.integers(len(platoons[0])))
    tracks = np.concatenate(platoons)
    order = np.concatenate([[agent], np.delete(np.arange(len(tracks)), agent)])
    tracks = tracks[order] + rng.normal(0, _NOISE_M, tracks.shape)
    kinds = np.full(len(tracks), KINDS.index("OTHERS"))
    kinds[0] = KINDS.index("AGENT")
    kinds[1:2] = KINDS.index("AV")
    for track in tracks[2:]:
        # Other road users come into view and leave it.
        first, last = sorted(rng.integers(-STEPS, 2 * STEPS, 2).clip(0, STEPS - 1))
        track[:first], track[last + 1 :] = np.nan, np.nan
    # Sort by first sighting, as in a file; the agent and the AV are visible from the first step.
    order = np.argsort(np.argmax(~np.isnan(tracks[..., 0]), axis=1), kind="stable")
    return Sequence(city=streets.name, kinds=kinds[order], places_m=tracks[order])


def synthetic_sequences(seed: int, split: str, count: int) -> Iterator[Sequence]:
    return (synthetic_sequence(seed, split, number) for number in range(count))


def synthetic_scenes(train: int, val: int, settings: SceneSettings, *, roads: bool = True, seed: int = 0) -> Prepared:
    """Synthetic scenes, with or without the road graph of their streets."""
    graph = joined(
        lane_graph(navmap_lanes(city(name, seed).road_graph(), name), settings.lane_spacing_m, number)
        for number, name in enumerate(CITIES if roads else ())
    )
    return prepared_from(
        synthetic_sequences(seed, "train", train), synthetic_sequences(seed, "val", val), graph, settings
    )


def write_synthetic(folder: Path, train: int, val: int, seed: int = 0) -> None:
    """Write a new folder in the official layout, with the road graphs in its subfolder ``navmap``."""
    if folder.exists():
        raise InputError(f"{folder}: already exists; name a new folder")
    with make_folder_atomically(folder) as part:
        for split, count in zip(SPLITS, (train, val), strict=True):
            data = part / split / "data"
            data.mkdir(parents=True)
            for number, sequence in enumerate(synthetic_sequences(seed, split, count), start=1):
                write_sequence(data / f"{number}.csv", sequence)
        (part / "navmap").mkdir()
        for name in CITIES:
            text = json.dumps(city(name, seed).road_graph())
            (part / "navmap" / f"{name}.json").write_text(text, encoding="utf-8")


def _platoon(rng: np.random.Generator, streets: City, begin: int, cars: int) -> Floats:
    """Tracks (cars, 50, 2) of cars that follow each other along one route."""
    path, limit_mps = _path(rng, streets, begin)
    speed = streets.speed_mps * rng.uniform(0.8, 1.2)
    limit_mps = np.minimum(limit_mps, speed)
    gaps = _CAR_M + _REST_GAP_M + rng.uniform(0.5, 2.0, cars) * speed
    # The last car starts near the beginning of the route; the others are ahead of it.
    along = rng.uniform(0, 0.7 * streets.block_m) + np.cumsum(gaps)[::-1]
    velocity = np.interp(along, np.arange(len(limit_mps)), limit_mps) * rng.uniform(0.7, 1.0, cars)
    # The leader may brake: its desired speed changes once.
    change, factor = int(rng.integers(0, STEPS)), rng.choice([1.0, 1.0, 0.4])
    tracks = np.empty((cars, STEPS, 2))
    for step in range(-_WARM_UP_STEPS, STEPS):
        wish = np.maximum(np.interp(along, np.arange(len(limit_mps)), limit_mps), 0.5)
        wish[0] *= factor if step >= change else 1.0
        velocity, along = _driven(velocity, along, wish)
        if step >= 0:
            places = [np.interp(along, np.arange(len(path)), path[:, axis]) for axis in (0, 1)]
            tracks[:, step] = np.stack(places, axis=1)
    return tracks


def _driven(velocity: Floats, along: Floats, wish: Floats) -> tuple[Floats, Floats]:
    """One step of the intelligent driver model; the first car leads."""
    gap = np.concatenate([[np.inf], along[:-1] - along[1:] - _CAR_M]).clip(min=0.1)
    closing = np.concatenate([[0.0], velocity[1:] - velocity[:-1]])
    braking = velocity * closing / (2 * np.sqrt(_ACCELERATION_MPS2 * _BRAKING_MPS2))
    wanted_gap = _REST_GAP_M + np.maximum(velocity * _HEADWAY_S + braking, 0)
    push = _ACCELERATION_MPS2 * (1 - (velocity / wish) ** 4 - (wanted_gap / gap) ** 2)
    faster = np.maximum(velocity + np.clip(push, -6.0, _ACCELERATION_MPS2) * STEP_S, 0)
    return faster, along + (velocity + faster) / 2 * STEP_S


def _path(rng: np.random.Generator, streets: City, begin: int) -> tuple[Floats, Floats]:
    """A route as points one metre apart, and the speed limit at each point due to corners."""
    route = [begin]
    while len(route) <= _LEGS:
        onward = [node for node in streets.joined_to[route[-1]] if node not in route[-2:]]
        route.append(onward[int(rng.integers(len(onward)))])
    corners = streets.places_m[route]
    ahead = np.diff(corners, axis=0)
    ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
    right = np.stack([ahead[:, 1], -ahead[:, 0]], axis=1) * _LANE_OFFSET_M
    entry = corners[:-1] + right + ahead * _CORNER_M
    leave = corners[1:] + right - ahead * _CORNER_M
    points = [entry[:1], leave[:1]]
    for leg in range(1, len(ahead)):
        points += [_turn(leave[leg - 1], ahead[leg - 1], entry[leg], ahead[leg]), leave[leg : leg + 1]]
    line = np.concatenate(points)
    lengths = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
    metres = np.arange(int(lengths[-1]))
    path = np.stack([np.interp(metres, lengths, line[:, axis]) for axis in (0, 1)], axis=1)
    return path, _corner_limits(path)


def _turn(begin: Floats, ahead: Floats, end: Floats, after: Floats) -> Floats:
    """A quadratic Bezier curve between two lanes; its control point is their intersection."""
    cross = ahead[0] * after[1] - ahead[1] * after[0]
    between = end - begin
    reach = (between[0] * after[1] - between[1] * after[0]) / cross if abs(cross) > 0.2 else 0.0
    control = begin + ahead * reach if 0 < reach < 4 * _CORNER_M else (begin + end) / 2
    t = np.linspace(0, 1, 12)[:, None]
    return np.asarray((1 - t) ** 2 * begin + 2 * t * (1 - t) * control + t**2 * end)


def _corner_limits(path: Floats) -> Floats:
    """sqrt(a / curvature) at every metre, reduced before corners to allow comfortable braking."""
    heading = np.unwrap(np.arctan2(*np.diff(path, axis=0).T[::-1]))
    curvature = np.abs(np.convolve(np.gradient(heading), np.ones(5) / 5, mode="same"))
    limit = np.sqrt(_SIDEWAYS_MPS2 / np.maximum(curvature, 1e-4)).clip(min=_CORNER_MPS)
    for metre in range(len(limit) - 2, -1, -1):
        limit[metre] = min(limit[metre], np.sqrt(limit[metre + 1] ** 2 + 2 * _BRAKING_MPS2))
    return np.asarray(np.append(limit, limit[-1]))
