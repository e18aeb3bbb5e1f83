"""What LaneGCN needs of every scene, worked out once: its nodes, and who hears from whom in which order.

Which nodes are within a radius of one another, how each sees the other and which pieces of lane are related depends on
the scene alone, not on the model. Within a scene nodes and links are numbered from 0, so a batch of scenes is numbers
looked up in these tables and moved to where the scene lies in the batch. A mirrored scene is a scene of its own.

Every table ends with a row of zeros, which is what padding refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.learning.argoverse.batch import SceneBatch, SceneStore, pairs_within, relative_pose
from wayfare.learning.models.lanegcn import LaneGcn
from wayfare.learning.tasks.argoverse import actor_weights


@dataclass(frozen=True, slots=True)
class Links:
    """Links of one kind, sorted by scene and receiver. Places are within the scene, and int32."""

    first: Ints  # (scenes + 1,), on the host: the links of a scene
    pose: Tensor  # (links + 1, 4): of the giver, seen from the receiver
    receiver: Tensor  # (links + 1,)
    giver: Tensor  # (links + 1,)
    # In the order of givers: which link, or, where ``giver`` is a row of a larger table, which receiver.
    by_giver: Tensor  # (links + 1,)
    first_of_receiver: Tensor  # (receivers + 1,): places among the links of the scene
    first_of_giver: Tensor  # (givers + 1, ways): likewise, in the order of givers


@dataclass(frozen=True, slots=True)
class Nodes:
    """Road users or pieces of lane, scene by scene."""

    first: Ints  # (scenes + 1,), on the host
    features: Tensor  # (nodes + 1, ...)


@dataclass(frozen=True, slots=True)
class Futures:
    """What is to be forecast of every road user."""

    places: Tensor  # (actors + 1, 30, 2)
    seen: Tensor  # (actors + 1, 30)
    weight: Tensor  # (actors + 1,)


@dataclass(frozen=True, slots=True)
class SceneTables:
    """All scenes of a split, then, if they are wanted, all of them mirrored."""

    scenes: int
    kinds: int  # of relations that occur, the last included: a graph of roads has no left and right
    actors: Nodes  # features: the past, and then the speed
    futures: Futures
    actor_to_actor: Links
    lanes: Nodes | None
    actor_to_lane: Links | None
    lane_to_actor: Links | None
    relations: Links | None  # a giver is a pair of a piece of lane and a relation


def scene_tables(store: SceneStore, model: LaneGcn, dtype: torch.dtype, *, mirrored: bool) -> SceneTables:
    """Tables of a store, where it lies, for models of a type; the same numbers that `SceneStore.batch` gives."""
    batches = [store.batch_of_all()]
    if mirrored:
        everyone = torch.arange(len(store), device=store.past.device)
        batches.append(store.batch(everyone, torch.ones_like(everyone)))
    batches = [batch.cast(dtype) for batch in batches]
    radii, has_map = model.radii, model.lanes
    kinds = max((int(batch.relation[2].max()) + 1 for batch in batches if batch.relation.numel()), default=1)

    def all_links(of: Callable[[SceneBatch], Links]) -> Links:
        return _joined_links([of(batch) for batch in batches])

    def actors_of(batch: SceneBatch) -> Tensor:
        return torch.cat([batch.past.flatten(1), batch.speed[:, None]], dim=1)

    return SceneTables(
        scenes=len(store),
        kinds=kinds,
        actors=Nodes(_firsts(batch.first_actor for batch in batches), _rows(map(actors_of, batches))),
        futures=Futures(
            _rows(batch.future for batch in batches),
            _rows(batch.future_seen for batch in batches),
            _rows(actor_weights(batch) for batch in batches),
        ),
        actor_to_actor=all_links(lambda batch: _near(batch, "actor", "actor", radii.actor_to_actor_m)),
        lanes=(
            Nodes(_firsts(batch.first_lane for batch in batches), _rows(batch.lane_features for batch in batches))
            if has_map
            else None
        ),
        actor_to_lane=all_links(lambda batch: _near(batch, "lane", "actor", radii.actor_to_lane_m))
        if has_map
        else None,
        lane_to_actor=all_links(lambda batch: _near(batch, "actor", "lane", radii.lane_to_actor_m))
        if has_map
        else None,
        relations=all_links(lambda batch: _related(batch, kinds)) if has_map else None,
    )


def _near(batch: SceneBatch, receivers: str, givers: str, radius_m: float) -> Links:
    """Every receiver with every giver within a radius."""
    scene, first, centre, direction = _side(batch, receivers)
    _, other_first, other_centre, other_direction = _side(batch, givers)
    receiver, giver = pairs_within(centre, scene, other_centre, other_first, radius_m)
    pose = relative_pose(centre[receiver], direction[receiver], other_centre[giver], other_direction[giver])
    order = torch.argsort(giver, stable=True)
    firsts = torch.searchsorted(receiver, first), first, other_first
    return _links(scene, firsts, (receiver, giver), pose, order, order, 1)


def _related(batch: SceneBatch, kinds: int) -> Links:
    """Every piece of lane with its relatives; all relations of a piece are rows of one table."""
    receiver, giver, kind = batch.relation
    scene, first, centre, direction = _side(batch, "lane")
    pose = relative_pose(centre[receiver], direction[receiver], centre[giver], direction[giver])
    row = giver * kinds + kind
    order = torch.argsort(row, stable=True)
    firsts = torch.searchsorted(receiver, first), first, first * kinds
    return _links(scene, firsts, (receiver, row), pose, order, receiver[order], kinds)


def _side(batch: SceneBatch, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scene of every node, first node of every scene, centres and directions."""
    if name == "actor":
        return batch.actor_scene, batch.first_actor, batch.actor_centre, batch.actor_direction
    return batch.lane_scene, batch.first_lane, batch.lane_centre, batch.lane_direction


def _links(
    scene: Tensor,
    firsts: tuple[Tensor, Tensor, Tensor],
    pairs: tuple[Tensor, Tensor],
    pose: Tensor,
    order: Tensor,
    by_giver: Tensor,
    ways: int,
) -> Links:
    """Links by places within their scenes; ``firsts`` are the first link, receiver and giver of every scene."""
    (first, first_receiver, first_giver), (receiver, giver) = firsts, pairs
    link_scene = scene[receiver]
    sorted_scene = link_scene[order]
    from_links = by_giver is order
    givers = torch.arange(int(first_giver[-1]), device=scene.device)
    receivers = torch.arange(int(first_receiver[-1]), device=scene.device)
    giver_scene = torch.bucketize(givers, first_giver[1:], right=True)
    return Links(
        first=_on_host(first),
        pose=_with_zeros(pose),
        receiver=_places(receiver - first_receiver[link_scene]),
        giver=_places(giver - first_giver[link_scene]),
        by_giver=_places(by_giver - (first if from_links else first_receiver)[sorted_scene]),
        first_of_receiver=_places(torch.searchsorted(receiver, receivers) - first[scene]),
        first_of_giver=_places((torch.searchsorted(giver[order], givers) - first[giver_scene]).view(-1, ways)),
    )


def _joined_links(parts: list[Links]) -> Links:
    """The links of several sets of scenes, one after the other."""
    tables = {
        entry.name: _with_zeros(torch.cat([getattr(part, entry.name)[:-1] for part in parts]))
        for entry in fields(Links)
        if entry.name != "first"
    }
    return Links(first=_after_one_another([part.first for part in parts]), **tables)


def _firsts(parts: Iterable[Tensor]) -> Ints:
    return _after_one_another([_on_host(part) for part in parts])


def _after_one_another(parts: list[Ints]) -> Ints:
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part) for part in parts]))])


def _rows(parts: Iterable[Tensor]) -> Tensor:
    return _with_zeros(torch.cat(list(parts)))


def _on_host(numbers: Tensor) -> Ints:
    host: Ints = numbers.cpu().numpy()
    return host


def _places(numbers: Tensor) -> Tensor:
    return _with_zeros(numbers.to(torch.int32))


def _with_zeros(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.zeros_like(rows[:1]) if len(rows) else rows.new_zeros(1, *rows.shape[1:])])
