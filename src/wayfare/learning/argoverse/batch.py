"""Scenes as tensors, and batches of them: graphs of different sizes, concatenated without padding.

Every actor has its own frame: its position in the last observed step is the origin, and its fitted velocity points
along +x. Tracks and futures are in that frame, so results do not depend on the position or rotation of a scene.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Floats, Ints
from wayfare.learning.argoverse.lanes import FLAGS, LaneGraph, hops
from wayfare.learning.argoverse.scenes import Scenes, fitted_velocity, rotation
from wayfare.learning.argoverse.sequence import KINDS, OBSERVED_STEPS

SCALES = 5
"""Lane relations reach 1, 2, 4, 8 and 16 segments ahead and back."""
RELATIONS = 2 * SCALES + 2
"""Ahead and back at every scale, left, right."""
ACTOR_CHANNELS = 6
"""Displacement along and across, position along and across, seen, agent."""
LANE_FEATURES = 1 + len(FLAGS)
"""Length and flags."""

_LENGTH_UNIT_M = 10.0
# Relations of a mirrored street: left and right are swapped.
_MIRRORED = (*range(2 * SCALES), 2 * SCALES + 1, 2 * SCALES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneBatch:
    """A batch of scenes, the input of LaneGCN. Directions are unit vectors in the frame of the scene."""

    first_actor: Tensor  # (scenes + 1,); the first actor of a scene is its agent
    actor_scene: Tensor  # (actors,)
    past: Tensor  # (actors, ACTOR_CHANNELS, 20)
    speed: Tensor  # (actors,): metres per step
    actor_centre: Tensor  # (actors, 2)
    actor_direction: Tensor  # (actors, 2)
    future: Tensor  # (actors, 30, 2): in the frame of the actor
    future_seen: Tensor  # (actors, 30)
    first_lane: Tensor  # (scenes + 1,)
    lane_scene: Tensor  # (lanes,)
    lane_features: Tensor  # (lanes, LANE_FEATURES)
    lane_centre: Tensor  # (lanes, 2)
    lane_direction: Tensor  # (lanes, 2)
    relation: Tensor  # (3, edges): receiving lane, giving lane, kind of relation

    @property
    def agents(self) -> Tensor:
        return self.first_actor[:-1]

    def side(self, name: Literal["actor", "lane"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scene of every node, first node of every scene, centres and directions."""
        if name == "actor":
            return self.actor_scene, self.first_actor, self.actor_centre, self.actor_direction
        return self.lane_scene, self.first_lane, self.lane_centre, self.lane_direction

    def near(
        self, receivers: Literal["actor", "lane"], givers: Literal["actor", "lane"], radius_m: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Every receiver with every giver of its scene within a radius, and the giver's relative pose."""
        scene, _, centre, direction = self.side(receivers)
        _, first, other_centre, other_direction = self.side(givers)
        receiver, giver = pairs_within(centre, scene, other_centre, first, radius_m)
        pose = relative_pose(centre[receiver], direction[receiver], other_centre[giver], other_direction[giver])
        return receiver, giver, pose

    def straight_on(self) -> Tensor:
        """(scenes, 30, 2): the agents' futures at their fitted velocity, each in the agent's frame."""
        ahead = torch.arange(1, self.future.shape[1] + 1, device=self.speed.device) * self.speed[self.agents][:, None]
        return torch.stack([ahead, torch.zeros_like(ahead)], dim=2)

    def cast(self, dtype: torch.dtype) -> Self:
        return replace(
            self,
            **{
                entry.name: tensor.to(dtype)
                for entry in fields(self)
                if (tensor := getattr(self, entry.name)).is_floating_point()
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneStore:
    """All scenes of a split on one device, to draw batches from."""

    first_actor: Tensor
    past: Tensor
    speed: Tensor
    actor_centre: Tensor
    actor_direction: Tensor
    future: Tensor
    future_seen: Tensor
    first_lane: Tensor
    lanes: Tensor
    origin: Tensor  # (scenes, 2)
    turn: Tensor  # (scenes, 2, 2)
    graph_centre: Tensor
    graph_direction: Tensor
    graph_features: Tensor
    first_relation: Tensor  # (graph nodes + 1,): relations sorted by the receiving node
    relation_from: Tensor
    relation_kind: Tensor

    def __len__(self) -> int:
        return len(self.first_actor) - 1

    def to(self, device: torch.device) -> Self:
        return replace(self, **{entry.name: getattr(self, entry.name).to(device) for entry in fields(self)})

    def batch_of_all(self) -> SceneBatch:
        return self.batch(torch.arange(len(self), device=self.first_actor.device))

    def batch(self, samples: Tensor, mirrored: Tensor | None = None) -> SceneBatch:
        """A batch of scenes by number; ``mirrored`` scenes have left and right swapped."""
        actors, actor_scene, first_actor = _ranges(self.first_actor, samples)
        indices, lane_scene, first_lane = _ranges(self.first_lane, samples)
        nodes = self.lanes[indices]
        turn = self.turn[samples]
        centre = torch.einsum(
            "lx,lxy->ly", self.graph_centre[nodes] - self.origin[samples][lane_scene], turn[lane_scene]
        )
        batch = SceneBatch(
            first_actor=first_actor,
            actor_scene=actor_scene,
            past=self.past[actors],
            speed=self.speed[actors],
            actor_centre=self.actor_centre[actors],
            actor_direction=self.actor_direction[actors],
            future=self.future[actors],
            future_seen=self.future_seen[actors],
            first_lane=first_lane,
            lane_scene=lane_scene,
            lane_features=self.graph_features[nodes],
            lane_centre=centre,
            lane_direction=torch.einsum("lx,lxy->ly", self.graph_direction[nodes], turn[lane_scene]),
            relation=self._relations(nodes, lane_scene),
        )
        return batch if mirrored is None else _mirror(batch, mirrored)

    def _relations(self, nodes: Tensor, scene: Tensor) -> Tensor:
        """The relations of the graph with both ends in the same scene, as indices in the batch."""
        graph_size = len(self.graph_centre)
        codes = scene * graph_size + nodes  # ascending: nodes of a scene are sorted
        edges, receiver, _ = _ranges(self.first_relation, nodes)
        wanted = scene[receiver] * graph_size + self.relation_from[edges]
        giver = torch.searchsorted(codes, wanted).clamp_(max=max(len(codes) - 1, 0))
        there = codes[giver] == wanted
        return torch.stack([receiver[there], giver[there], self.relation_kind[edges][there]])


def scene_store(scenes: Scenes, graph: LaneGraph) -> SceneStore:
    places = scenes.places_m()
    observed = places[:, :OBSERVED_STEPS]
    velocity = fitted_velocity(observed)
    speed = np.hypot(*velocity.T)
    direction = np.where(speed[:, None] > 0, velocity / np.maximum(speed, 1e-9)[:, None], [1.0, 0.0])
    own = _turned(places - observed[:, -1:], direction)
    steps = np.diff(own[:, :OBSERVED_STEPS], axis=1, prepend=own[:, :1])
    seen = ~np.isnan(own[:, :, :1])
    agent = np.broadcast_to((scenes.kinds == KINDS.index("AGENT"))[:, None, None], (len(own), OBSERVED_STEPS, 1))
    where = own[:, :OBSERVED_STEPS] / _LENGTH_UNIT_M
    moved = np.nan_to_num(np.concatenate([steps, where], axis=2))
    past = np.concatenate([moved, seen[:, :OBSERVED_STEPS], agent], axis=2).transpose(0, 2, 1)
    along = graph.end_m - graph.start_m
    length = np.hypot(*along.T)
    receiver, giver, kind = _all_relations(graph)
    return SceneStore(
        first_actor=torch.from_numpy(scenes.first_actor),
        past=_floats(past),
        speed=_floats(speed),
        actor_centre=_floats(observed[:, -1]),
        actor_direction=_floats(direction),
        future=_floats(np.nan_to_num(own[:, OBSERVED_STEPS:])),
        future_seen=torch.from_numpy(seen[:, OBSERVED_STEPS:, 0].copy()),
        first_lane=torch.from_numpy(scenes.first_lane),
        lanes=torch.from_numpy(scenes.lanes),
        origin=_floats(scenes.origin_m),
        turn=_floats(np.array([rotation(heading) for heading in scenes.heading_rad])),
        graph_centre=_floats(graph.centre_m),
        graph_direction=_floats(along / np.maximum(length, 1e-9)[:, None]),
        graph_features=_floats(np.concatenate([length[:, None] / _LENGTH_UNIT_M, graph.flags], axis=1)),
        first_relation=torch.from_numpy(np.searchsorted(receiver, np.arange(len(graph) + 1))),
        relation_from=torch.from_numpy(giver),
        relation_kind=torch.from_numpy(kind),
    )


def pairs_within(
    centre: Tensor, scene: Tensor, other_centre: Tensor, first_other: Tensor, radius_m: float
) -> tuple[Tensor, Tensor]:
    """Every receiver with every giver of its scene within a radius, as two lists of indices."""
    giver, receiver, _ = _ranges(first_other, scene)
    near = (centre[receiver] - other_centre[giver]).square().sum(dim=1) <= radius_m**2
    return receiver[near], giver[near]


def relative_pose(
    centre: Tensor, direction: Tensor, other_centre: Tensor, other_direction: Tensor, unit_m: float = _LENGTH_UNIT_M
) -> Tensor:
    """(n, 4): position and direction of the others, in frames with these centres and directions."""
    away = (other_centre - centre) / unit_m
    cos, sin = direction.unbind(dim=1)
    turn = torch.stack([torch.stack([cos, -sin], dim=1), torch.stack([sin, cos], dim=1)], dim=1)
    return torch.einsum("npx,nxy->npy", torch.stack([away, other_direction], dim=1), turn).flatten(1)


def _ranges(first: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All indices of the chosen groups, the index in ``chosen`` of each, and the new start of each group."""
    count = first[chosen + 1] - first[chosen]
    begin = torch.cat([count.new_zeros(1), count.cumsum(0)])
    owner = torch.repeat_interleave(count)
    return torch.arange(len(owner), device=count.device) + (first[chosen] - begin[:-1])[owner], owner, begin


def _mirror(batch: SceneBatch, mirrored: Tensor) -> SceneBatch:
    sign = 1 - 2 * mirrored.to(batch.past.dtype)
    actor, lane = sign[batch.actor_scene], sign[batch.lane_scene]

    def across(vectors: Tensor, signs: Tensor) -> Tensor:
        return torch.stack([vectors[..., 0], vectors[..., 1] * signs], dim=-1)

    past = batch.past.clone()
    past[:, 1:4:2] *= actor[:, None, None]
    # Turns left and right are the first two flags.
    swapped = batch.lane_features[:, [0, 2, 1, *range(3, LANE_FEATURES)]]
    receiver, giver, kind = batch.relation
    other = torch.tensor(_MIRRORED, device=kind.device)[kind]
    return replace(
        batch,
        past=past,
        actor_centre=across(batch.actor_centre, actor),
        actor_direction=across(batch.actor_direction, actor),
        future=across(batch.future, actor[:, None]),
        lane_features=torch.where(lane[:, None] < 0, swapped, batch.lane_features),
        lane_centre=across(batch.lane_centre, lane),
        lane_direction=across(batch.lane_direction, lane),
        relation=torch.stack([receiver, giver, torch.where(lane[receiver] < 0, other, kind)]),
    )


def _all_relations(graph: LaneGraph) -> tuple[Ints, Ints, Ints]:
    """Receiver, giver and kind of every relation of a graph, sorted by the receiver."""
    ahead = hops(graph.follows, len(graph), SCALES)
    pairs = [*ahead, *(scale[:, ::-1] for scale in ahead), graph.left, graph.right]
    kind = np.repeat(np.arange(RELATIONS), [len(part) for part in pairs])
    whole = np.concatenate(pairs)
    order = np.argsort(whole[:, 0], kind="stable")
    return whole[order, 0], whole[order, 1], kind[order]


def _turned(places: Floats, direction: Floats) -> Floats:
    """Tracks (n, steps, 2) in frames whose +x is ``direction``."""
    cos, sin = direction.T
    turn = np.stack([np.stack([cos, -sin], axis=1), np.stack([sin, cos], axis=1)], axis=1)
    return np.asarray(np.einsum("nsx,nxy->nsy", places, turn))


def _floats(array: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
