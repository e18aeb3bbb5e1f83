"""Where the time of a whole run goes: local steps, the parts of a contact, evaluations.

    python benchmarks/contact_profile.py [--schemes mads-rd mads] [--speeds 40 20] [--rounds 240] [--out FILE]

The run is that of `full_run.py`. Every phase is timed on the host. The host waits for the GPU after the local steps
of a round, so that the phases of contacts do not include them; without that it waits at the norm of the first update.
Local steps alone are timed again without contacts. PyTorch reports every call that makes the host wait, which
is counted by line of our code. A profile of the last rounds gives the time that kernels ran and the calls on the host.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

import wayfare
from full_run import Counter as Observed
from full_run import random_images
from wayfare.engine import Burst, Compute, Engine
from wayfare.engine.cuda_graphs import CudaGraphs
from wayfare.engine.trainer import Trainer
from wayfare.methods import make_method
from wayfare.scenario import Scenario
from wayfare.simulator import Simulation
from wayfare.simulator.device_side import DeviceSide
from wayfare.simulator.server_side import ServerSide
from wayfare.world import draw_world

# What is timed: where a name is looked up, the name, and the phase.
PHASES = (
    ("wayfare.engine.cuda_graphs", "minibatches", "minibatches"),
    ("wayfare.device.contact", "make_offer", "offer (norm)"),
    ("wayfare.device.contact", "decide", "decide"),
    ("wayfare.device.contact", "spectrum", "spectrum"),
    ("wayfare.device.contact", "profile", "profile of widths"),
    ("wayfare.device.contact", "transmit", "send"),
    ("wayfare.device.contact", "_selected", "top-k"),
    ("wayfare.codec.fitting", "measure", "measure message"),
)
METHODS: tuple[tuple[type, str, str], ...] = (
    (Simulation, "_contacts", "contacts, other"),
    (Simulation, "_evaluation", "evaluation"),
    (CudaGraphs, "run", "launch local steps"),
    (ServerSide, "use_arrivals", "server"),
    (ServerSide, "end_round", "server, end of round"),
    (DeviceSide, "receive", "receive"),
    (DeviceSide, "arrival", "arrival"),
)
WAIT = "wait for local steps"


@dataclass(slots=True)
class Phases:
    """Seconds of every phase without the phases inside it, and calls."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)
    steps: int = 0  # local steps of single devices
    launches: list[list[int]] = field(default_factory=list)  # the steps of each burst, of every call of the engine
    _inside: list[float] = field(default_factory=list)

    def around(self, work: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **settings: Any) -> Any:
            with self.phase(name):
                return work(*arguments, **settings)

        return timed

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        self._inside.append(0.0)
        with record_function(f"phase {name}"):
            try:
                yield
            finally:
                took = time.perf_counter() - began
                self.seconds[name] += took - self._inside.pop()
                self.calls[name] += 1
                if self._inside:
                    self._inside[-1] += took


@contextmanager
def watched(phases: Phases, *, wait: bool) -> Iterator[None]:
    """Time every phase; wait for local steps before contacts if asked."""
    meet, run = Trainer.meet, Trainer._run

    def waiting(trainer: Trainer, devices: Sequence[int], round_: int) -> None:
        meet(trainer, devices, round_)
        if wait:
            with phases.phase(WAIT):
                torch.cuda.synchronize()

    def counting(trainer: Trainer, until: dict[int, int]) -> None:
        steps = [round_ - trainer._done[device] for device, round_ in until.items() if round_ > trainer._done[device]]
        phases.steps += sum(steps)
        phases.launches.append(steps)
        run(trainer, until)

    with ExitStack() as stack:
        for module, name, phase in PHASES:
            # `patch` would find the function `wayfare.device.contact` instead of its module.
            owner = import_module(module)
            stack.enter_context(patch.object(owner, name, phases.around(getattr(owner, name), phase)))
        for kind, name, phase in METHODS:
            stack.enter_context(patch.object(kind, name, phases.around(getattr(kind, name), phase)))
        stack.enter_context(patch.object(Trainer, "meet", waiting))
        stack.enter_context(patch.object(Trainer, "_run", counting))
        yield


@contextmanager
def counted_waits(waits: Counter[str]) -> Iterator[None]:
    """Count the lines of our code whose call makes the host wait for the GPU."""
    show = warnings.showwarning

    def note(message: Warning | str, *others: Any, **more: Any) -> None:
        if "synchroniz" not in str(message):
            show(message, *others, **more)
            return
        ours = [frame for frame in traceback.extract_stack() if "/wayfare/" in frame.filename]
        waits[f"{ours[-1].filename.rpartition('/wayfare/')[2]}:{ours[-1].lineno}" if ours else "elsewhere"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
            warnings.showwarning = show


class StopError(Exception):
    """Ends a run at a round."""


class Until(Observed):
    """Calls back at the end of rounds, and ends the run."""

    def __init__(self, at: dict[int, Callable[[], None]], last: int) -> None:
        super().__init__()
        self._at, self._last = at, last

    def on_round(self, round_: int) -> None:
        if round_ in self._at:
            self._at[round_]()
        if round_ == self._last:
            raise StopError


def scenario_at(speed_mps: float) -> Scenario:
    return wayfare.load(
        "paper-cifar10-waypoint", [f"mobility.speed_mps={speed_mps}", "learning.evaluate_every_rounds=100"]
    )


def profiled(scheme: str, speed_mps: float, rounds: int, compute: Compute) -> dict[str, Any]:
    """A run in four parts: warm-up, timed as it is, timed by phase, and watched by the profiler."""
    scenario = scenario_at(speed_mps)
    with patch("wayfare.world.draw.load_task", lambda _: random_images()):
        world = draw_world(scenario, 0)
    warm, plain, phased, short = (round(share * rounds) for share in (0.15, 0.5, 0.9, 1.0))
    stack, phases, waits, marks = ExitStack(), Phases(), Counter[str](), {}
    counted, profiler = Phases(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

    def mark(name: str) -> None:
        torch.cuda.synchronize()
        marks[name] = time.perf_counter(), observer.contacts

    def from_warm() -> None:
        mark("warm")
        stack.enter_context(watched(counted, wait=False))

    def from_plain() -> None:
        mark("plain")
        stack.close()
        stack.enter_context(watched(phases, wait=True))

    def from_phased() -> None:
        mark("phased")
        stack.close()
        stack.enter_context(counted_waits(waits))
        stack.enter_context(watched(Phases(), wait=True))
        profiler.start()

    observer = Until({warm: from_warm, plain: from_plain, phased: from_phased}, short)
    began = time.perf_counter()
    simulation = Simulation(world, make_method(scheme, scenario), observer, compute=compute)
    torch.cuda.synchronize()
    ready_s = time.perf_counter() - began
    try:
        simulation.run()
    except StopError:
        torch.cuda.synchronize()
        mark("short")
    profiler.stop()
    stack.close()
    alone_s = engine_alone(simulation, counted)
    found = shares(marks, phases, counted, alone_s, (plain - warm, phased - plain))
    found |= {"scheme": scheme, "speed_mps": speed_mps, "ready_s": ready_s, "engine": simulation.engine}
    contacts = max(marks["short"][1] - marks["phased"][1], 1)
    found["waits_per_contact"] = {where: count / contacts for where, count in waits.most_common(25)}
    found["profile"] = kernels(profiler, contacts, marks["short"][0] - marks["phased"][0])
    print_one(found)
    return found


def engine_alone(simulation: Simulation, counted: Phases) -> float:
    """Seconds of the same bursts without contacts, launched as in the run."""
    engine: Engine = simulation._trainer._engine
    model = simulation._initial
    vectors = [model.clone() for _ in range(20)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    with simulation._compute.numerics():
        for steps in counted.launches:
            bursts = [Burst(device, 1, count) for device, count in enumerate(steps[:20])]
            engine.run(vectors[: len(bursts)], bursts)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def shares(
    marks: dict[str, tuple[float, int]], phases: Phases, counted: Phases, alone_s: float, rounds: tuple[int, int]
) -> dict[str, Any]:
    plain_s, phased_s = (marks[last][0] - marks[first][0] for first, last in (("warm", "plain"), ("plain", "phased")))
    contacts = max(marks["plain"][1] - marks["warm"][1], 1), max(marks["phased"][1] - marks["plain"][1], 1)
    seconds = dict(phases.seconds)
    seconds["loop, records"] = phased_s - sum(seconds.values())
    return {
        "plain": {
            "rounds": rounds[0],
            "contacts": contacts[0],
            "ms_per_round": 1e3 * plain_s / rounds[0],
            "steps_of_devices": counted.steps,
            "engine_calls": len(counted.launches),
            "engine_alone_ms_per_round": 1e3 * alone_s / rounds[0],
            "ratio": plain_s / alone_s,
            "ms_per_contact_beyond_engine": 1e3 * (plain_s - alone_s) / contacts[0],
        },
        "phased": {
            "rounds": rounds[1],
            "contacts": contacts[1],
            "ms_per_round": 1e3 * phased_s / rounds[1],
            "share": {name: part / phased_s for name, part in seconds.items()},
            "ms_per_contact": {name: 1e3 * part / contacts[1] for name, part in seconds.items()},
            "ms_per_call": {name: 1e3 * part / max(phases.calls[name], 1) for name, part in seconds.items()},
            "calls": dict(phases.calls),
        },
    }


def kernels(profiler: profile, contacts: int, wall_s: float) -> dict[str, Any]:
    """The share of time in which any kernel ran, and the most expensive calls on the host, outside the phases."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("phase")
    )
    busy_us, until = 0.0, float("-inf")
    for start, end in spans:
        busy_us += max(0.0, end - max(start, until))
        until = max(until, end)
    host = [row for row in profiler.key_averages() if not row.key.startswith("phase")]
    host.sort(key=lambda row: -row.self_cpu_time_total)
    return {
        "kernels_busy": busy_us / 1e6 / wall_s,
        "kernels_per_contact": len(spans) / contacts,
        "host_calls": [
            {"name": row.key, "self_ms_per_contact": row.self_cpu_time_total / 1e3 / contacts, "calls": row.count}
            for row in host[:25]
        ],
    }


def print_one(found: dict[str, Any]) -> None:
    plain, phased = found["plain"], found["phased"]
    print(
        f"\n{found['scheme']} at {found['speed_mps']} m/s ({found['engine']}, ready in {found['ready_s']:.1f} s):"
        f" {plain['ms_per_round']:.2f} ms a round, engine alone {plain['engine_alone_ms_per_round']:.2f} ms,"
        f" ratio {plain['ratio']:.2f}; {plain['contacts']} contacts in {plain['rounds']} rounds,"
        f" {plain['ms_per_contact_beyond_engine']:.2f} ms per contact beyond the engine;"
        f" {plain['steps_of_devices']} steps in {plain['engine_calls']} calls"
    )
    print(f"{'phase (waiting after local steps)':>34} {'share':>6} {'ms/contact':>11} {'ms/call':>8} {'calls':>6}")
    for name, share in sorted(phased["share"].items(), key=lambda each: -each[1]):
        per_contact, per_call = phased["ms_per_contact"][name], phased["ms_per_call"][name]
        print(f"{name:>34} {share:6.1%} {per_contact:11.3f} {per_call:8.3f} {phased['calls'].get(name, 0):6}")
    print("the host waits, per contact: " + ", ".join(f"{at} {n:.2f}" for at, n in found["waits_per_contact"].items()))
    seen = found["profile"]
    print(f"kernels run {seen['kernels_busy']:.0%} of the time, {seen['kernels_per_contact']:.0f} per contact; host:")
    for row in seen["host_calls"][:16]:
        print(f"{row['name'][:60]:>60} {row['self_ms_per_contact']:8.3f} ms per contact, {row['calls']} calls")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", nargs="+", default=["mads-rd", "mads"])
    parser.add_argument(
        "--speeds", nargs="+", type=float, default=[40.0, 20.0], help="metres per second, one per scheme"
    )
    parser.add_argument("--precision", default="tf32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--rounds", type=int, default=240)
    parser.add_argument("--out", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    compute = Compute.named("cuda", arguments.precision)
    rows = []
    for scheme, speed_mps in zip(arguments.schemes, arguments.speeds, strict=True):
        rows.append(profiled(scheme, speed_mps, arguments.rounds, compute))
        torch.cuda.empty_cache()
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
