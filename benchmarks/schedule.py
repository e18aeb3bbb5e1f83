"""A model of the schedule of a run on a GPU: how long a round takes, and how long the GPU is idle. Needs no GPU.

    python benchmarks/schedule.py [--ahead-steps 1] [--speed 40] [--rounds 2000] [--host-ms 2.8] [--gpu-ms 1.0]
                                  [--evaluation-ms 45] [--in-turns] [--together-ms 0] [--leave-idle] [--copy-ms 0.02]

The trainer and the contacts are those of `benchmarks/full_run.py`; steps, contacts and evaluations only take the times
given. The times of steps are those of ResNet-9 in TF32 on one H200 (docs/results/speed.md). A GPU prefers contacts and
evaluations to local steps. With `--in-turns` the contacts of a round wait for the GPU together.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
# Times that the host looks during a contact whether the GPU is idle.
TURNS = 4
# Milliseconds of the host to launch a group and a burst of it.
LAUNCH_MS, BURST_MS = 0.25, 0.045


@dataclass
class End:
    """The end of a burst in milliseconds since the start of the run."""

    at_ms: float

    def wait(self) -> None:
        pass

    def query(self) -> bool:
        return True


@dataclass
class Modelled(Idling):
    """An engine that takes the time of one on a GPU and trains nothing. The clock is the host's."""

    copy_ms: float  # of a model into and out of the engine
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
        now_ms = max(self.host_ms, self.free_ms) + self.copy_ms * len(order)
        ends, active = [End(0.0) for _ in bursts], len(order)
        for step in range(bursts[order[0]].rounds):
            now_ms += float(np.interp(active, STEP_DEVICES, STEP_MS))
            self.steps, self.device_steps = self.steps + 1, self.device_steps + active
            while active and bursts[order[active - 1]].rounds == step + 1:
                active -= 1
                now_ms += self.copy_ms
                ends[order[active]].at_ms = now_ms
        self.free_ms = now_ms
        self.pending = [end for end in self.pending if end.at_ms > self.host_ms] + ends
        return ends

    def is_idle(self) -> bool:
        return self.free_ms <= self.host_ms

    def prefer(self, work_ms: float) -> None:
        """Other work of the GPU, which delays the steps that it has."""
        for end in self.pending:
            if end.at_ms > self.host_ms:
                end.at_ms += work_ms
        if self.free_ms > self.host_ms:
            self.free_ms += work_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ahead-steps", type=int, default=1)
    parser.add_argument("--speed", type=float, default=40.0, help="metres per second")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--host-ms", type=float, default=2.8, help="of a contact, without waits for the GPU")
    parser.add_argument("--gpu-ms", type=float, default=1.0, help="of a contact")
    parser.add_argument("--evaluation-ms", type=float, default=45.0)
    parser.add_argument("--copy-ms", type=float, default=0.02, help="of a model into or out of the engine")
    parser.add_argument("--in-turns", action="store_true", help="contacts of a round wait for the GPU together")
    parser.add_argument(
        "--together-ms", type=float, default=0.0, help="of helpers for all contacts of a round, in turns"
    )
    parser.add_argument("--leave-idle", action="store_true", help="start no steps during contacts")
    arguments = parser.parse_args()
    settings = [f"rounds={arguments.rounds}", f"mobility.speed_mps={arguments.speed}"]
    with patch("wayfare.world.draw.load_task", lambda _: random_images()):
        world = draw_world(wayfare.load("paper-cifar10-waypoint", settings), 0)
    engine, model = Modelled(arguments.copy_ms), torch.zeros(1)
    ends: dict[int, End] = {}
    trainer = Trainer(engine, model, contact_rounds(world), training="always", ahead_steps=arguments.ahead_steps)
    every = max(arguments.rounds // 40, 1)
    edges = np.searchsorted(world.meets.round, np.arange(1, arguments.rounds + 2))
    for round_ in range(1, arguments.rounds + 1):
        met = world.meets.device[edges[round_ - 1] : edges[round_]].tolist()
        trainer.meet(met, round_)
        ends |= {device: end for device in met if isinstance(end := trainer._running.get(device), End)}
        if met and arguments.in_turns:
            engine.host_ms = max([engine.host_ms, *(ends[device].at_ms for device in met if device in ends)])
            engine.prefer(arguments.gpu_ms * len(met))
            engine.host_ms += arguments.gpu_ms + arguments.together_ms
            for _ in range(TURNS * len(met)):
                if not arguments.leave_idle:
                    trainer.keep_going()
                engine.host_ms += arguments.host_ms / TURNS
        else:
            for device in met:
                engine.host_ms = max(engine.host_ms, ends[device].at_ms)
                engine.prefer(arguments.gpu_ms)
                engine.host_ms += arguments.gpu_ms + arguments.host_ms
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
