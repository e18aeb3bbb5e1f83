"""LaneGCN stacked: the updates of the reference for scenes of every kind, and the same bits again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.jobs import Job, forecasting_of, job, lane_job, lane_starts, run
from tests.engine.rounded import ProductsInTf32

from wayfare.engine import Burst, Compute, make_engine
from wayfare.engine.lanegcn.engine import StackedLaneGcn
from wayfare.engine.lanegcn.scenes import Packing
from wayfare.engine.reference import Reference
from wayfare.errors import ScenarioError
from wayfare.learning.argoverse.scenes import SceneSettings
from wayfare.learning.argoverse.synthetic import synthetic_scenes
from wayfare.learning.models.lanegcn import LaneGcn, Radii
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks.argoverse import Forecasting, forecasting
from wayfare.scenario.model import Learning

SMALL = LaneGcn(width=16, modes=3)
RAGGED = [Burst(device, 1 + device, steps) for device, steps in enumerate([2, 1, 3, 0, 2])]
EACH = [Burst(device, 1, 1) for device in range(5)]
ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


WIDE = Packing(width=4, tile=8)
BLOCKS = Packing(width=4, tile=64, pair_rows=16, steps=2)


def stacked(local: Job, initial: torch.Tensor, bursts: Sequence[Burst], packing: Packing = WIDE) -> torch.Tensor:
    """The models after some bursts."""
    models = initial.clone()
    StackedLaneGcn(local.training, packing).run(list(models.unbind()), bursts)
    return models


def agree(local: Job, bursts: Sequence[Burst], packing: Packing = WIDE) -> None:
    """The stack gives the updates of the reference in double precision."""
    initial = lane_starts(local, torch.float64)[[burst.device for burst in bursts]]
    expected, found = run("reference", local, initial, bursts), stacked(local, initial, bursts, packing)
    for place, burst in enumerate(bursts):
        update = (expected - initial)[place]
        assert float((found - expected)[place].norm()) <= 1e-10 * float(update.norm())
        assert (burst.rounds == 0) == bool(torch.equal(found[place], initial[place]))


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("lanes", [True, False])
def test_a_stack_gives_the_updates_of_the_reference(lanes: bool, augment: bool, device: str) -> None:
    local = lane_job(replace(SMALL, lanes=lanes), augment=augment, compute=Compute.named(device))
    agree(local, RAGGED)


def test_one_device_at_a_time_is_a_stack_too() -> None:
    agree(lane_job(SMALL, augment=True), [Burst(2, 3, 2), Burst(0, 1, 1)], Packing(width=1, tile=8))
    agree(lane_job(SMALL), [Burst(1, 4, 1)])


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_pairs_may_lie_in_blocks(device: str) -> None:
    agree(lane_job(SMALL, augment=True, compute=Compute.named(device)), RAGGED, BLOCKS)
    radii = Radii(actor_to_lane_m=1e-6, lane_to_actor_m=1e-6, actor_to_actor_m=2.0)
    agree(lane_job(replace(SMALL, radii=radii), compute=Compute.named(device)), EACH, BLOCKS)


def without_relations() -> Forecasting:
    prepared = synthetic_scenes(24, 4, SceneSettings())
    return forecasting(
        replace(prepared, lanes=replace(prepared.lanes, follows=np.empty((0, 2), dtype=np.int64))), SMALL
    )


def with_sides() -> Forecasting:
    prepared = synthetic_scenes(24, 4, SceneSettings())
    follows = prepared.lanes.follows
    return forecasting(replace(prepared, lanes=replace(prepared.lanes, left=follows[::3], right=follows[1::3])), SMALL)


def test_scenes_without_pairs_or_relations_are_scenes() -> None:
    agree(lane_job(SMALL, task=without_relations()), EACH)
    for near_m in (1e-6, 2.0):
        radii = Radii(actor_to_lane_m=near_m, lane_to_actor_m=near_m, actor_to_actor_m=near_m)
        agree(lane_job(replace(SMALL, radii=radii)), EACH)


def test_left_and_right_are_exchanged_in_a_mirrored_scene() -> None:
    agree(lane_job(SMALL, task=with_sides(), augment=True), EACH)


def test_a_proximal_term_pulls_towards_what_was_received() -> None:
    local = lane_job(SMALL, learning=Learning(local_loss="prox", prox_strength=0.5))
    received = lane_starts(local, torch.float64).flip(0)
    bursts = [replace(burst, received=received[burst.device]) for burst in RAGGED]
    agree(local, bursts)
    initial = lane_starts(local, torch.float64)
    assert not torch.equal(stacked(local, initial, bursts), stacked(lane_job(SMALL), initial, bursts))


def test_the_learning_rate_falls_by_the_round_of_each_device() -> None:
    agree(lane_job(SMALL, schedule="linear", rounds=12), RAGGED)


def errors(found: torch.Tensor, local: Job, initial: torch.Tensor) -> torch.Tensor:
    """How far the update of one step is from that in double precision, for every device."""
    strict = Job(replace(local.training, compute=Compute(device=local.training.compute.device)), local.devices)
    truth = run("reference", strict, initial.double(), EACH) - initial.double()
    return ((found - initial).double() - truth).norm(dim=1) / truth.norm(dim=1)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_one_step_in_single_precision_is_as_good_as_the_plain_loop(device: str) -> None:
    local = lane_job(SMALL, augment=True, compute=Compute.named(device))
    initial = lane_starts(local, torch.float32)
    found = errors(stacked(local, initial, EACH), local, initial)
    plain = errors(run("reference", local, initial, EACH), local, initial)
    assert float(found.max()) <= 5e-3
    assert float(found.mean()) <= 2 * float(plain.mean()) + 1e-7


def test_products_in_bfloat16_give_about_the_same_step() -> None:
    local = lane_job(SMALL)
    initial = lane_starts(local, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        found, plain = stacked(local, initial, EACH), run("reference", local, initial, EACH)
    assert float(errors(found, local, initial).max()) <= 0.6
    assert float(errors(found, local, initial).mean()) <= 2 * float(errors(plain, local, initial).mean())


def test_products_in_tf32_give_about_the_same_step() -> None:
    local = lane_job(SMALL)
    initial = lane_starts(local, torch.float32)
    with ProductsInTf32():
        found, plain = stacked(local, initial, EACH), run("reference", local, initial, EACH)
    assert not torch.equal(plain, run("reference", local, initial, EACH))
    assert float(errors(found, local, initial).max()) <= 0.1
    assert float(errors(found, local, initial).mean()) <= 2 * float(errors(plain, local, initial).mean())


@pytest.mark.gpu
def test_tf32_costs_what_rounded_factors_cost() -> None:
    # The plain loop on the same GPU would be no measure: its small products are done in full precision.
    local, strict = (lane_job(LaneGcn(width=64), compute=Compute.named("cuda", kind)) for kind in ("tf32", "fp32"))
    initial = lane_starts(local, torch.float32)
    found = errors(stacked(local, initial, EACH), local, initial)
    with ProductsInTf32():
        rounded = run("reference", strict, initial, EACH)
    assert float(found.max()) <= 0.1
    assert float(found.mean()) <= 2 * float(errors(rounded, local, initial).mean())


@pytest.mark.gpu
def test_bfloat16_costs_what_it_costs_the_plain_loop() -> None:
    local = lane_job(LaneGcn(width=64), compute=Compute.named("cuda", "bf16"))
    initial = lane_starts(local, torch.float32)
    found = errors(stacked(local, initial, EACH), local, initial)
    plain = errors(run("reference", local, initial, EACH), local, initial)
    assert float(found.max()) <= 0.6
    assert float(found.mean()) <= 2 * float(plain.mean())


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_a_run_repeats_bit_by_bit(device: str) -> None:
    local = lane_job(SMALL, augment=True, compute=Compute.named(device))
    initial = lane_starts(local, torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (stacked(local, initial, RAGGED, BLOCKS) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_step_never_waits_for_the_gpu() -> None:
    local = lane_job(SMALL, augment=True, compute=Compute.named("cuda"), schedule="cosine")
    runner, models = StackedLaneGcn(local.training), list(lane_starts(local, torch.float32).unbind())
    runner.run(models, EACH)
    try:
        torch.cuda.set_sync_debug_mode("error")
        runner.run(models, RAGGED)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_groups_do_not_depend_on_each_other() -> None:
    local = lane_job(SMALL)
    initial = lane_starts(local, torch.float32)
    together, apart = (stacked(local, initial, RAGGED, Packing(width=width, tile=8)) for width in (5, 2))
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-5)


def test_an_engine_is_chosen_for_lanegcn_and_refuses_others() -> None:
    for name in ("auto", "stacked"):
        assert isinstance(make_engine(name, lane_job(SMALL).training), StackedLaneGcn)
    assert isinstance(make_engine("reference", lane_job(SMALL).training), Reference)
    assert StackedLaneGcn.fits(forecasting_of(SMALL))
    with pytest.raises(ScenarioError, match="needs LaneGCN; random has another network"):
        StackedLaneGcn(job(Mlp((6, 3))).training)


@pytest.mark.gpu
def test_a_gpu_stacks_lanegcn_unless_told_otherwise() -> None:
    local = lane_job(SMALL, compute=Compute.named("cuda"))
    assert isinstance(make_engine("auto", local.training), StackedLaneGcn)
