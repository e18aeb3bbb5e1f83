"""What the host does in a run on a GPU: Python and NumPy at contacts, and the schedule of local steps. Needs no GPU.

    python benchmarks/contact_host.py [--scheme mads-rd] [--speed 40] [--rounds 50] [--alone] [--json FILE]

The world, the network and the schedule are those of `benchmarks/full_run.py`. A first run does on the CPU what a GPU
would do: operations on vectors, kernels, in the place of which plain versions run, and local steps, which add a
heavy-tailed direction to the model. Further runs replay these results from memory and measure the rest, as CPU time of
one thread: medians over the runs. Between contacts the caches of the core are emptied. The work of launching kernels
and waits for a GPU are not in the figures. Helper processes compute profiles (`wayfare.codec.helpers`), so that only
the cost of asking them counts, not the wait for an answer; with `--alone` the host does everything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

import wayfare
from full_run import Counter, random_images
from wayfare.codec import gpu_kernels as codec_kernels
from wayfare.codec import helpers, length
from wayfare.control import spectrum as control_spectrum
from wayfare.engine import Burst, Compute, Trainer
from wayfare.engine.base import LocalTraining, Overlapping, Ready, longest_first
from wayfare.engine.batched.engine import Batched
from wayfare.engine.batched.table import StepTable
from wayfare.engine.choice import Choice
from wayfare.methods import Method, make_method
from wayfare.simulator import ContactEvent, Simulation
from wayfare.simulator.device_side import DeviceSide
from wayfare.simulator.server_side import ServerSide
from wayfare.sparsify import gpu, gpu_kernels, gpu_largest, spectrum, topk
from wayfare.waiting import Arriving
from wayfare.world import World, draw_world

# The module, whose name in its package is that of the function.
contact = import_module("wayfare.device.contact")
# Longer tensors are vectors, which stay on a GPU; what it sends to the host is shorter.
LONG = 100_000
# More than the cache of a core, less than the cache that cores share.
COOLED_BYTES = 2 << 20
# Functions on vectors, which a GPU runs beside the host.
VECTOR_WORK: tuple[tuple[object, str], ...] = (
    *((Tensor, name) for name in ("__add__", "__sub__", "__mul__", "__rmul__", "__setitem__")),
    *(
        (Tensor, name)
        for name in (
            "add_",
            "clone",
            "contiguous",
            "copy_",
            "cpu",
            "index_add",
            "index_add_",
            "square_",
            "sub_",
            "sum",
            "to",
        )
    ),
    (torch, "cat"),
)
# What the host does, as functions whose time is counted, without the functions inside them.
PARTS: tuple[tuple[object, str, str], ...] = (
    (Simulation, "_contacts", "rounds"),
    (Trainer, "_train", "schedule"),
    (Batched, "_rows", "minibatches"),
    (StepTable, "fill", "minibatches"),
    (Simulation, "_use", "states and events"),
    (DeviceSide, "contacts", "contact"),
    (control_spectrum, "spectrum_of", "spectrum"),
    (helpers, "profile", "widths"),
    (contact, "begun", "helpers"),
    (contact, "decide", "decide"),
    (length, "_index_bytes", "message lengths"),
    (length, "_value_bytes", "message lengths"),
    (ServerSide, "use_arrivals", "server"),
)


class GpuWork:
    """Work of a GPU: done once with the clock stopped, then replayed from memory, which leaves the caches alone."""

    def __init__(self) -> None:
        self._stopped_s, self._depth = 0.0, 0
        self._results: list[Any] = []
        self._replayed: int | None = None
        self._other = np.zeros(COOLED_BYTES // 8)

    def seconds(self) -> float:
        """CPU time of this thread without the work of a GPU."""
        return time.thread_time() - self._stopped_s

    def replay(self) -> None:
        self._replayed = 0

    def __call__(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def work_stopped(*arguments: Any, **settings: Any) -> Any:
            if self._depth:
                return work(*arguments, **settings)
            began = time.thread_time()
            if self._replayed is not None:
                result = self._results[self._replayed]
                self._replayed += 1
                self._stopped_s += time.thread_time() - began
                return arguments[0] if result is _ITSELF else result
            self._depth += 1
            result = _computed(work(*arguments, **settings))
            self._results.append(_ITSELF if arguments and result is arguments[0] else _small(result))
            self._depth -= 1
            self._stopped_s += time.thread_time() - began
            return result

        return work_stopped

    def await_helper(self, begin: Callable[..., Arriving[Any]]) -> Callable[..., Arriving[Any]]:
        """Begin work of a helper process, and wait for it with the clock stopped: a run has other work meanwhile."""

        def begin_and_wait(*arguments: Any) -> Arriving[Any]:
            work, began = begin(*arguments), time.thread_time()
            while not work.is_here():
                time.sleep(1e-5)
            self._stopped_s += time.thread_time() - began
            return work

        return begin_and_wait

    def cool_caches(self) -> None:
        """Other work between contacts, of which the host has enough in a run."""
        began = time.thread_time()
        self._other += 1.0
        self._stopped_s += time.thread_time() - began


_ITSELF = object()


def _computed(result: Any) -> Any:
    """A result whose functions only return what they would compute."""
    if isinstance(result, tuple):
        return tuple(map(_computed, result))
    if isinstance(result, Arriving):
        value = _computed(result())
        return Arriving(lambda: value)
    if callable(result):
        value = _computed(result())
        return lambda: value
    return result


def _small(result: Any) -> Any:
    """A result without the content of long vectors, which the host never sees."""
    if isinstance(result, tuple):
        return tuple(map(_small, result))
    if isinstance(result, Arriving):
        value = _small(result())
        return Arriving(lambda: value)
    if callable(result):
        value = _small(result())
        return lambda: value
    if isinstance(result, Tensor) and result.numel() > LONG:
        return result.new_zeros(()).expand(result.shape)
    return result


@cache
def noise(entries: int) -> Tensor:
    """Heavy-tailed numbers, with layers of different scale."""
    rng, layers = np.random.default_rng(0), 18
    values = rng.standard_t(5, entries).astype(np.float32)
    values *= np.repeat(rng.lognormal(-7.0, 1.0, layers).astype(np.float32), -(-entries // layers))[:entries]
    return torch.from_numpy(values)


class NoEngine(Overlapping):
    """Local steps without a network: prepares minibatches as `batched` does, then adds a direction to the model."""

    ahead_steps = Batched.ahead_steps

    def __init__(self, training: LocalTraining, gpu_work: GpuWork) -> None:
        self._training, model = training, training.task.model
        self._entries, self._moved = model.parameters + model.statistics, 0
        self._noise = noise(2 * self._entries)
        self._step = gpu_work(self._take_step)
        batches = training.batches
        self._table = StepTable(batches.devices, batches.batch_size, torch.device("cpu"), augment=batches.augment)

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        self.launch(models, bursts, [None] * len(bursts))

    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> Sequence[Ready]:
        rows = [Batched._rows(self, burst) for burst in bursts]  # type: ignore[arg-type]
        longest = [rows[index] for index in longest_first(bursts)]
        self._table.fill(range(len(longest)), longest, 0)
        for model, burst in zip(models, bursts, strict=True):
            self._step(model, burst)
        return [Ended() for _ in bursts]

    def _take_step(self, model: Tensor, burst: Burst) -> None:
        self._moved = (self._moved + 7919 * 61) % self._entries
        model.add_(self._noise[self._moved : self._moved + self._entries], alpha=-0.1 * burst.rounds)


class Ended:
    def wait(self) -> None:
        pass

    def query(self) -> bool:
        return True


def norm_and_samples(vector: Tensor, segments: int, stride: int, bound: int, room: int) -> Tensor:
    """As the kernels of this name."""
    rows = vector[: len(vector) // segments * segments].view(segments, -1).abs()
    samples = rows[:, ::stride].sort().values
    tails = [row[row > bounds[bound]].sort().values for row, bounds in zip(rows, samples, strict=True)]
    numbers, found = torch.tensor([float(len(tail)) for tail in tails]), torch.zeros(room)
    joined = torch.cat(tails)[:room]
    found[: len(joined)] = joined
    norm_sq = vector.double().square().sum()
    return torch.cat([samples.flatten(), found, numbers, norm_sq.view(1).view(torch.float32)])


def extended(indices: Tensor, values: Tensor, vector: Tensor, parameters: int) -> tuple[Tensor, Tensor]:
    """As the kernel of this name, in new memory."""
    return torch.cat([indices, torch.arange(parameters, len(vector))]), torch.cat([values, vector[parameters:]])


def counted(
    indices: Tensor, values: Tensor, chosen: int, bits: Any, *, with_gaps: bool
) -> Arriving[tuple[Any, Any, Callable[[], Tensor]]]:
    """As the kernel of this name."""
    codes, decode = length._quantised(values[:chosen], bits)
    of_gaps = length._gap_counts(indices[:chosen]).numpy() if with_gaps else np.zeros(0, np.int64)
    decoded = torch.cat([decode(), values[chosen:]])
    return Arriving(lambda: (torch.bincount(codes, minlength=1 << bits).numpy(), of_gaps, lambda: decoded))


def largest(vector: Tensor, k: int) -> tuple[Tensor, Tensor]:
    indices = topk._largest_by_threshold(vector, k)
    return indices, vector[indices]


@contextmanager
def on_a_gpu(gpu_work: GpuWork) -> Iterator[None]:
    """The algorithms of a GPU, with its work not counted."""
    with ExitStack() as stack:

        def put(place: object, name: str, work: Callable[..., Any]) -> None:
            stack.enter_context(patch.object(place, name, work))

        for place, name in VECTOR_WORK:
            put(place, name, gpu_work(getattr(place, name)))
        put(spectrum, "_is_on_gpu", lambda _: True)
        put(gpu, "has_kernels", lambda _: True)
        put(gpu_largest, "largest", gpu_work(largest))
        put(gpu_kernels, "squared_norm", gpu_work(lambda vector: vector.double().square().sum()))
        put(gpu_kernels, "norm_and_samples", gpu_work(norm_and_samples))
        put(gpu_kernels, "extended", gpu_work(extended))
        put(codec_kernels, "counted", counted)
        put(length, "_counted", gpu_work(length._counted))
        put(contact, "begun", gpu_work.await_helper(contact.begun))
        yield


@contextmanager
def timed_parts(gpu_work: GpuWork, seconds: dict[str, float], calls: dict[str, int]) -> Iterator[None]:
    """Count the seconds and calls of every part, without the parts inside it."""
    inside: list[float] = []

    def timed(work: Callable[..., Any], part: str) -> Callable[..., Any]:
        def work_timed(*arguments: Any, **settings: Any) -> Any:
            began = gpu_work.seconds()
            inside.append(0.0)
            try:
                return work(*arguments, **settings)
            finally:
                took_s = gpu_work.seconds() - began
                seconds[part] += took_s - inside.pop()
                calls[part] += 1
                if inside:
                    inside[-1] += took_s

        return work_timed

    with ExitStack() as stack:
        for place, name, part in PARTS:
            stack.enter_context(patch.object(place, name, timed(getattr(place, name), part)))
        yield


class EnoughError(Exception):
    """Enough rounds."""


class Rounds(Counter):
    """Stops a run after some rounds, and cools the caches before every one."""

    def __init__(self, rounds: int, gpu_work: GpuWork) -> None:
        super().__init__()
        self._rounds, self._gpu_work = rounds, gpu_work

    def on_contact(self, event: ContactEvent) -> None:
        super().on_contact(event)
        self._gpu_work.cool_caches()

    def on_round(self, round_: int) -> None:
        self._gpu_work.cool_caches()
        if round_ == self._rounds:
            raise EnoughError


def run(world: World, method: Method, gpu_work: GpuWork, rounds: int) -> tuple[dict[str, float], dict[str, int]]:
    """The milliseconds and calls of every part."""
    observer, seconds, calls = Rounds(rounds, gpu_work), defaultdict[str, float](float), defaultdict[str, int](int)
    with patch(
        "wayfare.simulator.loop.choose_engine", lambda _, training: Choice("none", NoEngine(training, gpu_work))
    ):
        simulation = Simulation(world, method, observer, compute=Compute())
    with (
        patch.object(Simulation, "_evaluation", lambda *_: None),
        on_a_gpu(gpu_work),
        timed_parts(gpu_work, seconds, calls),
        suppress(EnoughError),
    ):
        simulation.run()
    calls["contacts"] = observer.contacts
    return defaultdict(float, {part: 1e3 * part_s for part, part_s in seconds.items()}), calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--scheme", default="mads-rd")
    parser.add_argument("--speed", type=float, default=40.0, help="metres per second")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="without helper processes")
    parser.add_argument("--set", nargs="*", default=[], help="more settings, such as control.weight=auto")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scenario = wayfare.load("paper-cifar10-waypoint", [f"mobility.speed_mps={arguments.speed}", *arguments.set])
    with patch("wayfare.world.draw.load_task", lambda _: random_images()):
        world = draw_world(scenario, 0)
    helpers.expect(0 if arguments.alone else scenario.rounds)
    gpu_work, method = GpuWork(), make_method(arguments.scheme, scenario)
    found = []
    for _ in track(range(arguments.repeats + 1), "runs", console=Console(stderr=True), transient=True):
        found.append(run(world, method, gpu_work, arguments.rounds))
        gpu_work.replay()
    calls = found[1][1]
    contacts = calls["contacts"]
    parts_ms = {part: statistics.median(ms[part] for ms, _ in found[1:]) / contacts for part in found[1][0]}
    contact_ms = statistics.median(sum(ms.values()) for ms, _ in found[1:]) / contacts
    print(f"{arguments.scheme}, {arguments.speed:g} m/s, {arguments.rounds} rounds, {contacts} contacts")
    print(f"host: {contact_ms:.2f} ms per contact, {contact_ms * contacts / arguments.rounds:.2f} ms per round")
    for part, part_ms in sorted(parts_ms.items(), key=lambda item: -item[1]):
        print(f"  {part:<18} {part_ms:6.3f} ms per contact, {calls[part] / contacts:4.1f} calls")
    if arguments.json:
        figures = {"contacts": contacts, "contact_ms": contact_ms, "parts_ms": parts_ms}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
