"""Tables of all scenes for LaneGCN, computed once: nodes, and links in the order of the sums.

Neighbours within a radius, relative poses and relations of lanes depend only on the scene, not on the model. Within a
scene nodes and links are numbered from 0. A batch looks them up in these tables and shifts them to the scene's
position in the batch. A mirrored scene is a separate scene.

Every table ends with a row of zeros for padding.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.learning.argoverse.batch import RELATIONS, SCALES, SceneBatch, SceneStore, relative_pose
from wayfare.learning.models.lanegcn import LaneGcn
from wayfare.learning.tasks.argoverse import actor_weights

# Few enough that computing them needs no more memory than the tables.
_SCENES_AT_A_TIME = 256


@dataclass(frozen=True, slots=True)
class Links:
    """Links of one kind, sorted by scene and receiver. Positions are within the scene, as int32."""

    first: Ints  # (scenes + 1,), on the host: the links of a scene
    pose: Tensor  # (links + 1, 4): of the giver, relative to the receiver
    receiver: Tensor  # (links + 1,)
    giver: Tensor  # (links + 1,)
    by_giver: Tensor  # (links + 1,): links, or receivers, in the order of givers
    first_of_receiver: Tensor  # (receivers + 1,): positions among the links of the scene
    first_of_giver: Tensor  # (givers + 1, ways): the same in the order of givers


@dataclass(frozen=True, slots=True)
class Actors:
    first: Ints  # (scenes + 1,), on the host
    past: Tensor  # (actors + 1, ACTOR_CHANNELS x 20 + 1): the track, and the speed in metres per step
    future: Tensor  # (actors + 1, 30, 2)
    future_seen: Tensor  # (actors + 1, 30)
    weight: Tensor  # (actors + 1,): weights in the loss


@dataclass(frozen=True, slots=True)
class Lanes:
    first: Ints  # (scenes + 1,), on the host
    features: Tensor  # (lanes + 1, LANE_FEATURES)


@dataclass(frozen=True, slots=True)
class SceneTables:
    """All scenes of a split, optionally followed by all of them mirrored."""

    scenes: int  # without mirrored ones
    kinds: int  # of relations that occur: a road graph has no left and right
    actors: Actors
    actor_to_actor: Links
    lanes: Lanes | None
    actor_to_lane: Links | None
    lane_to_actor: Links | None
    relations: Links | None  # a giver is a piece of lane and a relation: piece x kinds + kind


_TABLES = tuple(entry.name for entry in fields(SceneTables))[2:]
_Table = TypeVar("_Table", Actors, Lanes | None, Links | None)


def scene_tables(store: SceneStore, model: LaneGcn, dtype: torch.dtype, *, mirrored: bool) -> SceneTables:
    """The tables of a store, on its device, with the same numbers as `SceneStore.batch`."""
    every_scene = torch.arange(len(store), device=store.past.device)
    sides = bool((store.relation_kind >= 2 * SCALES).any())
    kinds = RELATIONS if sides else 2 * SCALES
    parts = [
        _tables(store.batch(some, torch.ones_like(some) if mirror else None).cast(dtype), model, kinds)
        for mirror in ((False, True) if mirrored else (False,))
        for some in every_scene.split(_SCENES_AT_A_TIME)
    ]
    return SceneTables(len(store), kinds, *(_joined([getattr(table, name) for table in parts]) for name in _TABLES))


def _tables(batch: SceneBatch, model: LaneGcn, kinds: int) -> SceneTables:
    radii, lanes = model.radii, model.lanes
    return SceneTables(
        scenes=len(batch.agents),
        kinds=kinds,
        actors=Actors(
            first=_on_host(batch.first_actor),
            past=_with_zeros(torch.cat([batch.past.flatten(1), batch.speed[:, None]], dim=1)),
            future=_with_zeros(batch.future),
            future_seen=_with_zeros(batch.future_seen),
            weight=_with_zeros(actor_weights(batch)),
        ),
        actor_to_actor=_near(batch, "actor", "actor", radii.actor_to_actor_m),
        lanes=Lanes(_on_host(batch.first_lane), _with_zeros(batch.lane_features)) if lanes else None,
        actor_to_lane=_near(batch, "lane", "actor", radii.actor_to_lane_m) if lanes else None,
        lane_to_actor=_near(batch, "actor", "lane", radii.lane_to_actor_m) if lanes else None,
        relations=_related(batch, kinds) if lanes else None,
    )


def _near(
    batch: SceneBatch, receivers: Literal["actor", "lane"], givers: Literal["actor", "lane"], radius_m: float
) -> Links:
    scene, first, _, _ = batch.side(receivers)
    receiver, giver, pose = batch.near(receivers, givers, radius_m)
    return _links(scene, (first, batch.side(givers)[1]), (receiver, giver), pose)


def _related(batch: SceneBatch, kinds: int) -> Links:
    receiver, giver, kind = batch.relation
    scene, first, centre, direction = batch.side("lane")
    pose = relative_pose(centre[receiver], direction[receiver], centre[giver], direction[giver])
    return _links(scene, (first, first), (receiver, giver * kinds + kind), pose, kinds)


def _links(
    scene: Tensor, firsts: tuple[Tensor, Tensor], ends: tuple[Tensor, Tensor], pose: Tensor, ways: int = 1
) -> Links:
    """Links by positions within their scenes; ``firsts`` are the first receiver and giver of every scene.

    A giver has one row per way to give. With one way, links have their own rows and are listed in the order of givers.
    With several ways, links have no rows, and their receivers are listed.
    """
    (first_receiver, first_giver), (receiver, giver) = firsts, ends
    first = torch.searchsorted(receiver, first_receiver)
    receivers = torch.arange(len(scene), device=scene.device)
    givers = torch.arange(int(first_giver[-1]) * ways, device=scene.device)
    giver_scene = torch.repeat_interleave(first_giver.diff() * ways)
    link_scene = scene[receiver]
    order = torch.argsort(giver, stable=True)
    in_scene = receiver - first_receiver[link_scene]
    return Links(
        first=_on_host(first),
        pose=_with_zeros(pose),
        receiver=_places(in_scene),
        giver=_places(giver - ways * first_giver[link_scene]),
        by_giver=_places(order - first[link_scene[order]] if ways == 1 else in_scene[order]),
        first_of_receiver=_places(torch.searchsorted(receiver, receivers) - first[scene]),
        first_of_giver=_places((torch.searchsorted(giver[order], givers) - first[giver_scene]).view(-1, ways)),
    )


def _joined(parts: list[_Table]) -> _Table:
    """Concatenate the same table of several sets of scenes."""
    whole = parts[0]
    if whole is None:
        return whole
    tables = {
        entry.name: _with_zeros(torch.cat([getattr(table, entry.name)[:-1] for table in parts]))
        for entry in fields(whole)
        if entry.name != "first"
    }
    counts = np.concatenate([np.diff(part.first) for part in parts if part is not None])
    return replace(whole, first=np.concatenate([[0], np.cumsum(counts)]), **tables)


def _on_host(numbers: Tensor) -> Ints:
    host: Ints = numbers.cpu().numpy()
    return host


def _places(numbers: Tensor) -> Tensor:
    return _with_zeros(numbers.to(torch.int32))


def _with_zeros(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.zeros_like(rows[:1]) if len(rows) else rows.new_zeros(1, *rows.shape[1:])])
