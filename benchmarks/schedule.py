"""A model of the schedule of a run on a GPU: how long a round takes, and how long the GPU is idle. Needs no GPU.

    python benchmarks/schedule.py [--speed 40] [--rounds 2000] [--host-ms 2.5] [--gpu-ms 0.4] [--evaluation-ms 33]
                                  [--little-ms 2] [--in-order]

The trainer and the contacts are those of `benchmarks/full_run.py`; steps, contacts and evaluations only take the times
given. The times of steps are those of ResNet-9 in TF32 on one H200 (docs/results/speed.md). A GPU prefers contacts and
evaluations to local steps. As in a run, the host handles later contacts while those of the round wait for local steps,
unless `--in-order` is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import wayfare
from full_run import random_images
from wayfare.engine import Burst, Trainer
from wayfare.engine.base import Idling, Ready, longest_first
from wayfare.simulator.device_side import contact_rounds
from wayfare.world import draw_world

# Milliseconds of a step by the number of devices.
STEP_DEVICES = (0, 1, 2, 4, 8, 12, 16, 20)
STEP_MS = (0.0, 1.76, 1.96, 2.43, 3.45, 4.71, 5.98, 7.29)
# Times that the host looks during a contact whether the GPU needs more steps.
TURNS = 8
# Later contacts that the host looks at.
LOOKED_AT = 32
# Milliseconds of the host to launch a group and a burst of it.
LAUNCH_MS, BURST_MS = 0.5, 0.075


@dataclass
class End:
    """The end of a burst in milliseconds since the start of the run."""

    engine: Modelled
    at_ms: float = 0.0

    def wait(self) -> None:
        pass

    def query(self) -> bool:
        return self.at_ms <= self.engine.host_ms


@dataclass
class Modelled(Idling):
    """An engine that takes the time of one on a GPU and trains nothing. The clock is the host's."""

    ahead_steps = 1
    little_ms: float  # The work left at which it needs more.
    host_ms: float = 0.0
    free_ms: float = 0.0  # when the GPU has done all steps
    idle_ms: float = 0.0
    steps: int = 0
    device_steps: int = 0
    pending: list[End] = field(default_factory=list)

    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> Sequence[Ready]:
        order = longest_first(bursts)
        self.host_ms += LAUNCH_MS + BURST_MS * len(order)
        self.idle_ms += max(self.host_ms - self.free_ms, 0.0)
        now_ms = max(self.host_ms, self.free_ms)
        ends, active = [End(self) for _ in bursts], len(order)
        for step in range(bursts[order[0]].rounds):
            now_ms += float(np.interp(active, STEP_DEVICES, STEP_MS))
            self.steps, self.device_steps = self.steps + 1, self.device_steps + active
            while active and bursts[order[active - 1]].rounds == step + 1:
                active -= 1
                ends[order[active]].at_ms = now_ms
        self.free_ms = now_ms
        self.pending = [end for end in self.pending if end.at_ms > self.host_ms] + ends
        return ends

    def has_little_left(self) -> bool:
        return self.free_ms - self.host_ms < self.little_ms

    def wait(self) -> None:
        """Let the host wait until a burst ends or the engine needs more."""
        times_ms = [end.at_ms for end in self.pending] + [self.free_ms - self.little_ms]
        later_ms = [each for each in times_ms if each > self.host_ms]
        # A little more, so that a comparison of rounded numbers also finds the end.
        self.host_ms = min(later_ms, default=self.host_ms) + 0.02

    def prefer(self, work_ms: float) -> None:
        """Other work of the GPU, which delays the steps that it has."""
        for end in self.pending:
            if end.at_ms > self.host_ms:
                end.at_ms += work_ms
        if self.free_ms > self.host_ms:
            self.free_ms += work_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=40.0, help="metres per second")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--host-ms", type=float, default=2.5, help="of a contact, without waits for the GPU")
    parser.add_argument("--gpu-ms", type=float, default=0.4, help="of a contact")
    parser.add_argument("--evaluation-ms", type=float, default=33.0)
    parser.add_argument("--little-ms", type=float, default=2.0, help="of work left at which the GPU gets more steps")
    parser.add_argument("--in-order", action="store_true", help="handle contacts in their rounds only")
    arguments = parser.parse_args()
    settings = [f"rounds={arguments.rounds}", f"mobility.speed_mps={arguments.speed}"]
    with patch("wayfare.world.draw.load_task", lambda _: random_images()):
        world = draw_world(wayfare.load("paper-cifar10-waypoint", settings), 0)
    engine, model, meets = Modelled(arguments.little_ms), torch.zeros(1), world.meets
    trainer = Trainer(engine, model, contact_rounds(world), training="always")
    every = max(arguments.rounds // 40, 1)
    edges = np.searchsorted(meets.round, np.arange(1, arguments.rounds + 2)).tolist()
    handled: set[int] = set()

    def handle(rows: Iterable[int]) -> bool:
        """Handle the first contact that waits for no local steps."""
        busy: set[int] = set()
        for row in rows:
            device = int(meets.device[row])
            if row not in handled and device not in busy and trainer.has_reached(device, int(meets.round[row])):
                handled.add(row)
                engine.prefer(arguments.gpu_ms)
                for _ in range(TURNS):
                    trainer.keep_going()
                    engine.host_ms += arguments.host_ms / TURNS
                return True
            busy.add(device)
        return False

    for round_ in range(1, arguments.rounds + 1):
        rows = range(edges[round_ - 1], edges[round_])
        met = meets.device[rows.start : rows.stop].tolist()
        trainer.meet(met, round_)
        later = range(rows.start, rows.stop if arguments.in_order else min(rows.stop + LOOKED_AT, len(meets)))
        while not handled.issuperset(rows):
            trainer.keep_going()
            if not handle(later):
                engine.wait()
        for device in met:
            trainer.receive(device, model)
        if round_ % every == 0:
            trainer.keep_busy(round_)
            engine.prefer(arguments.evaluation_ms)
            engine.host_ms += arguments.evaluation_ms
    total_ms = max(engine.host_ms, engine.free_ms)
    print(
        f"{total_ms / arguments.rounds:.2f} ms per round, {engine.idle_ms / arguments.rounds:.2f} ms of them idle, "
        f"{engine.device_steps / engine.steps:.1f} devices per step"
    )


if __name__ == "__main__":
    main()
