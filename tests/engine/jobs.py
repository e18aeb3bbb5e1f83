"""Small jobs for engines: random images, devices that hold some of them, and models of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from wayfare.engine import Burst, Compute, Engine, LocalTraining, Policy, Trainer, make_engine
from wayfare.learning.argoverse.scenes import SceneSettings
from wayfare.learning.argoverse.synthetic import synthetic_scenes
from wayfare.learning.batches import Batches
from wayfare.learning.descent import Descent, descent_of
from wayfare.learning.local_loss import make_local_loss
from wayfare.learning.models.base import Model
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.lanegcn import LaneGcn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import Classification
from wayfare.learning.tasks.argoverse import Forecasting, forecasting
from wayfare.methods import LocalRule
from wayfare.scenario.model import Learning
from wayfare.scenario.model import Schedule as Shape
from wayfare.streams import Stream, generator

DEVICES = 9
MODELS: list[Model] = [
    Mlp((6, 3)),
    Mlp((12, 8, 5)),
    Mlp((196, 64, 32, 10)),
    SmallCnn(image=(1, 8, 8), channels=(4, 6), hidden=7),
    Resnet9(width=4),
    Resnet9(normalisation="group", width=4),
]


@dataclass(frozen=True)
class Job:
    """Local training of a small fleet."""

    training: LocalTraining
    devices: int


def shape_of(model: Model) -> tuple[int, ...]:
    """The shape of the inputs of a model."""
    match model:
        case Mlp():
            return model.sizes[:1]
        case SmallCnn():
            return model.image
        case _:
            return (3, 32, 32)


def job(
    model: Model,
    *,
    devices: int = DEVICES,
    batch: int = 8,
    rounds: int = 40,
    compute: Compute | None = None,
    schedule: Shape = "constant",
    learning: Learning | None = None,
    descent: Descent | None = None,
) -> Job:
    """Random inputs and labels for a model."""
    rng = np.random.default_rng(model.parameters)
    inputs = torch.from_numpy(rng.standard_normal((300, *shape_of(model))).astype(np.float32))
    classes = model.sizes[-1] if isinstance(model, Mlp) else 10
    labels = torch.from_numpy(rng.integers(0, classes, 300))
    task = Classification(
        name="random",
        model=model,
        classes=classes,
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs[:50],
        test_labels=labels[:50],
    )
    held = [rng.integers(0, 300, 40) for _ in range(devices)]
    batches = Batches(held, batch, rounds, seed=0)
    training = LocalTraining(
        task=task,
        batches=batches,
        learning_rate=0.1,
        compute=compute or Compute(),
        schedule=Schedule(schedule, rounds),
        local_loss=make_local_loss(learning or Learning(), task, held, (compute or Compute()).device),
        descent=descent or descent_of(learning or Learning(), LocalRule()),
    )
    return Job(training, devices)


def visited(
    engine: Engine,
    initial: torch.Tensor,
    plan: dict[int, list[int]],
    devices: int,
    *,
    policy: Policy = "ahead",
) -> list[torch.Tensor]:
    """Local models at the contacts of a plan; after each, the device starts from a model that depends on the past."""
    contacts = [np.array([round_ for round_, met in plan.items() if device in met]) for device in range(devices)]
    trainer = Trainer(engine, initial, contacts, training="always", policy=policy)
    seen, shared = [], initial.clone()
    for round_, met in plan.items():
        trainer.meet(met, round_)
        for device in met:
            seen.append(trainer.model(device).clone())
            shared = 0.5 * shared + 0.5 * seen[-1]
        for device in met:
            trainer.receive(device, shared)
    return seen


@cache
def forecasting_of(model: LaneGcn) -> Forecasting:
    """A few synthetic scenes for a model."""
    return forecasting(synthetic_scenes(24, 4, SceneSettings(), roads=model.lanes), model)


def lane_job(
    model: LaneGcn,
    *,
    devices: int = 5,
    batch: int = 3,
    rounds: int = 40,
    compute: Compute | None = None,
    schedule: Shape = "constant",
    learning: Learning | None = None,
    descent: Descent | None = None,
    augment: bool = False,
    task: Forecasting | None = None,
) -> Job:
    """Scenes for LaneGCN, some of them with every device."""
    task = task or forecasting_of(model)
    rng = np.random.default_rng(model.parameters)
    held = [rng.integers(0, len(task.train), 9) for _ in range(devices)]
    compute = compute or Compute()
    training = LocalTraining(
        task=task,
        batches=Batches(held, batch, rounds, seed=0, augment=augment),
        learning_rate=0.05,
        compute=compute,
        schedule=Schedule(schedule, rounds),
        local_loss=make_local_loss(learning or Learning(), task, held, compute.device),
        descent=descent or descent_of(learning or Learning(), LocalRule()),
    )
    return Job(training, devices)


def lane_starts(local: Job, dtype: torch.dtype) -> torch.Tensor:
    """A model of its own for every device, with every layer at work: the last norms of blocks begin at zero."""
    rng = np.random.default_rng(1)
    plain = starts(local, torch.float64)
    noise = torch.from_numpy(rng.normal(0, 0.1, plain.shape)).to(plain)
    return (plain + noise).to(dtype)


def starts(local: Job, dtype: torch.dtype) -> torch.Tensor:
    """A model of its own for every device."""
    initial = local.training.task.model.initial
    return torch.stack([initial(generator(n, Stream.INITIAL_MODEL, 0)) for n in range(local.devices)]).to(
        local.training.compute.device, dtype
    )


def run(engine: str, local: Job, initial: torch.Tensor, bursts: Sequence[Burst]) -> torch.Tensor:
    """The models after some bursts, one for each device."""
    models = initial.clone()
    make_engine(engine, local.training).run(list(models.unbind()), bursts)
    return models
