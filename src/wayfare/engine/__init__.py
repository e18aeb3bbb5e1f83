"""Local training: engines that give equal results at different speeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wayfare.engine.base import Burst, Engine, LocalTraining
from wayfare.engine.compute import Compute, Precision
from wayfare.engine.cuda_graphs import CudaGraphs
from wayfare.engine.reference import Reference
from wayfare.engine.shelf import InMemory, OnDisk, Shelf
from wayfare.engine.stacked import stacked
from wayfare.engine.trainer import Policy, Trainer, Training
from wayfare.engine.vmapped import Vmapped
from wayfare.errors import ScenarioError

__all__ = [
    "ENGINES",
    "Burst",
    "Compute",
    "Engine",
    "InMemory",
    "LocalTraining",
    "OnDisk",
    "Policy",
    "Precision",
    "Shelf",
    "Trainer",
    "Training",
    "make_engine",
]

ENGINES: Mapping[str, Callable[[LocalTraining], Engine]] = {
    "reference": Reference,
    "stacked": stacked,
    "vmap": Vmapped,
    "cuda_graphs": CudaGraphs,
}


def make_engine(name: str, training: LocalTraining) -> Engine:
    """The engine of a name; `auto` is the fastest that fits the model and the machine."""
    if name == "auto":
        name = "cuda_graphs" if training.compute.device.type == "cuda" else "stacked"
    if name not in ENGINES:
        raise ScenarioError("--engine", name, f"must be one of auto, {', '.join(ENGINES)}")
    return ENGINES[name](training)
