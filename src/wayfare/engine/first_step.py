"""Try the first step of a user's own network before a run, where an error is still about one thing."""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
from torch import Tensor, nn

from wayfare.engine.base import LocalTraining
from wayfare.errors import InputError, WayfareError
from wayfare.learning.chance import seeded_generators
from wayfare.learning.local_loss import loss_of
from wayfare.learning.models.base import trainable

_log = logging.getLogger("wayfare")


def first_loss(training: LocalTraining, module: nn.Module) -> Tensor:
    """The loss on the first minibatch of the first device."""
    where = training.compute.device
    samples = torch.from_numpy(training.batches.of(0, 1, 1)[0]).to(where)
    crops = training.batches.crops_of(0, 1, 1)
    moves = None if crops is None else torch.from_numpy(crops[0]).to(where)
    offset = None if training.local_loss.offsets is None else training.local_loss.offsets[0]
    return loss_of(training.task.to(where), module, samples, moves, offset)


def reject_failing_step(training: LocalTraining) -> None:
    """Raise InputError if the first step fails, and warn of parameters that the loss does not use."""
    task, where = training.task, training.compute.device
    module = task.model.module().to(where).train()
    weights = trainable(module)
    with training.compute.numerics(), seeded_generators(where) as set_seed:
        set_seed(0)
        try:
            loss = first_loss(training, module)
            found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        except (WayfareError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a user's code may raise anything
            reason = " ".join(str(error).split()) or "no reason given"
            raise InputError(f"{task.name}: the first training step fails: {type(error).__name__}: {reason}") from error
    unused = [name for name, gradient in zip(weights, found, strict=True) if gradient is None]
    if unused:
        _warn_of_unused(task.name, ", ".join(unused[:4]) + (", ..." if len(unused) > 4 else ""))


@lru_cache
def _warn_of_unused(task: str, names: str) -> None:
    _log.warning(
        "%s: the loss of the first minibatch does not depend on %s; uploads carry these parameters all the same, "
        "unless they have requires_grad=False",
        task,
        names,
    )
