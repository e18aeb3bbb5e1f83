"""Engines are interchangeable, and when a burst runs makes no difference."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.engine.jobs import MODELS, job, run, starts, visited
from torch import nn

from wayfare.engine import AHEAD_STEPS, ENGINES, Burst, Compute, Engine, Policy, Trainer, compute, make_engine
from wayfare.engine.reference import Reference
from wayfare.engine.stacked_cnn import StackedCnn
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.engine.vmapped import Vmapped
from wayfare.errors import ScenarioError, UnavailableError
from wayfare.learning.models.base import Model
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import Task

CPU_ENGINES = [name for name in ENGINES if name not in ("cuda_graphs", "batched")]
FAST = [name for name in CPU_ENGINES if name != "reference"]
RAGGED = [Burst(device, 1 + device % 3, steps) for device, steps in enumerate([5, 1, 9, 0, 3, 9, 2, 7, 1])]
SHORT = [Burst(device, 1 + device % 3, steps) for device, steps in enumerate([2, 1, 3, 0, 1, 2, 2, 1, 1])]


def bursts_for(model: Model) -> list[Burst]:
    return RAGGED if isinstance(model, Mlp) else SHORT


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("engine", FAST)
def test_every_engine_gives_the_updates_of_the_reference(engine: str, model: Model) -> None:
    local, bursts = job(model), bursts_for(model)
    initial = starts(local, torch.float64)
    expected, found = (run(name, local, initial, bursts) for name in ("reference", engine))
    for device, burst in enumerate(bursts):
        update = (initial - expected)[device]
        assert float((found - expected)[device].norm()) <= 1e-10 * max(float(update.norm()), 1e-12)
        assert (burst.rounds == 0) == bool(torch.equal(found[device], initial[device]))


@pytest.mark.parametrize("model", [Mlp((12, 8, 5)), Resnet9(width=4)], ids=str)
@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_a_falling_learning_rate_falls_by_the_round_of_each_device(engine: str, model: Model) -> None:
    falling = job(model, rounds=12, schedule="linear")
    initial = starts(falling, torch.float64)
    bursts = [Burst(device, 1 + device, 2) for device in range(falling.devices)]
    found = run(engine, falling, initial, bursts)
    # Step by step with the rate that the round has: eta (1 - (r - 1) / 12).
    expected = initial.clone()
    for burst in bursts:
        for round_ in range(burst.first_round, burst.first_round + burst.rounds):
            rate = 0.1 * (1 - (round_ - 1) / 12)
            training = replace(falling.training, learning_rate=rate, schedule=Schedule())
            Reference(training).run([expected[burst.device]], [Burst(burst.device, round_, 1)])
    assert float((found - expected).norm()) <= 1e-10 * float((expected - initial).norm())


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("engine", FAST)
def test_one_step_in_single_precision_is_as_good_as_the_plain_loop(engine: str, model: Model) -> None:
    local = job(model)
    bursts = [Burst(device, 1, 1) for device in range(local.devices)]
    initial = starts(local, torch.float32)
    truth = run("reference", local, initial.double(), bursts) - initial.double()

    def errors(name: str) -> torch.Tensor:
        update = (run(name, local, initial, bursts) - initial).double()
        return (update - truth).norm(dim=1) / truth.norm(dim=1)

    found, plain = errors(engine), errors("reference")
    assert float(found.max()) <= 5e-3
    # No worse but for the order of its sums.
    assert float(found.mean()) <= 2 * float(plain.mean()) + 1e-7


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_a_run_repeats_bit_by_bit(engine: str, model: Model) -> None:
    local = job(model)
    initial = starts(local, torch.float32)
    assert torch.equal(*(run(engine, local, initial, bursts_for(model)) for _ in range(2)))


@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_a_burst_in_pieces_is_the_same_burst(engine: str) -> None:
    local = job(Mlp((12, 8, 5)))
    devices = range(local.devices)
    initial = starts(local, torch.float32)
    whole = run(engine, local, initial, [Burst(device, 1, 12) for device in devices])
    half = run(engine, local, initial, [Burst(device, 1, device) for device in devices])
    pieces = run(engine, local, half, [Burst(device, 1 + device, 12 - device) for device in devices])
    torch.testing.assert_close(pieces, whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("model", [Mlp((196, 900, 10)), SmallCnn(image=(1, 8, 8), channels=(2, 3), hidden=5)], ids=str)
def test_groups_do_not_depend_on_each_other(model: Model) -> None:
    local = job(model)
    initial = starts(local, torch.float32)
    together, alone = run("stacked", local, initial, RAGGED), initial.clone()
    runner = make_engine("stacked", local.training)
    for burst in RAGGED:
        runner.run([alone[burst.device]], [burst])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_batch_statistics_come_back_in_the_tail_of_the_vector() -> None:
    model = Resnet9(width=4)
    local = job(model)
    initial = starts(local, torch.float64)
    bursts = [Burst(device, 1, 1) for device in range(local.devices)]
    for engine in CPU_ENGINES:
        tail = run(engine, local, initial, bursts)[:, model.parameters :]
        mean, variance = tail[:, :4], tail[:, 4:8]
        assert bool((mean != 0).all())
        # One step with momentum 0.1 from the identity.
        assert bool((variance > 0.9).all())
        assert not torch.equal(tail[0], tail[1])


def visits(engine: str, policy: Policy, ahead_steps: int = AHEAD_STEPS) -> list[torch.Tensor]:
    local = job(Mlp((12, 8, 5)))
    plan = {3: [0], 5: [1, 2], 6: [0], 11: [4, 5], 12: [2], 20: [0, 1, 2, 3], 33: [5, 0], 40: [1]}
    made, initial = make_engine(engine, local.training), starts(local, torch.float64)[0]
    made.ahead_steps = ahead_steps
    return visited(made, initial, plan, local.devices, policy=policy)


@pytest.mark.parametrize("engine", CPU_ENGINES)
def test_lazy_and_ahead_bursts_equal_step_by_step_execution(engine: str) -> None:
    stepwise = visits(engine, "stepwise")
    ways: list[tuple[Policy, int]] = [("lazy", AHEAD_STEPS), ("ahead", AHEAD_STEPS), ("ahead", 1)]
    for policy, ahead_steps in ways:
        for found, expected in zip(visits(engine, policy, ahead_steps), stepwise, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_the_reference_gives_the_same_bits_whenever_it_runs() -> None:
    for policy in ("lazy", "ahead"):
        assert all(
            torch.equal(found, expected)
            for found, expected in zip(visits("reference", policy), visits("reference", "stepwise"), strict=True)
        )


class Counting(Engine):
    """An engine that computes nothing and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[int, int]] = []

    def run(self, models: Sequence[torch.Tensor], bursts: Sequence[Burst]) -> None:
        del models
        self.asked.append({burst.device: burst.rounds for burst in bursts})


def test_others_are_taken_along_as_far_as_an_engine_likes() -> None:
    contacts = [np.array([3, 30]), np.array([20, 30]), np.array([4, 30])]
    for ahead_steps, along in ((1, {0: 3, 1: 3, 2: 3}), (12, {0: 3, 1: 12, 2: 4})):
        engine = Counting()
        engine.ahead_steps = ahead_steps
        trainer = Trainer(engine, torch.zeros(2), contacts, training="always")
        trainer.meet([0], 3)
        assert engine.asked == [along]


def test_training_in_contact_takes_the_step_of_the_contact_round_only() -> None:
    local = job(Mlp((6, 3)))
    initial = starts(local, torch.float32)[0]
    trainer = Trainer(make_engine("stacked", local.training), initial, [np.array([7])], training="in-contact")
    trainer.meet([0], 7)
    expected = initial.clone()
    make_engine("stacked", local.training).run([expected], [Burst(0, 7, 1)])
    assert torch.equal(trainer.model(0), expected)


@pytest.mark.parametrize(
    ("model", "kind"),
    [(Mlp((6, 3)), StackedMlp), (SmallCnn(image=(1, 8, 8)), StackedCnn), (Resnet9(width=4), StackedCnn)],
)
def test_the_engine_is_chosen_by_the_model(model: Model, kind: type) -> None:
    assert isinstance(make_engine("auto", job(model).training), kind)
    assert isinstance(make_engine("vmap", job(model).training), Vmapped)
    assert isinstance(make_engine("reference", job(model).training), Reference)


class OwnLoss:
    """A task with a loss of its own, of which an engine knows nothing."""

    def __init__(self, task: Task) -> None:
        self._task, self.name, self.model = task, "own", task.model

    def loss(self, module: nn.Module, samples: torch.Tensor, crops: torch.Tensor | None = None) -> torch.Tensor:
        return self._task.loss(module, samples, crops) + 0.01 * sum(w.square().sum() for w in module.parameters())

    def to(self, device: torch.device) -> OwnLoss:
        return OwnLoss(self._task.to(device))


def test_a_loss_of_ones_own_runs_plainly_unless_asked_otherwise() -> None:
    local = job(Mlp((6, 3)))
    own = replace(local.training, task=OwnLoss(local.training.task))
    assert isinstance(make_engine("auto", own), Reference)
    assert isinstance(make_engine("stacked", own), Vmapped)
    initial = starts(local, torch.float64)
    found, expected = initial.clone(), initial.clone()
    make_engine("stacked", own).run(list(found.unbind()), RAGGED)
    make_engine("auto", own).run(list(expected.unbind()), RAGGED)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert not torch.equal(found, run("stacked", local, initial, RAGGED))


def test_unknown_engines_are_refused() -> None:
    local = job(Mlp((6, 3))).training
    with pytest.raises(ScenarioError, match=r"engine = 'steam': must be one of auto, reference, stacked, vmap"):
        make_engine("steam", local)
    with pytest.raises(ScenarioError, match=r"engine = 'cuda_graphs': needs a CUDA device"):
        make_engine("cuda_graphs", local)


def test_a_compute_device_is_named_and_checked() -> None:
    assert Compute.named("cpu").device == torch.device("cpu")
    with pytest.raises(ScenarioError, match=r"device = 'abacus': must be auto, cpu, cuda or cuda:NUMBER"):
        Compute.named("abacus")
    with pytest.raises(ScenarioError, match=r"precision = 'tf32': needs a CUDA device"):
        Compute.named("cpu", "tf32")
    if not torch.cuda.is_available():
        assert Compute.named("auto").device == torch.device("cpu")
        with pytest.raises(UnavailableError, match=r"device = 'cuda': PyTorch finds no CUDA device here"):
            Compute.named("cuda")


@pytest.mark.parametrize("has_compiler", [False, True])
def test_reproducible_algorithms_are_set_without_importing_the_compiler(
    has_compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[bool]()
    monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", told.append)
    if has_compiler:
        monkeypatch.setitem(sys.modules, "torch._inductor.config", ModuleType("config"))
    before = torch.are_deterministic_algorithms_enabled()
    try:
        compute._use_deterministic_algorithms(True)
        # The public switch also tells the compiler, if it is there.
        assert told == [True] if has_compiler else torch.are_deterministic_algorithms_enabled()
        assert ("torch._inductor.config" in sys.modules) == has_compiler
    finally:
        torch._C._set_deterministic_algorithms(before)
