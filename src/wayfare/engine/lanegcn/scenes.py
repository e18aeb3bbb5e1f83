"""Scenes of many devices as one batch (devices, rows, features), padded to the largest device.

The host knows the number of rows of every scene, so nothing waits for the GPU. A step is a small table of the
positions of scenes; everything else is looked up, for several steps in as many calls as for one. Every device has at
least one padding row. Padding links join padding rows, and no sum or loss includes them, so derivatives by padding are
zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.engine.base import moved
from wayfare.engine.lanegcn.flows import Flow, Sum
from wayfare.engine.lanegcn.tables import Links, SceneTables
from wayfare.learning.argoverse.batch import ACTOR_CHANNELS, RELATIONS
from wayfare.learning.argoverse.sequence import OBSERVED_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How scenes are laid out. It affects only speed.

    Numbers of pairs differ most between devices. Blocks of rows, each with a copy of its device's weights, need little
    padding, and the gradients of the weights are sums of many short products instead of few long ones.
    """

    width: int  # devices per stack
    tile: int  # rows of a device are a multiple of this, so that memory of few sizes is reused
    pair_rows: int = 0  # rows per block of pairs; 0: the pairs of a device are one block
    steps: int = 1  # looked up together


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of nodes: the flows from both ends, and the pose of the giver relative to the receiver."""

    pose: Tensor  # (blocks, pairs, 4)
    from_receiver: Flow
    from_giver: Flow
    to_blocks: Flow | None  # from devices to their blocks; None: one block per device


@dataclass(frozen=True, slots=True)
class Relations:
    """Pieces of lane that receive from others by relation."""

    kinds: int  # number of relations that occur
    features: Tensor  # (devices, links, 4 + RELATIONS): pose, and the relation one-hot
    to_receiver: Flow  # from links to lanes
    between: Flow  # from lanes by relation, (lanes x kinds), to lanes


@dataclass(frozen=True, slots=True)
class Map:
    """The map of a batch with its pairs and relations."""

    features: Tensor  # (devices, lanes, LANE_FEATURES)
    relations: Relations
    actor_to_lane: Pairs
    lane_to_actor: Pairs


@dataclass(frozen=True, slots=True)
class StackedScenes:
    past: Tensor  # (devices, actors, ACTOR_CHANNELS, 20)
    speed: Tensor  # (devices, actors)
    future: Tensor  # (devices, actors, 30, 2)
    future_seen: Tensor  # (devices, actors, 30)
    weight: Tensor  # (devices, actors): 0 for padding
    actor_to_actor: Pairs
    lanes: Map | None


def stacked_scenes(tables: SceneTables, steps: Sequence[Ints], packing: Packing) -> Iterator[StackedScenes]:
    """Yield the stacked scenes of every step on scenes (devices, batch), looked up several steps at a time."""
    for first in range(0, len(steps), packing.steps):
        yield from _looked_up(tables, steps[first : first + packing.steps], packing)


def _looked_up(tables: SceneTables, steps: Sequence[Ints], packing: Packing) -> list[StackedScenes]:
    actors, actor_to_actor, *others = _spaces(tables, steps, packing)
    past, speed = ACTOR_CHANNELS * OBSERVED_STEPS, 1
    found = zip(
        actors.rows(tables.actors.past),
        actors.rows(tables.actors.future),
        actors.rows(tables.actors.future_seen),
        actors.rows(tables.actors.weight),
        _pairs(tables.actor_to_actor, actor_to_actor, actors, actors),
        _maps(tables, actors, others) if others else [None] * len(steps),
        strict=True,
    )
    return [
        StackedScenes(
            past=features[..., :past].unflatten(2, (ACTOR_CHANNELS, OBSERVED_STEPS)),
            speed=features[..., past : past + speed].squeeze(2),
            future=future,
            future_seen=future_seen,
            weight=weight,
            actor_to_actor=pairs,
            lanes=lanes,
        )
        for features, future, future_seen, weight, pairs, lanes in found
    ]


def _maps(tables: SceneTables, actors: _Space, others: Sequence[_Space]) -> list[Map]:
    assert tables.lanes is not None
    assert tables.actor_to_lane is not None
    assert tables.lane_to_actor is not None
    assert tables.relations is not None
    lanes, actor_to_lane, lane_to_actor, relations = others
    found = zip(
        lanes.rows(tables.lanes.features),
        _relations(tables.relations, relations, lanes, tables.kinds),
        _pairs(tables.actor_to_lane, actor_to_lane, lanes, actors),
        _pairs(tables.lane_to_actor, lane_to_actor, actors, lanes),
        strict=True,
    )
    return [Map(*parts) for parts in found]


def _spaces(tables: SceneTables, steps: Sequence[Ints], packing: Packing) -> list[_Space]:
    """The positions of the rows of every table, copied to the compute device in one transfer."""
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
    layouts = [[_layout(kind.first, scenes, *rows) for scenes in steps] for kind, rows in kinds if kind is not None]
    flat = [part for of_kind in layouts for part in (_numbers(of_kind), *[layout.blocks for layout in of_kind])]
    on_device = moved(torch.from_numpy(np.concatenate(flat)), tables.actors.past.device)
    pieces = iter(on_device.split([len(part) for part in flat]))
    return [_Space(of_kind, next(pieces), [next(pieces) for _ in of_kind]) for of_kind in layouts]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The positions of the rows of one table. Devices have one slot per scene and a last one for padding."""

    rows: int  # of all devices, including padding
    block: int  # rows per block
    total: int  # rows without padding
    zeros: int  # the row of the table that padding refers to
    numbers: NDArray[np.int32]  # (7, slots), as `_Space` names them
    # The device of every block, every block, and the first block of every device; empty if blocks are devices.
    blocks: NDArray[np.int32]


def _layout(first: Ints, scenes: Ints, tile: int, block: int) -> _Layout:
    """Pad all devices to the largest or, given the rows per block, to whole blocks."""
    count = first[scenes + 1] - first[scenes]
    devices, batch = scenes.shape
    sizes = count.sum(axis=1)
    rows = (sizes // (block or tile) + 1) * (block or tile)
    if not block:
        rows[:] = rows.max()
    before = (np.cumsum(rows) - rows)[:, None]
    zeros = int(first[-1])
    numbers = np.empty((7, devices, batch + 1), dtype=np.int32)
    padded, real, base, begin, shift, real_shift, settled = numbers
    padded[:, :-1], padded[:, -1] = count, rows - sizes
    real[:, :-1], real[:, -1] = count, 0
    base[:, :-1] = np.cumsum(count, axis=1) - count + before
    base[:, -1] = before[:, 0] + rows - 1
    begin[:] = (np.cumsum(real) - real.ravel()).reshape(real.shape)
    shift[:, :-1], shift[:, -1] = first[scenes] - base[:, :-1], zeros
    real_shift[:, :-1], real_shift[:, -1] = first[scenes] - begin[:, :-1], 0
    settled[:] = base - begin
    blocks = np.empty(0, dtype=np.int32)
    if block:
        owner = np.repeat(np.arange(devices), rows // block)
        blocks = np.concatenate([owner, np.arange(len(owner)), before[:, 0] // block]).astype(np.int32)
    whole = int(rows.sum())
    return _Layout(whole, block or whole // devices, int(sizes.sum()), zeros, numbers.reshape(7, -1), blocks)


def _numbers(layouts: Sequence[_Layout]) -> NDArray[np.int32]:
    """The numbers of several steps, concatenated. Rows count through all steps, positions within each."""
    numbers = np.concatenate([layout.numbers for layout in layouts], axis=1)
    slots = [layout.numbers.shape[1] for layout in layouts]
    rows, totals = (np.array(sizes) for sizes in zip(*[(layout.rows, layout.total) for layout in layouts], strict=True))
    numbers[4] -= np.repeat(np.cumsum(rows) - rows, slots).astype(np.int32)
    numbers[5:] -= np.repeat(np.cumsum(totals) - totals, slots).astype(np.int32)
    return numbers.ravel()


class _Space:
    """The rows of one table in several steps: the slot of each row, and its row of the table."""

    def __init__(self, layouts: Sequence[_Layout], numbers: Tensor, blocks: Sequence[Tensor]) -> None:
        self._layouts, self._blocks = layouts, blocks
        # Rows per slot with and without padding; its first row, with and without padding; then the offsets from the
        # number of a row to the row of the table, with and without padding, and to its position, without padding.
        self._padded, self._real, self.base, self.begin, self._shift, self._real_shift, self._settled = numbers.view(
            7, -1
        )
        self._rows, self._totals = [layout.rows for layout in layouts], [layout.total for layout in layouts]
        self._found: tuple[Tensor, Tensor] | None = None

    @property
    def found(self) -> tuple[Tensor, Tensor]:
        """(rows,): the slot of every row, and the row of the table."""
        if self._found is None:
            size = sum(self._rows)
            slot = torch.repeat_interleave(self._padded, output_size=size)
            row = self._shift.index_select(0, slot).add_(_ramp(size, slot)).clamp_(max=self._layouts[0].zeros)
            self._found = slot, row
        return self._found

    def without_padding(self) -> tuple[Tensor, Tensor, Tensor]:
        """(totals,): slots, rows of the table, and positions of the rows in the batch."""
        size = sum(self._totals)
        slot = torch.repeat_interleave(self._real, output_size=size)
        ramp = _ramp(size, slot)
        return (slot, self._real_shift.index_select(0, slot).add_(ramp), self._settled.index_select(0, slot).add_(ramp))

    def each(self, rows: Tensor) -> Sequence[Tensor]:
        return torch.split(rows, self._rows)

    def each_without_padding(self, rows: Tensor) -> Sequence[Tensor]:
        return torch.split(rows, self._totals)

    def rows(self, table: Tensor) -> list[Tensor]:
        """(devices or blocks, rows, ...) of each step: the values of a table for every row."""
        found = self.each(table.index_select(0, self.found[1]))
        return [
            rows.view(-1, layout.block, *table.shape[1:]) for rows, layout in zip(found, self._layouts, strict=True)
        ]

    def to_blocks(self) -> list[Flow | None]:
        return [_to_blocks(layout, blocks) for layout, blocks in zip(self._layouts, self._blocks, strict=True)]

    def moved(self, table: Tensor, to: Tensor) -> Sequence[Tensor]:
        """(rows,) of each step: positions within a scene, shifted to the slot."""
        slot, row = self.found
        return self.each(table.index_select(0, row).add_(to.index_select(0, slot)))

    def firsts(self, table: Tensor, links: _Space) -> list[Tensor]:
        """(rows x ways,) of each step: the first link of every row among all links of the batch."""
        slot, row = self.found
        begin = links.begin.index_select(0, slot).view(-1, *[1] * (table.dim() - 1))
        return [firsts.view(-1) for firsts in self.each(table.index_select(0, row).add_(begin))]


def _to_blocks(layout: _Layout, blocks: Tensor) -> Flow | None:
    if not len(blocks):
        return None
    count = layout.rows // layout.block
    owner, every, first = blocks.split([count, count, len(blocks) - 2 * count])
    return Flow(Sum(owner), Sum(every, first))


def _pairs(links: Links, space: _Space, receivers: _Space, givers: _Space) -> list[Pairs]:
    slot, row, place = space.without_padding()
    by_giver = links.by_giver.index_select(0, row).add_(space.base.index_select(0, slot))
    found = zip(
        space.rows(links.pose),
        space.moved(links.receiver, receivers.base),
        space.each_without_padding(place),
        receivers.firsts(links.first_of_receiver, space),
        space.moved(links.giver, givers.base),
        space.each_without_padding(by_giver),
        givers.firsts(links.first_of_giver, space),
        space.to_blocks(),
        strict=True,
    )
    return [
        Pairs(
            pose=pose,
            from_receiver=Flow(Sum(receiver), Sum(to_receiver, first_of_receiver)),
            from_giver=Flow(Sum(giver), Sum(to_giver, first_of_giver)),
            to_blocks=to_blocks,
        )
        for pose, receiver, to_receiver, first_of_receiver, giver, to_giver, first_of_giver, to_blocks in found
    ]


def _relations(links: Links, space: _Space, lanes: _Space, kinds: int) -> list[Relations]:
    slot, row, place = space.without_padding()
    base = lanes.base.index_select(0, slot)
    which = torch.arange(RELATIONS, dtype=torch.int32, device=base.device)
    relation = links.giver.index_select(0, space.found[1]).remainder_(kinds).unsqueeze(1)
    found = zip(
        space.rows(links.pose),
        space.each((relation == which).to(links.pose.dtype)),
        space.moved(links.receiver, lanes.base),
        space.each_without_padding(place),
        space.each_without_padding(links.giver.index_select(0, row).add_(base, alpha=kinds)),
        lanes.firsts(links.first_of_receiver, space),
        space.each_without_padding(links.by_giver.index_select(0, row).add_(base)),
        lanes.firsts(links.first_of_giver, space),
        strict=True,
    )
    return [
        Relations(
            kinds=kinds,
            features=torch.cat([pose, ones.view(*pose.shape[:2], RELATIONS)], dim=2),
            to_receiver=Flow(Sum(link, first_of_receiver), Sum(receiver)),
            between=Flow(Sum(giver, first_of_receiver), Sum(taker, first_of_giver)),
        )
        for pose, ones, receiver, link, giver, first_of_receiver, taker, first_of_giver in found
    ]


def _ramp(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, dtype=like.dtype, device=like.device)
