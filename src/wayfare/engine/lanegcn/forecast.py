"""LaneGCN on stacks: every layer of many devices in one call, on tensors (devices, rows, features).

The layers are those of `learning.models.lanegcn`, with the same names of tensors. Products are batched. Normalisation
is within a row, and its weights, which differ between devices, are applied after it. All weights are transposed
(`products.turned`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wayfare.engine.lanegcn.flows import Flow, met, spread
from wayfare.engine.lanegcn.products import convolution, product
from wayfare.engine.lanegcn.row_norm import normalised
from wayfare.engine.lanegcn.scenes import Map, Pairs, Relations, StackedScenes
from wayfare.learning.argoverse.sequence import FUTURE_STEPS
from wayfare.learning.models.lanegcn import Forecast, LaneGcn, ends, futures

# Blocks of ActorNet by the stride of their first convolution.
_STRIDES = (1, 2, 2)
_MAP_LAYERS, _LANE_LAYERS, _ATTENTION_LAYERS = 4, 4, 2


def stacked_forecast(weights: Mapping[str, Tensor], shape: LaneGcn, scenes: StackedScenes) -> Forecast:
    """Futures (devices, actors, K, 30, 2) and scores (devices, actors, K) of networks with stacked tensors."""
    network = _Part(weights)
    actors = _tracks(network.part("actors"), scenes.past)
    if scenes.lanes is not None:
        actors = _with_lanes(network, actors, scenes.lanes)
    for layer in range(_ATTENTION_LAYERS):
        actors = _attention(network.part(f"actor_to_actor.{layer}"), actors, actors, scenes.actor_to_actor)
    return _head(network.part("head"), actors, scenes.speed, shape.modes)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the networks, by the name of its module."""

    weights: Mapping[str, Tensor]
    name: str = ""

    def part(self, name: str) -> _Part:
        return _Part(self.weights, f"{self.name}{name}.")

    def spread_by(self, flow: Flow | None, *parts: str) -> _Part:
        """Some of its parts, for rows in blocks of devices."""
        if flow is None:
            return self
        names = [name for name in self.weights if name.startswith(tuple(f"{self.name}{part}." for part in parts))]
        stacks = spread(flow, [self.weights[name] for name in names])
        return _Part(dict(zip(names, stacks, strict=True)), self.name)

    def has(self, name: str) -> bool:
        return f"{self.name}{name}.weight" in self.weights

    def weight(self, name: str) -> Tensor:
        return self.weights[f"{self.name}{name}.weight"]

    def bias(self, name: str) -> Tensor | None:
        return self.weights.get(f"{self.name}{name}.bias")

    def linear(self, name: str, rows: Tensor, onto: Tensor | None = None) -> Tensor:
        """(devices, rows, inputs) -> (devices, rows, outputs), added to ``onto``, which is overwritten."""
        return product(rows, self.weight(name), self.bias(name), onto)

    def norm(self, name: str, rows: Tensor, added: Tensor | None = None, *, rectified: bool = True) -> Tensor:
        """Norm over the features of a row, or over time and features of a track; optionally a sum and ReLU."""
        bias = self.bias(name)
        assert bias is not None
        return normalised(rows, self.weight(name), bias, added, rectified=rectified)

    def dense(self, name: str, rows: Tensor) -> Tensor:
        inner = self.part(name)
        return inner.norm("1", inner.linear("0", rows))

    def convolution(self, name: str, tracks: Tensor, stride: int = 1) -> Tensor:
        """(devices, actors, time, inputs) -> (devices, actors, time / stride, outputs)."""
        return convolution(tracks, self.weight(name), stride)


def _tracks(part: _Part, past: Tensor) -> Tensor:
    """ActorNet: (devices, actors, channels, 20) -> (devices, actors, width)."""
    plain = part.linear("plain", past.flatten(2))
    tracks, levels = past.transpose(2, 3), []
    for stage, stride in enumerate(_STRIDES):
        tracks = _residual(part.part(f"stages.{stage}.0"), tracks, stride)
        tracks = _residual(part.part(f"stages.{stage}.1"), tracks)
        levels.append(tracks)
    joined = None
    for place in reversed(range(len(levels))):
        lateral = part.part(f"lateral.{place}")
        level = lateral.convolution("0", levels[place])
        joined = lateral.norm("1", level, None if joined is None else _twice(joined), rectified=False)
    assert joined is not None
    return _residual(part.part("output"), joined)[:, :, -1] + plain


def _twice(tracks: Tensor) -> Tensor:
    return tracks.unsqueeze(3).expand(-1, -1, -1, 2, -1).flatten(2, 3)


def _residual(part: _Part, tracks: Tensor, stride: int = 1) -> Tensor:
    """A residual block: two convolutions over time with norms, and a shortcut."""
    inner = part.norm("body.1", part.convolution("body.0", tracks, stride))
    inner = part.convolution("body.3", inner)
    if part.has("past.0"):
        tracks = part.norm("past.1", part.convolution("past.0", tracks, stride), rectified=False)
    return part.norm("body.4", inner, tracks)


def _with_lanes(network: _Part, actors: Tensor, lanes: Map) -> Tensor:
    """MapNet, actors to lanes, along the lanes, and back to the actors."""
    nodes = _map(network.part("map"), lanes)
    for layer in range(_ATTENTION_LAYERS):
        nodes = _attention(network.part(f"actor_to_lane.{layer}"), nodes, actors, lanes.actor_to_lane)
    for layer in range(_LANE_LAYERS):
        nodes = _lane_convolution(network.part(f"lane_to_lane.{layer}"), nodes, lanes.relations)
    for layer in range(_ATTENTION_LAYERS):
        actors = _attention(network.part(f"lane_to_actor.{layer}"), actors, nodes, lanes.lane_to_actor)
    return actors


def _map(part: _Part, lanes: Map) -> Tensor:
    """MapNet: (devices, lanes, width). One product handles pose and relation of a link."""
    bias = part.bias("kind")
    assert bias is not None
    weight = torch.cat([part.weight("pose"), part.weight("kind")], dim=1)
    shapes = torch.relu(product(lanes.relations.features, weight, bias))
    own = part.linear("own", lanes.features)
    nodes = part.norm("norm", own + lanes.relations.to_receiver(shapes, len(own)))
    for layer in range(_MAP_LAYERS):
        nodes = _lane_convolution(part.part(f"layers.{layer}"), nodes, lanes.relations)
    return nodes


def _lane_convolution(part: _Part, nodes: Tensor, relations: Relations) -> Tensor:
    """y_i = W x_i + sum over relations r and givers j of W_r x_j, then a residual block.

    The product with the W_r is most of the arithmetic of the network.
    """
    width = nodes.shape[2]
    given = product(nodes, part.weight("related")[:, :, : relations.kinds * width]).view(-1, width)
    mixed = part.linear("own", nodes, relations.between(given, len(nodes)))
    return part.norm("output.1", part.linear("output.0", part.norm("norm", mixed)), nodes)


def _attention(part: _Part, nodes: Tensor, others: Tensor, pairs: Pairs) -> Tensor:
    """y_i = W x_i + sum_j W_2 phi(W_1 [x_i, pose of j seen from i, x_j])."""
    of_pairs = part.spread_by(pairs.to_blocks, "pose", "from_pose", "norm")
    pose = of_pairs.part("pose")
    seen = pose.dense("2", torch.relu(pose.linear("0", pairs.pose)))
    asked = part.linear("from_query", part.dense("query", nodes))
    offered = part.linear("from_giver", others)
    joint = met(pairs.from_receiver, asked, pairs.from_giver, offered, len(seen))
    taken = of_pairs.norm("norm", of_pairs.linear("from_pose", seen, joint))
    summed = pairs.from_receiver.reverse(taken, len(nodes))
    mixed = part.linear("given", summed, part.linear("own", nodes))
    return part.norm("output.1", part.linear("output.0", part.norm("mixed", mixed)), nodes)


def _head(part: _Part, actors: Tensor, speed: Tensor, modes: int) -> Forecast:
    """K futures as deviations from constant velocity, and a score for each from its end point."""
    devices, rows, width = actors.shape
    of_mode = part.linear("of_mode", actors + part.dense("shared", actors)).view(devices, rows * modes, width)
    deviation = part.linear("places", part.norm("norm", of_mode))
    places = futures(deviation.view(devices, rows, modes, FUTURE_STEPS, 2), speed)
    end = part.part("end")
    judged = end.dense("2", torch.relu(end.linear("0", ends(places).flatten(1, 2))))
    again = actors.unsqueeze(2).expand(-1, -1, modes, -1).reshape(devices, rows * modes, width)
    judge = part.part("judge")
    scores = judge.linear("1", judge.dense("0", torch.cat([again, judged], dim=2)))
    return Forecast(places, scores.view(devices, rows, modes))
