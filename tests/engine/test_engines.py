"""Engines are interchangeable, and when a burst runs makes no difference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wayfare.engine import ENGINES, Burst, LocalTraining, Policy, Trainer, make_engine
from wayfare.errors import ScenarioError
from wayfare.learning.batches import Batches
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import Classification
from wayfare.streams import Stream, generator

SIZES = [(6, 3), (12, 8, 5), (196, 64, 32, 10)]
DEVICES = 9


def training(sizes: tuple[int, ...], rounds: int = 40) -> LocalTraining:
    rng = np.random.default_rng(sum(sizes))
    inputs = torch.from_numpy(rng.standard_normal((300, sizes[0])).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, sizes[-1], 300))
    task = Classification(
        name="random",
        model=Mlp(sizes),
        classes=sizes[-1],
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs[:50],
        test_labels=labels[:50],
    )
    held = [rng.integers(0, 300, 40) for _ in range(DEVICES)]
    return LocalTraining(task=task, batches=Batches(held, 8, rounds, seed=0), learning_rate=0.1)


def starts(local: LocalTraining, dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([local.task.model.initial(generator(n, Stream.INITIAL_MODEL, 0)) for n in range(DEVICES)]).to(
        dtype
    )


RAGGED = [Burst(device, 1 + device % 3, steps) for device, steps in enumerate([5, 1, 9, 0, 3, 9, 2, 7, 1])]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "reference"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["fp64", "fp32"])
def test_every_engine_gives_the_updates_of_the_reference(
    engine: str, sizes: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    local = training(sizes)
    initial = starts(local, dtype)
    expected, found = initial.clone(), initial.clone()
    make_engine("reference", local).run(expected, RAGGED)
    make_engine(engine, local).run(found, RAGGED)
    for device, burst in enumerate(RAGGED):
        update = (initial - expected)[device]
        assert float((found - expected)[device].norm()) <= tolerance * max(float(update.norm()), 1e-12)
        assert (burst.steps == 0) == bool(torch.equal(found[device], initial[device]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_burst_in_pieces_is_the_same_burst(engine: str) -> None:
    local = training((12, 8, 5))
    whole, pieces = starts(local, torch.float32), starts(local, torch.float32)
    runner = make_engine(engine, local)
    runner.run(whole, [Burst(device, 1, 12) for device in range(DEVICES)])
    runner.run(pieces, [Burst(device, 1, device) for device in range(DEVICES)])
    runner.run(pieces, [Burst(device, 1 + device, 12 - device) for device in range(DEVICES)])
    torch.testing.assert_close(pieces, whole, rtol=1e-6, atol=1e-7)


def test_groups_do_not_depend_on_each_other() -> None:
    # A model so large that a group holds few of the devices.
    local = training((196, 900, 10))
    together, alone = starts(local, torch.float32), starts(local, torch.float32)
    runner = make_engine("stacked", local)
    runner.run(together, RAGGED)
    for burst in RAGGED:
        runner.run(alone, [burst])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-7)


def visits(engine: str, policy: Policy) -> list[torch.Tensor]:
    """Train a fleet through a plan of contacts; after each, the device starts from a model that depends on the past."""
    local = training((12, 8, 5))
    initial = starts(local, torch.float64)[0]
    plan = {3: [0], 5: [1, 2], 6: [0], 11: [4, 5], 12: [2], 20: [0, 1, 2, 3], 33: [5, 0], 40: [1]}
    contacts = [np.array([r for r, met in plan.items() if device in met]) for device in range(DEVICES)]
    trainer = Trainer(make_engine(engine, local), initial, contacts, training="always", policy=policy)
    seen, shared = [], initial.clone()
    for round_, met in plan.items():
        trainer.meet(met, round_)
        for device in met:
            seen.append(trainer.model(device).clone())
            shared = 0.5 * shared + 0.5 * seen[-1]
        for device in met:
            trainer.receive(device, shared)
    return seen


@pytest.mark.parametrize("engine", ENGINES)
def test_lazy_and_ahead_bursts_equal_step_by_step_execution(engine: str) -> None:
    stepwise = visits(engine, "stepwise")
    for policy in ("lazy", "ahead"):
        for found, expected in zip(visits(engine, policy), stepwise, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_the_reference_gives_the_same_bits_whenever_it_runs() -> None:
    for policy in ("lazy", "ahead"):
        assert all(
            torch.equal(found, expected)
            for found, expected in zip(visits("reference", policy), visits("reference", "stepwise"), strict=True)
        )


def test_training_in_contact_takes_the_step_of_the_contact_round_only() -> None:
    local = training((6, 3))
    initial = starts(local, torch.float32)[0]
    trainer = Trainer(make_engine("stacked", local), initial, [np.array([7])], training="in-contact")
    trainer.meet([0], 7)
    expected = initial.repeat(1, 1)
    make_engine("stacked", local).run(expected, [Burst(0, 7, 1)])
    assert torch.equal(trainer.model(0), expected[0])


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"--engine = 'steam': must be one of auto, reference, stacked"):
        make_engine("steam", training((6, 3)))
