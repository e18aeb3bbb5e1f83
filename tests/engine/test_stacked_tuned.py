"""Trained parts of a backbone, all devices together: the updates of the reference, for every layer and descent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.backbones import MODES, small_task, tuned
from tests.engine.kernels import WHERE, with_kernels
from torch import Tensor, nn

from wayfare.engine import Burst, Compute, LocalTraining, choice, make_engine
from wayfare.engine.base import Engine
from wayfare.engine.traced.engine import StackedTraced, with_layout_of_weights
from wayfare.engine.traced.probing import NotStackableError
from wayfare.engine.traced.stepping import StackedStep
from wayfare.engine.tuned.evaluation import StackedForward, evaluation_module
from wayfare.engine.tuned.network import tuned_network
from wayfare.engine.vmapped import Vmapped
from wayfare.learning.batches import Batches
from wayfare.learning.descent import Descent
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.local_loss import LocalLoss
from wayfare.learning.models.base import trainable
from wayfare.learning.models.tuned import Tuned
from wayfare.learning.schedule import Schedule
from wayfare.scenario.model import Trained

DEVICES = 4
RAGGED = [2, 1, 0, 3]


class Bottleneck(nn.Module):
    """As in EfficientNet-Lite: expand, filter each channel with a stride and an uneven border, project."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.ZeroPad2d((0, 1, 0, 1))),
            *(nn.Conv2d(8, 8, 3, stride=2, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
            *(nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.ReLU6(), nn.Conv2d(8, 4, 1)),
        )

    def forward(self, images: Tensor) -> Tensor:
        filtered: Tensor = self.layers(images)
        return filtered


class Lite(nn.Sequential):
    def __init__(self) -> None:
        stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU6())
        super().__init__(stem, Bottleneck(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Grouped(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def lite(trained: Trained, blocks: int = 3) -> Tuned:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return tuned(trained, blocks, module=Lite)


def job(model: Tuned, descent: Descent | None = None) -> LocalTraining:
    held = [np.arange(device, 30, DEVICES) for device in range(DEVICES)]
    training = LocalTraining(task=small_task(model), batches=Batches(held, 4, 10, seed=0), learning_rate=0.1)
    return replace(training, descent=descent or Descent())


def updates(engine: Engine, training: LocalTraining) -> Tensor:
    """How far ragged bursts move models that differ, and their velocities."""
    model = training.task.model
    initial = torch.stack([model.initial(np.random.default_rng(each)) for each in range(DEVICES)]).double()
    initial += 0.05 * torch.sin(torch.arange(initial.numel())).view_as(initial)
    models, velocities, anchors = initial.clone(), torch.zeros_like(initial), initial.roll(1, dims=0)
    bursts = [
        Burst(
            *(device, 1, rounds),
            received=anchors[device],
            correction=0.1 * anchors[device] if training.descent.corrected else None,
            velocity=velocities[device],
        )
        for device, rounds in enumerate(RAGGED)
    ]
    engine.run(list(models.unbind()), bursts)
    return torch.cat([models - initial, velocities], dim=1)


@pytest.mark.parametrize("trained", MODES)
def test_all_devices_move_as_one_by_one(trained: Trained) -> None:
    training = job(lite(trained))
    engine = make_engine("stacked", training)
    assert isinstance(engine, StackedTraced)
    found, expected = updates(engine, training), updates(make_engine("reference", training), training)
    assert float((found - expected).norm()) <= 1e-10 * float(expected.norm())


@pytest.mark.parametrize(
    "descent",
    [Descent(pull=0.3, corrected=True), Descent(momentum=0.9, weight_decay=0.01, clip_norm=0.5, steps_per_round=2)],
    ids=["pulled", "momentum"],
)
def test_every_descent_and_loss_is_that_of_the_reference(descent: Descent) -> None:
    offsets = torch.randn(DEVICES, 10, generator=torch.Generator().manual_seed(0))
    training = replace(
        job(lite("adapters"), descent), schedule=Schedule("cosine", 10), local_loss=LocalLoss(offsets=offsets)
    )
    found, expected = (updates(make_engine(name, training), training) for name in ("stacked", "reference"))
    assert float((found - expected).norm()) <= 1e-10 * float(expected.norm())


class Strided(nn.Module):
    """Asks for the size of images, as EfficientNet-Lite does before a convolution with a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.filter = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, stride=2, groups=8)

    def forward(self, images: Tensor) -> Tensor:
        expanded = nn.functional.relu6(self.expand(images))
        height, width = (size % 2 for size in expanded.shape[-2:])
        found: Tensor = self.filter(nn.functional.pad(expanded, (0, 1 - width, 0, 1 - height)))
        return found


def test_questions_about_a_shape_do_not_keep_gradients_out_of_the_next_kernel() -> None:
    images = torch.zeros(5, 3, 6, 6)
    made = tuned_network(Strided(), (images[:3], images), signals=torch.float32, kernels=False)
    expand, filtering = (operation.call.args[1] for operation in made.operations if operation.stacked)  # type: ignore[attr-defined]
    assert expand.gated
    assert filtering.gate == expand.limit == 6.0


@with_kernels
def test_kernels_give_the_gradients_of_pytorch() -> None:
    model = lite("norms", blocks=2)
    task = small_task(model)
    inputs = task.inputs(torch.arange(6)).float().to(WHERE)
    shapes = [entry.shape for entry in trainable(model.module()).values()]
    random = torch.Generator().manual_seed(0)
    weights = [(0.5 * torch.randn(2, *shape, generator=random)).to(WHERE).requires_grad_() for shape in shapes]
    gradients = []
    for kernels in (False, True):
        module = model.module().to(WHERE)
        made = tuned_network(module, (inputs[:3], inputs[:5]), signals=torch.float32, kernels=kernels)
        with Compute.named(WHERE.type).numerics():
            logits = made(inputs, StackedStep(count=2, weights=weights, statistics=()))
            gradients.append(torch.autograd.grad(logits.square().sum(), weights))
    # Most of the first gradients cancels out: in single precision PyTorch itself is off by up to 3.6e-4 on a CPU. A GPU
    # adds in another order.
    limit = 1e-5 if WHERE.type == "cpu" else 1e-3
    for found, expected in zip(*gradients, strict=True):
        assert float((found - expected).norm()) <= limit * float(expected.norm())
    laid_out = with_layout_of_weights(gradients[1])
    assert [each.stride() for each in laid_out] == [each.stride() for each in weights]
    assert all(torch.equal(one, two) for one, two in zip(laid_out, gradients[1], strict=True))


@pytest.mark.parametrize("trained", MODES)
def test_an_evaluation_by_the_stack_is_that_of_the_module(trained: Trained) -> None:
    model = lite(trained)
    task = small_task(model)
    inputs = task.inputs(torch.arange(5)).float()
    made = tuned_network(model.module(), (inputs[:3], inputs[:5]), signals=torch.float32, kernels=False)
    vector = model.initial(np.random.default_rng(0)) + 0.05 * torch.sin(torch.arange(model.parameters))
    expected = Evaluator(task)(vector)
    stacked = evaluation_module(model.module(), made, inputs, Compute())
    assert isinstance(stacked, StackedForward)
    found = Evaluator(task, module=stacked)(vector)
    assert found.score == expected.score
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    # On a CPU the network itself is as fast.
    by_engine = Evaluator(task, module=make_engine("stacked", job(model)).evaluated())
    assert by_engine(vector) == expected


def test_a_stack_that_gives_other_logits_does_not_evaluate(caplog: pytest.LogCaptureFixture) -> None:
    model = lite("norms")
    inputs = small_task(model).inputs(torch.arange(5)).float()
    made = tuned_network(model.module(), (inputs[:3], inputs[:5]), signals=torch.float32, kernels=False)
    wrong = replace(made, operations=[*made.operations[:-1], replace(made.operations[-1], call=other_logits)])
    module = evaluation_module(model.module(), wrong, inputs, Compute())
    assert not isinstance(module, StackedForward)
    assert "evaluations do not use the stack" in caplog.text


def other_logits(step: StackedStep, signal: Tensor) -> Tensor:
    return signal.new_full((len(signal), 10), torch.nan)


def test_a_layer_without_a_stacked_form_is_named_and_trains_in_another_engine() -> None:
    training = job(tuned("norms", 1, module=Grouped))
    with pytest.raises(NotStackableError, match=r"group_norm\(\) with blocks\.1\.weight has no stacked form"):
        StackedTraced(training)
    chosen = choice._for_traced_network(training)
    assert (chosen.name, "cannot be stacked: group_norm()" in str(chosen.reason)) == ("reference", True)
    assert isinstance(make_engine("stacked", training), Vmapped)
