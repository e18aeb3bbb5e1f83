"""Scenes of many devices as one batch: (devices, rows, features), padded to the device that has most.

How many rows every scene takes is known on the host, so nothing waits for the GPU: a step is a small table of where
scenes lie, and everything else is looked up there. Every device has at least one row of padding. A padded link joins
padded rows, no sum includes one, and no loss depends on one, so the derivative by anything in padding is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.engine.base import moved
from wayfare.engine.flows import Flow, Sum
from wayfare.engine.scene_tables import Links, SceneTables
from wayfare.learning.argoverse.batch import ACTOR_CHANNELS, RELATIONS
from wayfare.learning.argoverse.sequence import OBSERVED_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How scenes are laid out; it decides about speed alone.

    Numbers of pairs differ most from device to device. In blocks of some rows, each with a copy of the weights of its
    device, they need little padding, and the gradients of the weights are sums of many short products instead of few
    long ones.
    """

    width: int  # devices in a stack
    tile: int  # rows of a device are a multiple of this, so that memory comes in few sizes and is used again
    pair_rows: int = 0  # of a block of pairs; 0: pairs of a device are one block


@dataclass(frozen=True, slots=True)
class Pairs:
    """Nodes that hear from others: what flows to pairs from either end, and how each giver is seen."""

    pose: Tensor  # (blocks, pairs, 4)
    from_receiver: Flow
    from_giver: Flow
    to_blocks: Flow | None  # from devices to their blocks; None: one is the other


@dataclass(frozen=True, slots=True)
class Relations:
    """Pieces of lane that hear from others by a relation."""

    kinds: int  # how many of the relations occur
    features: Tensor  # (devices, links, 4 + RELATIONS): pose, and a one for the relation
    to_receiver: Flow  # from links to lanes
    between: Flow  # from lanes by relation, (lanes x kinds), to lanes


@dataclass(frozen=True, slots=True)
class Map:
    """The map of a batch, and who hears from whom."""

    features: Tensor  # (devices, lanes, LANE_FEATURES)
    relations: Relations
    actor_to_lane: Pairs
    lane_to_actor: Pairs


@dataclass(frozen=True, slots=True)
class StackedScenes:
    """A batch of scenes for every device."""

    past: Tensor  # (devices, actors, ACTOR_CHANNELS, 20)
    speed: Tensor  # (devices, actors)
    future: Tensor  # (devices, actors, 30, 2)
    future_seen: Tensor  # (devices, actors, 30)
    weight: Tensor  # (devices, actors): 0 for padding
    actor_to_actor: Pairs
    lanes: Map | None


class Plan:
    """Where the scenes of one step lie; what a step is taken on is looked up when it is taken."""

    def __init__(self, tables: SceneTables, spaces: Sequence[_Space]) -> None:
        self._tables, self._spaces = tables, spaces

    def scenes(self) -> StackedScenes:
        """Look everything up."""
        tables, actors, (past, speed) = self._tables, self._spaces[0], (ACTOR_CHANNELS * OBSERVED_STEPS, 1)
        features = actors.rows(tables.actors.past)
        return StackedScenes(
            past=features[..., :past].unflatten(2, (ACTOR_CHANNELS, OBSERVED_STEPS)),
            speed=features[..., past : past + speed].squeeze(2),
            future=actors.rows(tables.actors.future),
            future_seen=actors.rows(tables.actors.future_seen),
            weight=actors.rows(tables.actors.weight),
            actor_to_actor=_pairs(tables.actor_to_actor, self._spaces[1], actors, actors),
            lanes=self._lanes(),
        )

    def _lanes(self) -> Map | None:
        tables = self._tables
        if not (tables.lanes and tables.actor_to_lane and tables.lane_to_actor and tables.relations):
            return None
        actors, _, lanes, actor_to_lane, lane_to_actor, relations = self._spaces
        return Map(
            features=lanes.rows(tables.lanes.features),
            relations=_relations(tables.relations, relations, lanes, tables.kinds),
            actor_to_lane=_pairs(tables.actor_to_lane, actor_to_lane, lanes, actors),
            lane_to_actor=_pairs(tables.lane_to_actor, lane_to_actor, actors, lanes),
        )


def plans(tables: SceneTables, steps: Sequence[Ints], packing: Packing) -> list[Plan]:
    """Plans of steps on scenes (devices, batch); all numbers go to the device that computes in one copy."""
    of_nodes = (packing.tile, 0)
    of_pairs = (packing.tile, packing.pair_rows)
    kinds = (
        (tables.actors, of_nodes),
        (tables.actor_to_actor, of_pairs),
        (tables.lanes, of_nodes),
        (tables.actor_to_lane, of_pairs),
        (tables.lane_to_actor, of_pairs),
        (tables.relations, of_nodes),
    )
    firsts = [(kind.first, *rows) for kind, rows in kinds if kind is not None]
    layouts = [[_layout(first, scenes, tile, block) for first, tile, block in firsts] for scenes in steps]
    flat = [part for step in layouts for layout in step for part in (layout.numbers.ravel(), layout.blocks.ravel())]
    on_device = moved(torch.from_numpy(np.concatenate(flat)), tables.actors.past.device)
    pieces = iter(on_device.split([len(part) for part in flat]))
    return [Plan(tables, [_Space(layout, next(pieces), next(pieces)) for layout in step]) for step in layouts]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the rows of one table come to lie: devices have slots, one for each scene and a last one for padding."""

    rows: int  # of all devices, padding included
    block: int  # rows of a block
    total: int  # rows without padding
    zeros: int  # the row of the table that padding refers to
    numbers: NDArray[np.int32]  # (6, slots), as `_Space` names them
    # The device of every block, every block, and the first block of every device; empty where blocks are devices.
    blocks: NDArray[np.int32]


def _layout(first: Ints, scenes: Ints, tile: int, block: int) -> _Layout:
    """All devices have as many rows as the one that has most; or, given the rows of a block, the blocks they need."""
    count = first[scenes + 1] - first[scenes]
    devices, batch = scenes.shape
    sizes = count.sum(axis=1)
    rows = (sizes // (block or tile) + 1) * (block or tile)
    if not block:
        rows[:] = rows.max()
    before = (np.cumsum(rows) - rows)[:, None]
    zeros = int(first[-1])
    numbers = np.empty((6, devices, batch + 1), dtype=np.int32)
    padded, real, base, begin, shift, real_shift = numbers
    padded[:, :-1], padded[:, -1] = count, rows - sizes
    real[:, :-1], real[:, -1] = count, 0
    base[:, :-1] = np.cumsum(count, axis=1) - count + before
    base[:, -1] = before[:, 0] + rows - 1
    begin[:] = (np.cumsum(real) - real.ravel()).reshape(real.shape)
    shift[:, :-1], shift[:, -1] = first[scenes] - base[:, :-1], zeros
    real_shift[:, :-1], real_shift[:, -1] = first[scenes] - begin[:, :-1], 0
    blocks = np.empty(0, dtype=np.int32)
    if block:
        owner = np.repeat(np.arange(devices), rows // block)
        blocks = np.concatenate([owner, np.arange(len(owner)), before[:, 0] // block]).astype(np.int32)
    whole = int(rows.sum())
    return _Layout(whole, block or whole // devices, int(sizes.sum()), zeros, numbers.reshape(6, -1), blocks)


class _Space:
    """The rows of one table in a batch: a slot for each row, and the row of the table that is meant."""

    def __init__(self, layout: _Layout, numbers: Tensor, blocks: Tensor) -> None:
        self._layout, self._blocks = layout, blocks
        # Rows of every slot with and without padding, its first row, the same among rows without padding, and what to
        # add to the number of a row, with and without padding, for the row of the table.
        self._padded, self._real, self.base, self.begin, self._shift, self._real_shift = numbers.view(6, -1)
        self._found: tuple[Tensor, Tensor] | None = None

    @property
    def found(self) -> tuple[Tensor, Tensor]:
        """(rows,): the slot of every row, and the row of the table."""
        if self._found is None:
            size = self._layout.rows
            slot = torch.repeat_interleave(self._padded, output_size=size)
            row = self._shift.index_select(0, slot).add_(_ramp(size, slot)).clamp_(max=self._layout.zeros)
            self._found = slot, row
        return self._found

    def without_padding(self) -> tuple[Tensor, Tensor, Tensor]:
        """(total,): slots, rows of the table, and where the rows lie in the batch."""
        size = self._layout.total
        slot = torch.repeat_interleave(self._real, output_size=size)
        ramp = _ramp(size, slot)
        return (
            slot,
            self._real_shift.index_select(0, slot).add_(ramp),
            (self.base - self.begin).index_select(0, slot).add_(ramp),
        )

    def rows(self, table: Tensor) -> Tensor:
        """(devices or blocks, rows, ...): what a table holds for every row."""
        return table.index_select(0, self.found[1]).view(-1, self._layout.block, *table.shape[1:])

    def to_blocks(self) -> Flow | None:
        """From devices to blocks, where they are not the same."""
        if not len(self._blocks):
            return None
        count = self._layout.rows // self._layout.block
        owner, every, first = self._blocks.split([count, count, len(self._blocks) - 2 * count])
        return Flow(Sum(owner), Sum(every, first))

    def moved(self, table: Tensor, to: Tensor) -> Tensor:
        """(rows,): places within a scene, moved to where the slot lies."""
        slot, row = self.found
        return table.index_select(0, row).add_(to.index_select(0, slot))

    def firsts(self, table: Tensor, links: _Space) -> Tensor:
        """(rows x ways,): where the links of every row begin among all links of the batch."""
        slot, row = self.found
        return table.index_select(0, row).add_(links.begin.index_select(0, slot).view(-1, *[1] * (table.dim() - 1)))


def _pairs(links: Links, space: _Space, receivers: _Space, givers: _Space) -> Pairs:
    slot, row, place = space.without_padding()
    by_giver = links.by_giver.index_select(0, row).add_(space.base.index_select(0, slot))
    return Pairs(
        pose=space.rows(links.pose),
        from_receiver=Flow(
            Sum(space.moved(links.receiver, receivers.base)),
            Sum(place, receivers.firsts(links.first_of_receiver, space)),
        ),
        from_giver=Flow(
            Sum(space.moved(links.giver, givers.base)),
            Sum(by_giver, givers.firsts(links.first_of_giver, space).view(-1)),
        ),
        to_blocks=space.to_blocks(),
    )


def _relations(links: Links, space: _Space, lanes: _Space, kinds: int) -> Relations:
    slot, row, place = space.without_padding()
    base = lanes.base.index_select(0, slot)
    first_of_receiver = lanes.firsts(links.first_of_receiver, space)
    relation = space.rows(links.giver).remainder_(kinds).unsqueeze(2)
    which = torch.arange(RELATIONS, dtype=torch.int32, device=relation.device)
    pose = space.rows(links.pose)
    return Relations(
        kinds=kinds,
        features=torch.cat([pose, (relation == which).to(pose.dtype)], dim=2),
        to_receiver=Flow(
            Sum(place, first_of_receiver),
            Sum(space.moved(links.receiver, lanes.base)),
        ),
        between=Flow(
            Sum(links.giver.index_select(0, row).add_(base, alpha=kinds), first_of_receiver),
            Sum(
                links.by_giver.index_select(0, row).add_(base),
                lanes.firsts(links.first_of_giver, space).view(-1),
            ),
        ),
    )


def _ramp(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, dtype=like.dtype, device=like.device)
