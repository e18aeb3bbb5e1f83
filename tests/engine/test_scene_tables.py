"""Tables that are computed once per scene equal those of a batch of scenes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from tests.engine.jobs import forecasting_of
from torch import Tensor

from wayfare.engine.lanegcn.flows import Flow, Sum
from wayfare.engine.lanegcn.scenes import Packing, Pairs, StackedScenes, stacked_scenes
from wayfare.engine.lanegcn.tables import SceneTables, scene_tables
from wayfare.learning.argoverse.batch import SceneBatch, pairs_within, relative_pose
from wayfare.learning.argoverse.lanes import LaneGraph
from wayfare.learning.argoverse.scenes import SceneSettings
from wayfare.learning.argoverse.synthetic import synthetic_scenes
from wayfare.learning.models.lanegcn import LaneGcn, Radii
from wayfare.learning.tasks.argoverse import Forecasting, forecasting

MODEL = LaneGcn(width=16, modes=3)
SCENES = np.array([[3, 5, 3], [8, 0, 20]])
PACKING = Packing(width=2, tile=16)
MIRRORED = np.array([[0, 1, 1], [1, 0, 0]])


def with_sides(task: Forecasting) -> Forecasting:
    """Scenes whose lanes also have neighbours on the left and on the right."""
    prepared = synthetic_scenes(24, 4, SceneSettings())
    follows = prepared.lanes.follows
    graph: LaneGraph = replace(prepared.lanes, left=follows[::3], right=follows[1::3])
    return forecasting(replace(prepared, lanes=graph), task.model)


@pytest.fixture(scope="module", params=["roads", "sides"])
def task(request: pytest.FixtureRequest) -> Forecasting:
    made = forecasting_of(MODEL)
    return with_sides(made) if request.param == "sides" else made


@pytest.fixture(scope="module")
def tables(task: Forecasting) -> SceneTables:
    return scene_tables(task.train, task.model, torch.float64, mirrored=True)


@pytest.fixture(scope="module")
def stacked(tables: SceneTables) -> StackedScenes:
    return next(stacked_scenes(tables, [SCENES + tables.scenes * MIRRORED], PACKING))


@pytest.fixture(scope="module")
def batches(task: Forecasting) -> list[SceneBatch]:
    """What each device takes its step on."""
    return [
        task.train.batch(torch.from_numpy(scenes), torch.from_numpy(mirrored)).cast(torch.float64)
        for scenes, mirrored in zip(SCENES, MIRRORED, strict=True)
    ]


def expected_pairs(batch: SceneBatch, receivers: str, givers: str, radius_m: float) -> tuple[Tensor, Tensor, Tensor]:
    centre, other_centre = getattr(batch, f"{receivers}_centre"), getattr(batch, f"{givers}_centre")
    direction, other_direction = getattr(batch, f"{receivers}_direction"), getattr(batch, f"{givers}_direction")
    scene, first = getattr(batch, f"{receivers}_scene"), getattr(batch, f"first_{givers}")
    receiver, giver = pairs_within(centre, scene, other_centre, first, radius_m)
    pose = relative_pose(centre[receiver], direction[receiver], other_centre[giver], other_direction[giver])
    return receiver, giver, pose


def test_pairs_are_those_within_the_radii(stacked: StackedScenes, batches: list[SceneBatch]) -> None:
    assert stacked.lanes is not None
    actors, lanes = stacked.past.shape[1], stacked.lanes.features.shape[1]
    kinds: list[tuple[Pairs, str, str, float]] = [
        (stacked.actor_to_actor, "actor", "actor", Radii().actor_to_actor_m),
        (stacked.lanes.actor_to_lane, "lane", "actor", Radii().actor_to_lane_m),
        (stacked.lanes.lane_to_actor, "actor", "lane", Radii().lane_to_actor_m),
    ]
    for pairs, receivers, givers, radius_m in kinds:
        rows = pairs.pose.shape[1]
        sizes = {"actor": actors, "lane": lanes}
        for device, batch in enumerate(batches):
            receiver, giver, pose = expected_pairs(batch, receivers, givers, radius_m)
            mine = slice(device * rows, device * rows + len(receiver))
            assert len(receiver) < rows
            assert torch.equal(pairs.from_receiver.onward.givers[mine] - device * sizes[receivers], receiver.int())
            assert torch.equal(pairs.from_giver.onward.givers[mine] - device * sizes[givers], giver.int())
            torch.testing.assert_close(pairs.pose[device, : len(pose)], pose)
            assert not pairs.pose[device, len(pose) :].any()


def transposed(flow: Flow, size: int, kept: Tensor) -> None:
    """The way back of a flow is its transpose, but for rows that are padding."""
    ones = torch.eye(size, dtype=torch.float64)
    onward = flow.onward.of(ones)
    back = flow.back.of(torch.eye(len(onward), dtype=torch.float64))
    assert torch.equal(onward.T[:, kept], back[:, kept])


def test_every_flow_is_held_with_its_transpose(stacked: StackedScenes, batches: list[SceneBatch]) -> None:
    pairs = stacked.actor_to_actor
    devices, rows = pairs.pose.shape[:2]
    counts = [len(expected_pairs(batch, "actor", "actor", Radii().actor_to_actor_m)[0]) for batch in batches]
    real = torch.cat([torch.arange(rows) < count for count in counts])
    for flow in (pairs.from_receiver, pairs.from_giver):
        transposed(flow, devices * stacked.past.shape[1], real)


def spelled_out(one: Sum) -> tuple[Tensor, Tensor]:
    """Receiver and giver of every link of a sum."""
    assert one.first is not None
    ends = torch.cat([one.first[1:], torch.tensor([len(one.givers)])])
    return torch.repeat_interleave(ends - one.first), one.givers.long()


def test_relations_are_those_of_the_batch(stacked: StackedScenes, batches: list[SceneBatch]) -> None:
    assert stacked.lanes is not None
    relations, lanes = stacked.lanes.relations, stacked.lanes.features.shape[1]
    expected = []
    for device, batch in enumerate(batches):
        receiver, giver, kind = batch.relation
        rows = (giver + device * lanes) * relations.kinds + kind
        expected.append(torch.stack([receiver + device * lanes, rows]))
        assert torch.equal(stacked.lanes.features[device, : len(batch.lane_features)], batch.lane_features)
        features = relations.features[device]
        assert torch.equal(features[: len(kind), 4:].argmax(dim=1), kind)
        assert not features[len(kind) :, :4].any()
    links = torch.cat(expected, dim=1)
    assert torch.equal(torch.stack(spelled_out(relations.between.onward)), links)
    giver, receiver = spelled_out(relations.between.back)
    assert torch.equal(torch.stack([receiver, giver]), links[:, torch.argsort(links[1], stable=True)])
    receiver, link = spelled_out(relations.to_receiver.onward)
    assert torch.equal(receiver, links[0])
    assert torch.equal(relations.to_receiver.back.givers[link].long(), links[0])


def test_road_users_are_those_of_the_batch(stacked: StackedScenes, batches: list[SceneBatch]) -> None:
    for device, batch in enumerate(batches):
        count = len(batch.past)
        assert torch.equal(stacked.past[device, :count], batch.past)
        assert torch.equal(stacked.speed[device, :count], batch.speed)
        assert torch.equal(stacked.future[device, :count], batch.future)
        assert torch.equal(stacked.future_seen[device, :count], batch.future_seen)
        assert stacked.weight[device, batch.agents].unique().tolist() == [10.0]
        assert not stacked.weight[device, count:].any()
        assert not stacked.past[device, count:].any()


def tensors(made: object) -> Iterator[Tensor]:
    """All tensors of nested values."""
    if isinstance(made, Tensor):
        yield made
    elif is_dataclass(made):
        for entry in fields(made):
            yield from tensors(getattr(made, entry.name))


@pytest.mark.parametrize("pair_rows", [0, 16])
def test_steps_looked_up_together_are_those_looked_up_one_by_one(tables: SceneTables, pair_rows: int) -> None:
    steps = [SCENES, SCENES[:, ::-1] + tables.scenes * MIRRORED, SCENES[:1], SCENES[1:] + 1]
    apart, together = (
        list(stacked_scenes(tables, steps, replace(PACKING, pair_rows=pair_rows, steps=count))) for count in (1, 3)
    )
    for one, other in zip(apart, together, strict=True):
        found, expected = list(tensors(other)), list(tensors(one))
        assert len(found) > 30
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
