"""LaneGCN (Liang et al., "Learning Lane Graph Representations for Motion Forecasting", ECCV 2020).

ActorNet encodes tracks, MapNet the lane graph, FusionNet passes information from actors to lanes, along lanes, from
lanes to actors and between actors, and a head gives K futures with a score each. Written for this project from the
paper, with four differences:

- A relation between two nodes is seen from the frame of the one that receives (the paper: from the frame of the agent).
  The forecast of an actor then does not depend on where the scene lies or how it is turned, and every road user of a
  scene is an example as good as its agent, which matters where scenes are few.
- ActorNet also sees places, and its features keep a linear view of the track beside the normalised ones.
- Futures are deviations from constant velocity.
- Radii suit a graph of roads as well as one of lanes.

All normalisation is within a node or a track, so there are no running statistics to exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wayfare.learning.argoverse.batch import ACTOR_CHANNELS, SceneBatch, pairs_within, relative_pose
from wayfare.learning.argoverse.sequence import FUTURE_STEPS
from wayfare.learning.models.lanegcn_layers import ActorNet, Attention, Dense, LaneConv, MapNet
from wayfare.learning.models.layers import Layers

# How far a future is expected to leave constant velocity at its end: the unit of the head's last layer.
_REACH_M = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Radii:
    """How near two nodes must be for one to hear from the other."""

    actor_to_lane_m: float = 10.0
    lane_to_actor_m: float = 30.0
    actor_to_actor_m: float = 60.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """K futures of every actor in its own frame, (actors, K, 30, 2) metres, and their scores, (actors, K)."""

    places: Tensor
    scores: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneGcn(Layers):
    """The shape of the network; ``lanes`` is whether there is a map at all."""

    width: int = 128
    modes: int = 6
    lanes: bool = True
    radii: Radii = Radii()

    def module(self) -> nn.Module:
        """The network; it takes a `SceneBatch` and gives a `Forecast`."""
        return _Network(self)


class _Network(nn.Module):
    """The four stages; without lanes only actors hear from actors."""

    def __init__(self, shape: LaneGcn) -> None:
        super().__init__()
        self._radii, width = shape.radii, shape.width
        self.actors = ActorNet(ACTOR_CHANNELS, width)
        if shape.lanes:
            self.map = MapNet(width)
            self.actor_to_lane = nn.ModuleList(Attention(width) for _ in range(2))
            self.lane_to_lane = nn.ModuleList(LaneConv(width) for _ in range(4))
            self.lane_to_actor = nn.ModuleList(Attention(width) for _ in range(2))
        self._has_lanes = shape.lanes
        self.actor_to_actor = nn.ModuleList(Attention(width) for _ in range(2))
        self.head = _Head(width, shape.modes)

    def forward(self, batch: SceneBatch) -> Forecast:
        batch = batch.cast(next(self.parameters()).dtype)
        actors = self.actors(batch.past)
        if self._has_lanes:
            actors = self._with_lanes(actors, batch)
        pairs = pairs_within(
            batch.actor_centre, batch.actor_scene, batch.actor_centre, batch.first_actor, self._radii.actor_to_actor_m
        )
        pose = _poses(batch.actor_centre, batch.actor_direction, batch.actor_centre, batch.actor_direction, pairs)
        for layer in self.actor_to_actor:
            actors = layer(actors, actors, pairs, pose)
        forecast: Forecast = self.head(actors, batch.speed)
        return forecast

    def _with_lanes(self, actors: Tensor, batch: SceneBatch) -> Tensor:
        """Actors to lanes (who drives where), along the lanes, and back to the actors."""
        lanes = self.map(batch)
        actor_side = (batch.actor_centre, batch.actor_direction)
        lane_side = (batch.lane_centre, batch.lane_direction)
        pairs = pairs_within(
            batch.lane_centre, batch.lane_scene, batch.actor_centre, batch.first_actor, self._radii.actor_to_lane_m
        )
        pose = _poses(*lane_side, *actor_side, pairs)
        for layer in self.actor_to_lane:
            lanes = layer(lanes, actors, pairs, pose)
        for layer in self.lane_to_lane:
            lanes = layer(lanes, batch.relation)
        pairs = pairs_within(
            batch.actor_centre, batch.actor_scene, batch.lane_centre, batch.first_lane, self._radii.lane_to_actor_m
        )
        pose = _poses(*actor_side, *lane_side, pairs)
        for layer in self.lane_to_actor:
            actors = layer(actors, lanes, pairs, pose)
        return actors


class _Head(nn.Module):
    """K futures as deviations from constant velocity, and a score for each from where it ends."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self._modes = modes
        self.shared = Dense(width, width)
        self.of_mode = nn.Linear(width, modes * width)
        self.norm = nn.LayerNorm(width)
        self.places = nn.Linear(width, 2 * FUTURE_STEPS)
        self.end = nn.Sequential(nn.Linear(2, width), nn.ReLU(), Dense(width, width))
        self.judge = nn.Sequential(Dense(2 * width, width), nn.Linear(width, 1))

    def forward(self, actors: Tensor, speed: Tensor) -> Forecast:
        """(actors, width) and metres per step -> places and scores."""
        modes = self.of_mode(actors + self.shared(actors)).view(len(actors), self._modes, -1)
        deviation = self.places(torch.relu(self.norm(modes))).view(len(actors), self._modes, FUTURE_STEPS, 2)
        places = futures(deviation, speed)
        end = self.end(ends(places))
        features = torch.cat([actors[:, None].expand_as(end), end], dim=2)
        return Forecast(places, self.judge(features).squeeze(2))


def futures(deviation: Tensor, speed: Tensor) -> Tensor:
    """Deviations (..., actors, K, 30, 2) in a unit that grows with time, and speeds (..., actors) -> places."""
    ahead = torch.arange(1, FUTURE_STEPS + 1, dtype=speed.dtype, device=speed.device)
    along = ahead * speed[..., None]
    straight = torch.stack([along, torch.zeros_like(along)], dim=-1)
    return straight.unsqueeze(-3) + deviation * (ahead * (_REACH_M / FUTURE_STEPS))[:, None]


def ends(places: Tensor) -> Tensor:
    """(..., 30, 2) -> (..., 2): where futures end, to be scored; scores must not move them."""
    return places[..., -1, :].detach() / (2 * _REACH_M)


def _poses(
    centre: Tensor, direction: Tensor, other_centre: Tensor, other_direction: Tensor, pairs: tuple[Tensor, Tensor]
) -> Tensor:
    receiver, giver = pairs
    return relative_pose(centre[receiver], direction[receiver], other_centre[giver], other_direction[giver])
