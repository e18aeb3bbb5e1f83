"""Compare one step of an engine with `reference` before a run uses it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wayfare.engine.base import Burst, Engine, LocalTraining
from wayfare.engine.reference import Reference
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.engine.traced.engine import StackedTraced
from wayfare.engine.traced.perceptron import perceptron_task
from wayfare.engine.traced.probing import NotStackableError
from wayfare.engine.traced.replayed import Replayed
from wayfare.errors import WayfareError
from wayfare.learning.batches import Batches
from wayfare.learning.tasks.own import OwnTask
from wayfare.learning.tasks.tuned import TunedClassification
from wayfare.streams import FLEET, Stream, generator

# Relative to the update; as in the tests of engines.
_TOLERANCE, _TOLERANCE_SINGLE = 1e-10, 5e-3
_DEVICES, _SAMPLES = 2, 4


def stacked_own(training: LocalTraining) -> Engine:
    """The stack for a user's own network, or for a trained part of a backbone.

    Raises NotStackableError with the reason if there is none.
    """
    small = replace(training, batches=_few(training.batches))
    trial = StackedTraced(small)
    engine = _stack(training, trial.perceptron)
    verified = _stack(small, trial.perceptron)
    reject_differences(verified, small, casts=trial.casts)
    if trial.draws and not trial.casts:
        # Draws fill memory in its order, which may depend on the type of numbers.
        reject_differences(verified, small, casts=True)
    return engine


def _stack(training: LocalTraining, sizes: tuple[int, ...] | None) -> Engine:
    known = perceptron_task(training.task, sizes)
    if known is not None:
        return StackedMlp(replace(training, task=known))
    # Traced operations read no values, so a graph can hold them, if the loss reads none either.
    task = training.task
    held = training.compute.device.type == "cuda" and isinstance(task, OwnTask | TunedClassification) and task.averages
    return Replayed(training) if held else StackedTraced(training)


def _few(batches: Batches) -> Batches:
    """Small minibatches of the same devices; an engine does not depend on their size."""
    held = [batches.held(device) for device in range(min(batches.devices, _DEVICES))]
    return Batches(held, min(batches.batch_size, _SAMPLES), 1, seed=0, augment=batches.augment)


def reject_differences(engine: Engine, training: LocalTraining, *, casts: bool) -> None:
    """Raise NotStackableError if a step of an engine differs from `reference`."""
    starts = _starts(training, training.batches.devices)
    real = torch.float32 if casts else torch.float64
    try:
        expected = _stepped(Reference(training), training, starts.to(real))
    except WayfareError:
        raise
    except Exception:  # a user's network may insist on single precision
        if casts:
            raise
        real = torch.float32
        expected = _stepped(Reference(training), training, starts.to(real))
    try:
        found = _stepped(engine, training, starts.to(real))
    except Exception as error:  # any operation may have no stacked form
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise NotStackableError(f"a stacked step fails ({reason[0]})", traced=True) from error
    update = (expected - starts.to(real)).norm(dim=1)
    # Where there is no update, nothing may change.
    off = ((found - expected).norm(dim=1) / update.clamp(min=torch.finfo(real).tiny)).nan_to_num(nan=torch.inf)
    if not torch.isfinite(expected).all():
        raise NotStackableError("its first step is not finite, so a stack cannot be compared with it", traced=True)
    if float(off.max()) > (_TOLERANCE if real == torch.float64 else _TOLERANCE_SINGLE):
        raise NotStackableError(f"a stacked step differs from the plain one by {float(off.max()):.0e}", traced=True)


def _starts(training: LocalTraining, count: int) -> Tensor:
    """Models that differ between devices and have no zeros, which could hide a difference."""
    model = training.task.model
    initial = model.initial(generator(0, Stream.INITIAL_MODEL, FLEET)).double()
    entries = torch.arange(len(initial), dtype=torch.float64)
    waves = torch.stack([torch.sin(0.7 * entries + 1 + device) for device in range(count)])
    starts = initial * (1 + 0.1 * waves)
    starts[:, : model.parameters] += 0.01 * waves[:, : model.parameters]
    return starts.to(training.compute.device)


def _stepped(engine: Engine, training: LocalTraining, starts: Tensor) -> Tensor:
    """The models after one round, with every vector that the descent uses."""
    models, descent = starts.clone(), training.descent
    other = starts.roll(1, dims=1)[:, : training.task.model.parameters]
    bursts = [
        Burst(
            device,
            1,
            1,
            received=other[device] if descent.pull else None,
            correction=0.01 * other[device] if descent.corrected else None,
            velocity=0.01 * other[device] if descent.momentum else None,
        )
        for device in range(len(starts))
    ]
    engine.run(list(models.unbind()), bursts)
    return models
