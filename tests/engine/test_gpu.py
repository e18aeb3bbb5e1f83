"""Engines on a GPU: the updates of the reference, at the promised precision, and the same bits again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.backbones import MODES as TRAINED
from tests.backbones import small_task, tuned
from tests.engine.jobs import MODELS, Job, job, run, starts

from wayfare.engine import Burst, Compute, LocalTraining, Precision, make_engine
from wayfare.engine.choice import choose_engine
from wayfare.engine.cuda_graphs import CudaGraphs, best_recipe
from wayfare.engine.traced.replayed import Replayed
from wayfare.engine.tuned.evaluation import StackedForward
from wayfare.learning.batches import Batches
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.base import Model
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.scenario.model import Trained

pytestmark = pytest.mark.gpu

ENGINES = ["reference", "stacked", "vmap", "cuda_graphs"]
RAGGED = [Burst(device, 1 + device % 3, steps) for device, steps in enumerate([5, 1, 9, 0, 3, 9, 2, 7, 1])]


def on_gpu(model: Model, precision: Precision = "fp32", *, fast: bool = False) -> Job:
    return job(model, compute=Compute.named("cuda", precision, fast=fast))


def errors(engine: str, model: Model, precision: Precision) -> torch.Tensor:
    """How far the update of one step is from that in double precision, for every device."""
    bursts = [Burst(device, 1, 1) for device in range(9)]
    local = on_gpu(model, precision)
    initial = starts(local, torch.float32)
    truth = run("reference", on_gpu(model), initial.double(), bursts) - initial.double()
    update = (run(engine, local, initial, bursts) - initial).double()
    return (update - truth).norm(dim=1) / truth.norm(dim=1)


def test_the_reference_on_a_gpu_is_the_reference_on_a_processor() -> None:
    for model in MODELS:
        bursts = [Burst(device, 1, 1) for device in range(9)]
        here, there = (
            run("reference", local, starts(local, torch.float64), bursts) for local in (job(model), on_gpu(model))
        )
        assert float((there.cpu() - here).norm()) <= 1e-10 * float(here.norm())


@pytest.mark.parametrize("model", [*MODELS, Resnet9()], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_one_strict_step_is_the_step_of_double_precision(engine: str, model: Model) -> None:
    found, plain = errors(engine, model, "fp32"), errors("reference", model, "fp32")
    assert float(found.max()) <= 5e-3
    assert float(found.mean()) <= 2 * float(plain.mean()) + 1e-6


@pytest.mark.parametrize(("precision", "limit"), [("tf32", 0.1), ("bf16", 0.6)])
@pytest.mark.parametrize("engine", ["reference", "stacked", "cuda_graphs"])
def test_fewer_bits_give_about_the_same_step(engine: str, precision: Precision, limit: float) -> None:
    # Both lose bits in the products, so that the plain loop at the same precision is the measure.
    found, plain = errors(engine, Resnet9(), precision), errors("reference", Resnet9(), precision)
    assert float(found.max()) <= limit
    assert float(found.mean()) <= 2 * float(plain.mean())


@pytest.mark.parametrize("model", [*MODELS, Resnet9()], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_ragged_bursts_repeat_bit_by_bit(engine: str, model: Model) -> None:
    local = on_gpu(model, "tf32")
    initial = starts(local, torch.float32)
    first, second = (run(engine, local, initial, RAGGED) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first[3], initial[3])
    assert all(not torch.equal(first[burst.device], initial[burst.device]) for burst in RAGGED if burst.rounds)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_falling_learning_rate_is_the_one_of_a_processor(engine: str) -> None:
    here, there = (
        job(Resnet9(width=4), compute=compute, schedule="cosine") for compute in (None, Compute.named("cuda"))
    )
    initial = starts(here, torch.float32)
    bursts = [Burst(device, 1 + 4 * device, 1) for device in range(here.devices)]
    expected = run("reference", here, initial.double(), bursts)
    found = run(engine, there, initial.to(there.training.compute.device), bursts).cpu().double()
    assert float((found - expected).norm()) <= 5e-3 * float((expected - initial.double()).norm())


@pytest.mark.parametrize("slots", [1, 3])
def test_slots_do_not_disturb_each_other(slots: int) -> None:
    local = on_gpu(Resnet9(width=8))
    initial = starts(local, torch.float32)
    alone, together = initial.clone(), initial.clone()
    runner = CudaGraphs(local.training, replace(best_recipe(local.training), slots=slots))
    runner.run(list(together.unbind()), RAGGED)
    for burst in RAGGED:
        runner.run([alone[burst.device]], [burst])
    assert torch.equal(alone, together)


def test_a_gpu_is_used_with_graphs_unless_told_otherwise() -> None:
    assert isinstance(make_engine("auto", on_gpu(MODELS[1]).training), CudaGraphs)


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("engine", ["reference", "vmap", "stacked", "cuda_graphs"])
def test_the_trained_part_of_a_backbone_moves_as_on_a_processor(
    engine: str, precision: Precision, trained: Trained
) -> None:
    model = tuned(trained)
    batches = Batches([np.arange(device, 30, 4) for device in range(4)], 4, 10, seed=0)
    here, there = (
        LocalTraining(task=small_task(model), batches=batches, learning_rate=0.1, compute=compute)
        for compute in (Compute(), Compute.named("cuda", precision))
    )
    bursts = [Burst(device, 1, rounds) for device, rounds in enumerate([2, 1, 0, 3])]
    initial = torch.stack([model.initial(np.random.default_rng(device)) for device in range(4)])
    expected, found, again = initial.clone(), initial.cuda(), initial.cuda()
    make_engine("reference", here).run(list(expected.unbind()), bursts)
    for models in (found, again):
        make_engine(engine, there).run(list(models.unbind()), bursts)
    assert torch.equal(found, again)
    error = float((found.cpu() - expected).norm() / (expected - initial).norm())
    assert error <= (1e-3 if precision == "fp32" else 0.1)


@pytest.mark.parametrize("trained", TRAINED)
def test_a_gpu_stacks_the_trained_part_of_a_backbone(trained: Trained) -> None:
    batches = Batches([np.arange(device, 30, 4) for device in range(4)], 4, 10, seed=0)
    training = LocalTraining(
        task=small_task(tuned(trained)), batches=batches, learning_rate=0.1, compute=Compute.named("cuda", "bf16")
    )
    chosen = choose_engine("auto", training)
    assert isinstance(chosen.engine, Replayed)
    assert (chosen.name, chosen.reason) == ("stacked", None)


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-4), ("tf32", 2e-2), ("bf16", 0.2)])
@pytest.mark.parametrize("trained", TRAINED)
def test_a_gpu_evaluates_a_backbone_by_its_stack(trained: Trained, precision: Precision, limit: float) -> None:
    model, compute = tuned(trained), Compute.named("cuda", precision)
    task = small_task(model).to(compute.device)
    training = LocalTraining(
        task=task, batches=Batches([np.arange(30)], 4, 10, seed=0), learning_rate=0.1, compute=compute
    )
    engine = make_engine("auto", training)
    assert isinstance(engine, Replayed)
    vector = model.initial(np.random.default_rng(0)).cuda()
    with Compute.named("cuda").numerics():
        expected = Evaluator(task)(vector)
    with compute.numerics():
        module = engine.evaluated()
        found = Evaluator(task, module=module)(vector)
    assert isinstance(module, StackedForward)
    assert found.loss == pytest.approx(expected.loss, rel=limit)


@pytest.mark.parametrize("engine", ["cuda_graphs", "stacked"])
def test_a_graph_resizes_images(engine: str) -> None:
    model = tuned("everything")
    task = replace(
        small_task(model),
        train_stored=torch.randint(0, 256, (30, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator()),
        prepare=partial(model.backbone.prepare, pixels=40),
    )
    batches = Batches([np.arange(30)], 4, 10, seed=0)
    models = {}
    for device, way in (("cpu", "reference"), ("cuda", engine)):
        training = LocalTraining(task=task, batches=batches, learning_rate=0.1, compute=Compute.named(device))
        vector = model.initial(np.random.default_rng(0)).to(device)
        make_engine(way, training).run([vector], [Burst(0, 1, 2)])
        models[device] = vector.cpu()
    torch.testing.assert_close(models["cuda"], models["cpu"], rtol=1e-2, atol=1e-3)
