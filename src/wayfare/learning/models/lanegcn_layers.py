"""The layers of LaneGCN (Liang et al., ECCV 2020, Section 3), for graphs of any size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wayfare.learning.argoverse.batch import LANE_FEATURES, RELATIONS, SceneBatch, relative_pose
from wayfare.learning.argoverse.sequence import OBSERVED_STEPS
from wayfare.learning.models.layers import LastNorm


class Dense(nn.Sequential):
    """Linear layer, normalisation over the features of a node (a group norm of one group), and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, outputs, bias=False), nn.LayerNorm(outputs), nn.ReLU())


class ResidualConv(nn.Module):
    """Two convolutions over time with group norms, and a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(1, outputs),
            nn.ReLU(),
            nn.Conv1d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(1, outputs),
        )
        self.past = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(nn.Conv1d(inputs, outputs, 1, stride=stride, bias=False), nn.GroupNorm(1, outputs))
        )

    def forward(self, signal: Tensor) -> Tensor:
        """(n, inputs, time) -> (n, outputs, time / stride)."""
        return torch.relu(self.body(signal) + self.past(signal))


class ActorNet(nn.Module):
    """A track to a vector: residual convolutions at three time scales, joined by a feature pyramid."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        sizes = (width // 4, width // 2, width)
        self.stages = nn.ModuleList(
            nn.Sequential(ResidualConv(inputs, outputs, stride), ResidualConv(outputs, outputs))
            for inputs, outputs, stride in zip((channels, *sizes), sizes, (1, 2, 2), strict=False)
        )
        self.lateral = nn.ModuleList(
            nn.Sequential(nn.Conv1d(size, width, 3, padding=1, bias=False), nn.GroupNorm(1, width)) for size in sizes
        )
        self.output = ResidualConv(width, width)
        # Norms discard the speed of a track; this skip connection keeps it, which gains 0.1 m of ADE on real tracks.
        self.plain = nn.Linear(channels * OBSERVED_STEPS, width)

    def forward(self, past: Tensor) -> Tensor:
        """(actors, channels, 20) -> (actors, width): the finest level at the last step, plus a map of the track."""
        plain = self.plain(past.flatten(1))
        levels = []
        for stage in self.stages:
            past = stage(past)
            levels.append(past)
        joined = self.lateral[-1](levels[-1])
        for level, lateral in zip(levels[-2::-1], list(self.lateral)[-2::-1], strict=True):
            joined = joined.repeat_interleave(2, dim=2) + lateral(level)
        return torch.as_tensor(self.output(joined)[:, :, -1] + plain)


class LaneConv(nn.Module):
    """One lane convolution: y_i = W x_i + sum over relations r and givers j of W_r x_j, then a residual block.

    All W_r are applied in one product; a relation then picks its row.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width, bias=False)
        self.related = nn.Linear(width, RELATIONS * width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Sequential(nn.Linear(width, width, bias=False), LastNorm(width))

    def forward(self, lanes: Tensor, relation: Tensor) -> Tensor:
        """(lanes, width) -> (lanes, width)."""
        receiver, giver, kind = relation
        given = self.related(lanes).view(-1, lanes.shape[1]).index_select(0, giver * RELATIONS + kind)
        mixed = self.own(lanes).index_add(0, receiver, given)
        return torch.relu(self.output(torch.relu(self.norm(mixed))) + lanes)


class MapNet(nn.Module):
    """The lane graph to a vector per segment: its features, those of related segments, and lane convolutions."""

    def __init__(self, width: int, layers: int = 4) -> None:
        super().__init__()
        self.own = nn.Linear(LANE_FEATURES, width)
        self.pose = nn.Linear(4, width, bias=False)
        self.kind = nn.Linear(RELATIONS, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(LaneConv(width) for _ in range(layers))

    def forward(self, batch: SceneBatch) -> Tensor:
        """(lanes, width)."""
        receiver, giver, kind = batch.relation
        centre, direction = batch.lane_centre, batch.lane_direction
        pose = relative_pose(centre[receiver], direction[receiver], centre[giver], direction[giver])
        of_kind = (self.kind.weight.T + self.kind.bias).index_select(0, kind)
        own: Tensor = self.own(batch.lane_features)
        # With bfloat16 products, the two terms of the sum would have different types.
        shapes = torch.relu(self.pose(pose) + of_kind).to(own.dtype)
        lanes: Tensor = torch.relu(self.norm(own.index_add(0, receiver, shapes)))
        for layer in self.layers:
            lanes = layer(lanes, batch.relation)
        return lanes


class Attention(nn.Module):
    """Attention to nearby nodes: y_i = W x_i + sum_j W_2 phi(W_1 [x_i, pose of j in the frame of i, x_j])."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pose = nn.Sequential(nn.Linear(4, width), nn.ReLU(), Dense(width, width))
        self.query = Dense(width, width)
        # W_1 in three parts, so that most products are per node and not per pair.
        self.from_query = nn.Linear(width, width, bias=False)
        self.from_pose = nn.Linear(width, width, bias=False)
        self.from_giver = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.given = nn.Linear(width, width, bias=False)
        self.own = nn.Linear(width, width, bias=False)
        self.mixed = nn.LayerNorm(width)
        self.output = nn.Sequential(nn.Linear(width, width, bias=False), LastNorm(width))

    def forward(self, nodes: Tensor, others: Tensor, pairs: tuple[Tensor, Tensor], pose: Tensor) -> Tensor:
        """(nodes, width) -> (nodes, width); ``pairs`` are receivers and givers, ``pose`` (pairs, 4)."""
        receiver, giver = pairs
        joint = (
            self.from_query(self.query(nodes)).index_select(0, receiver)
            + self.from_giver(others).index_select(0, giver)
            + self.from_pose(self.pose(pose))
        )
        summed = torch.zeros_like(nodes).index_add(0, receiver, torch.relu(self.norm(joint)))
        mixed = self.own(nodes) + self.given(summed)
        return torch.relu(self.output(torch.relu(self.mixed(mixed))) + nodes)
