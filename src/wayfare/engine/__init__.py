"""Local training: engines that give equal results at different speeds.

Design decisions:

- Local training is lazy. Nothing observes a device between contacts, so its steps form a burst. At a contact the
  trainer runs the needed bursts and advances other pending bursts by up to a dozen steps, which makes wide stacks with
  little copying. Steps after a device's last contact are never run.
- Graphs do not wait for bursts that no contact needs yet. A launch returns the end of every burst, and the trainer
  waits for a burst when something reads its vector. So a GPU works while the host handles contacts.
- A local loss belongs to the local steps. Engines take logit offsets per device from a table, and a burst carries its
  proximal anchor. Tasks know neither.
- Random layers are keyed through PyTorch's default generator: `reference` sets it from (seed, device, step) and
  restores it. `traced/` makes the same draws for dropout, device by device. Other stacks and graphs share one generator
  among devices, so they reject such layers.
- A user's own network is traced, stacked and compared with `reference` before it is used. `choice.py` decides; it never
  measures time, because a repeated run must choose the same engine.
- One thread per process, parallel over runs: models are small, and sums do not depend on the number of cores.
"""

from __future__ import annotations

from wayfare.engine.base import AHEAD_STEPS, Burst, Engine, LocalTraining
from wayfare.engine.choice import ENGINES, Choice, choose_engine, make_engine
from wayfare.engine.compute import Compute, Precision
from wayfare.engine.shelf import InMemory, OnDisk, Place, Shelf, open_shelf
from wayfare.engine.trainer import Policy, Trainer, TrainerState, Training

__all__ = [
    "AHEAD_STEPS",
    "ENGINES",
    "Burst",
    "Choice",
    "Compute",
    "Engine",
    "InMemory",
    "LocalTraining",
    "OnDisk",
    "Place",
    "Policy",
    "Precision",
    "Shelf",
    "Trainer",
    "TrainerState",
    "Training",
    "choose_engine",
    "make_engine",
    "open_shelf",
]
