"""LaneGCN (Liang et al., "Learning Lane Graph Representations for Motion Forecasting", ECCV 2020).

ActorNet encodes tracks and MapNet the lane graph. FusionNet passes information from actors to lanes, along lanes, from
lanes to actors and between actors. A head predicts K futures with a score each. This implementation follows the paper,
with four differences:

- A relation between two nodes is expressed in the frame of the receiver (paper: in the frame of the agent). The
  forecast of an actor then does not depend on the position or rotation of the scene, and every road user is as good a
  training example as the agent, which matters if scenes are few.
- ActorNet also sees positions, and its features include a linear map of the track besides the normalised ones.
- Futures are deviations from constant velocity.
- Radii suit a road graph as well as a lane graph.

All normalisation is within a node or a track, so there are no running statistics to exchange.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wayfare.learning.argoverse.batch import ACTOR_CHANNELS, SceneBatch
from wayfare.learning.argoverse.sequence import FUTURE_STEPS
from wayfare.learning.models.lanegcn_layers import ActorNet, Attention, Dense, LaneConv, MapNet
from wayfare.learning.models.layers import Layers

# Typical deviation from constant velocity at the end of a future: the unit of the head's last layer.
_REACH_M = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Radii:
    """Maximum distance between two nodes that exchange information."""

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
    """The shape of the network; ``lanes`` says whether there is a map."""

    width: int = 128
    modes: int = 6
    lanes: bool = True
    radii: Radii = Radii()

    def build(self) -> nn.Module:
        """The network, from a `SceneBatch` to a `Forecast`."""
        return _Network(self)


class _Network(nn.Module):
    """The four stages; without lanes, only actors exchange information."""

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
        *pairs, pose = batch.near("actor", "actor", self._radii.actor_to_actor_m)
        for layer in self.actor_to_actor:
            actors = layer(actors, actors, pairs, pose)
        forecast: Forecast = self.head(actors, batch.speed)
        return forecast

    def _with_lanes(self, actors: Tensor, batch: SceneBatch) -> Tensor:
        """From actors to lanes, along the lanes, and back to actors."""
        lanes = self.map(batch)
        *pairs, pose = batch.near("lane", "actor", self._radii.actor_to_lane_m)
        for layer in self.actor_to_lane:
            lanes = layer(lanes, actors, pairs, pose)
        for layer in self.lane_to_lane:
            lanes = layer(lanes, batch.relation)
        *pairs, pose = batch.near("actor", "lane", self._radii.lane_to_actor_m)
        for layer in self.lane_to_actor:
            actors = layer(actors, lanes, pairs, pose)
        return actors


class _Head(nn.Module):
    """K futures as deviations from constant velocity, and a score for each, based on its end."""

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
        """(actors, width) and metres per step -> positions and scores."""
        modes = self.of_mode(actors + self.shared(actors)).view(len(actors), self._modes, -1)
        deviation = self.places(torch.relu(self.norm(modes))).view(len(actors), self._modes, FUTURE_STEPS, 2)
        places = futures(deviation, speed)
        end = self.end(ends(places))
        features = torch.cat([actors[:, None].expand_as(end), end], dim=2)
        return Forecast(places, self.judge(features).squeeze(2))


def futures(deviation: Tensor, speed: Tensor) -> Tensor:
    """Deviations (..., actors, K, 30, 2) in a unit that grows with time, and speeds (..., actors) -> positions."""
    ahead = torch.arange(1, FUTURE_STEPS + 1, dtype=speed.dtype, device=speed.device)
    along = ahead * speed[..., None]
    straight = torch.stack([along, torch.zeros_like(along)], dim=-1)
    return straight.unsqueeze(-3) + deviation * (ahead * (_REACH_M / FUTURE_STEPS))[:, None]


def ends(places: Tensor) -> Tensor:
    """(..., 30, 2) -> (..., 2): the detached ends of futures, as input of the score."""
    return places[..., -1, :].detach() / (2 * _REACH_M)
