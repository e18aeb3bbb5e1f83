"""The cost of a round of local steps: a plain loop, stacks, captured graphs, kernels over all devices, one model.

    python benchmarks/rounds.py [--device cuda] [--precision tf32 fp32] [--only LaneGCN] [--ways batched graphs]
                                [--scenes FILE] [--json FILE]

In a round each of 20 devices takes one SGD step with its own model on its own minibatch of 32. The
plain loop is the obvious code: for every device a module, an optimiser, `backward` and `step`. One model with batch
20 x 32 does the same arithmetic without separate models: an upper limit. All alternate in
one run, so that other load on the machine affects them equally, and the median counts.

On a GPU the models are ResNet-9, LaneGCN and trained parts of EfficientNet-Lite0, and the result is milliseconds of
wall time per round. On a CPU it is device-steps per CPU second, with one thread, of several models. LaneGCN takes
minibatches of 16 scenes: synthetic ones, or the larger ones of a file of prepared scenes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from wayfare.engine import Burst, Compute, Engine, LocalTraining, make_engine
from wayfare.engine.batched.support import obstacle
from wayfare.engine.cuda_graphs import CudaGraphs, Recipe, best_recipe
from wayfare.engine.lanegcn.engine import StackedLaneGcn, best_packing
from wayfare.engine.lanegcn.scenes import Packing
from wayfare.learning.argoverse.cache import load_prepared
from wayfare.learning.argoverse.scenes import SceneSettings
from wayfare.learning.argoverse.synthetic import synthetic_scenes
from wayfare.learning.backbones import Backbone
from wayfare.learning.backbones.efficientnet_lite0 import DEVIATION, FEATURES, MEAN, EfficientNetLite0
from wayfare.learning.batches import Batches
from wayfare.learning.models.base import Model
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.lanegcn import LaneGcn
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.models.tuned import Tuned, Tuning
from wayfare.learning.tasks import Classification
from wayfare.learning.tasks.argoverse import Forecasting, forecasting
from wayfare.learning.tasks.tuned import TunedClassification, from_activations
from wayfare.scenario.model import Trained

DEVICES, BATCH, ROUNDS = 20, 32, 400


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its inputs, and the goal for the ratio of the best engine to the plain loop."""

    name: str
    model: Model
    shape: tuple[int, ...]
    goal: float
    steps: int = 12
    repeats: int = 7
    batch: int = BATCH
    graphs: bool = True  # whether a step can be captured, which needs inputs of one size


def tuned_cases(
    numbers: Sequence[int] = (1, 2, 4, 5, 7, 8), *, everything: bool = True, steps: int = 12, repeats: int = 5
) -> tuple[Case, ...]:
    """Trained parts of EfficientNet-Lite0 with random weights, on images of 160 pixels or their activations.

    Activations are (height, width, channels). Everything starts from bytes of 32 x 32 pixels, as of CIFAR-10.
    """
    network = EfficientNetLite0()
    scale = (MEAN,) * 3, (DEVIATION,) * 3
    backbone = Backbone(
        name="random", module=network, features=FEATURES, mean=scale[0], deviation=scale[1], chain=network.chain
    )
    shapes = {
        1: (5, 5, 320),
        2: (5, 5, 192),
        4: (5, 5, 192),
        5: (5, 5, 192),
        7: (10, 10, 112),
        8: (10, 10, 112),
        11: (10, 10, 80),
    }
    ways: tuple[Trained, ...] = ("norms", "adapters", "last-block")

    def case(trained: Trained, blocks: int, shape: tuple[int, ...], steps: int, repeats: int) -> Case:
        tuning = Tuning(trained=trained, blocks=blocks, rank=8, alpha=16.0)
        return Case(
            name=f"EfficientNet-Lite0 {trained} {blocks}",
            model=Tuned(backbone=backbone, tuning=tuning, head=Mlp((backbone.features, 10))),
            shape=shape,
            goal=1.0,
            steps=steps,
            repeats=repeats,
        )

    parts = [case(trained, blocks, shapes[blocks], steps, repeats) for trained in ways for blocks in numbers]
    return (*parts, case("everything", 18, (3, 32, 32), 2, 3)) if everything else tuple(parts)


CPU_CASES = (
    Case(name="64-64-10", model=Mlp((64, 64, 10)), shape=(64,), goal=10.0, steps=48),
    Case(name="784-64-10", model=Mlp((784, 64, 10)), shape=(784,), goal=4.0, steps=48),
    Case(name="196-256-128-10", model=Mlp((196, 256, 128, 10)), shape=(196,), goal=3.0, steps=48),
    Case(name="small CNN 28x28", model=SmallCnn(), shape=(1, 28, 28), goal=1.4, repeats=5),
    Case(name="small CNN 14x14", model=SmallCnn(image=(1, 14, 14)), shape=(1, 14, 14), goal=1.4, repeats=5),
    Case(name="ResNet-9", model=Resnet9(), shape=(3, 32, 32), goal=1.3, steps=1, repeats=3),
    Case(name="LaneGCN", model=LaneGcn(), shape=(), goal=1.0, steps=1, repeats=3, batch=16, graphs=False),
    Case(name="head 1280-10", model=Mlp((1280, 10)), shape=(1280,), goal=3.0, steps=48),
)
GPU_CASES = (
    Case(name="ResNet-9", model=Resnet9(), shape=(3, 32, 32), goal=5.0, steps=12, repeats=5),
    Case(name="LaneGCN", model=LaneGcn(), shape=(), goal=10.0, steps=4, repeats=5, batch=16, graphs=False),
)


def job(case: Case, compute: Compute, samples: int, scenes: Path | None) -> LocalTraining:
    task: Classification | Forecasting | TunedClassification
    if isinstance(case.model, Tuned):
        task = tuned_task(case.model, case.shape, 2_000)
    else:
        task = random_task(case.model, case.shape, samples) if case.shape else forecast_task(case.model, scenes)
    rng = np.random.default_rng(0)
    held = [rng.integers(0, len(task.class_of_samples()), 500) for _ in range(DEVICES)]
    batches = Batches(held, case.batch, ROUNDS, seed=0)
    return LocalTraining(task=task.to(compute.device), batches=batches, learning_rate=0.01, compute=compute)


def forecast_task(model: Model, scenes: Path | None) -> Forecasting:
    """Prepared scenes of a file, or synthetic ones."""
    assert isinstance(model, LaneGcn)
    return forecasting(load_prepared(scenes) if scenes else synthetic_scenes(400, 1, SceneSettings()), model)


def random_task(model: Model, shape: tuple[int, ...], samples: int) -> Classification:
    """Random inputs and labels."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.standard_normal((samples, *shape), dtype=np.float32))
    labels = torch.from_numpy(rng.integers(0, 10, samples))
    return Classification(
        name="random",
        model=model,
        classes=10,
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs[:1],
        test_labels=labels[:1],
    )


def tuned_task(model: Tuned, shape: tuple[int, ...], samples: int) -> TunedClassification:
    """Random activations, or images if everything is trained, and labels."""
    rng = np.random.default_rng(0)
    prepare: Callable[[Tensor], Tensor] = from_activations
    if model.cut:
        stored = torch.from_numpy(rng.standard_normal((samples, *shape), dtype=np.float32)).half()
    else:
        stored = torch.from_numpy(rng.integers(0, 256, (samples, *shape), dtype=np.uint8))
        prepare = partial(model.backbone.prepare, pixels=160)
    labels = torch.from_numpy(rng.integers(0, 10, samples))
    return TunedClassification(
        name="random",
        model=model,
        classes=10,
        class_names=(),
        train_stored=stored,
        train_labels=labels,
        test_stored=stored[:1],
        test_labels=labels[:1],
        prepare=prepare,
        on_features=partial(random_task, model.head, (model.backbone.features,), samples),
    )


def plain_loop(local: LocalTraining) -> Callable[[int], None]:
    """Modules and optimisers, one device after another."""
    where, task = local.compute.device, local.task
    modules = [task.model.module().to(where) for _ in range(DEVICES)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=local.learning_rate) for module in modules]
    batches = [torch.from_numpy(local.batches.of(device, 1, ROUNDS)).to(where) for device in range(DEVICES)]

    def run(steps: int) -> None:
        with local.compute.numerics():
            for step in range(steps):
                for device in range(DEVICES):
                    optimisers[device].zero_grad()
                    task.loss(modules[device], batches[device][step]).backward()
                    optimisers[device].step()

    return run


def one_model(local: LocalTraining) -> Callable[[int], None]:
    """One model on the samples of all devices at once."""
    where, task = local.compute.device, local.task
    module = task.model.module().to(device=where, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(module.parameters(), lr=local.learning_rate)
    tables = [local.batches.of(device, 1, ROUNDS) for device in range(DEVICES)]
    batches = torch.from_numpy(np.concatenate(tables, axis=1)).to(where)

    def run(steps: int) -> None:
        with local.compute.numerics():
            for step in range(steps):
                optimiser.zero_grad()
                task.loss(module, batches[step]).backward()
                optimiser.step()

    return run


def engine(runner: Engine, local: LocalTraining) -> Callable[[int], None]:
    """An engine, called with as many steps at a time as in the simulator."""
    initial = local.task.model.initial(np.random.default_rng(0)).to(local.compute.device)
    models = [initial.clone() for _ in range(DEVICES)]

    def run(steps: int) -> None:
        for first in range(0, steps, 12):
            count = min(12, steps - first)
            runner.run(models, [Burst(device, first + 1, count) for device in range(DEVICES)])

    return run


def timed(work: Callable[[int], None], steps: int, *, cuda: bool) -> float:
    """Seconds per round: wall time on a GPU, CPU time on a CPU."""
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter() if cuda else time.process_time()
    work(steps)
    if cuda:
        torch.cuda.synchronize()
    return ((time.perf_counter() if cuda else time.process_time()) - began) / steps


def measure(case: Case, ways: Mapping[str, Callable[[int], None]], *, cuda: bool) -> dict[str, dict[str, float]]:
    """Median seconds per round of every variant, and its median ratio to the plain loop."""
    for work in ways.values():
        work(min(case.steps, 3))
    rounds = [{name: timed(work, case.steps, cuda=cuda) for name, work in ways.items()} for _ in range(case.repeats)]
    return {
        name: {
            "seconds_per_round": statistics.median(row[name] for row in rounds),
            "ratio": statistics.median(row["plain loop"] / row[name] for row in rounds),
        }
        for name in ways
    }


_Way = TypeVar("_Way", Recipe, Packing)


def changed(way: _Way, text: str) -> _Way:
    """A recipe or a packing with other settings, as in ``slots=5,compiled=0``."""
    settings = dict(setting.split("=") for setting in text.split(","))
    kinds = {entry.name: type(getattr(way, entry.name)) for entry in fields(way)}
    return replace(way, **{name: kinds[name](int(value)) for name, value in settings.items()})


def on_gpu(settings: argparse.Namespace) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    fast: bool = settings.fast
    for case in chosen((*GPU_CASES, *tuned_cases()), settings.only):
        for precision in settings.precision:
            local = job(case, Compute.named("cuda", precision, fast=fast), 50_000, settings.scenes)
            began = time.perf_counter()
            ways = gpu_ways(case, local, settings)
            ready_s = time.perf_counter() - began
            found = measure(case, ways, cuda=True)
            print(f"{case.name}, {precision}{', fast' if fast else ''} (made ready in {ready_s:.1f} s)")
            print(f"{'':>38} {'ms a round':>11} {'times plain':>12}")
            for name, row in found.items():
                print(f"{name:>38} {1e3 * row['seconds_per_round']:11.2f} {row['ratio']:12.2f}", flush=True)
                rows.append({"model": case.name, "precision": precision, "fast": fast, "way": name, **row})
            del ways
            torch.cuda.empty_cache()
    return rows


def gpu_ways(case: Case, local: LocalTraining, settings: argparse.Namespace) -> dict[str, Callable[[int], None]]:
    """The plain loop, with which all are compared, and what is asked for."""
    makers: dict[str, Callable[[], Callable[[int], None]]] = {
        "stacked": lambda: engine(make_engine("stacked", local), local)
    }
    if case.graphs:
        makers["graphs"] = lambda: engine(CudaGraphs(local), local)
        reason = obstacle(local)
        if reason is None:
            makers["batched"] = lambda: engine(make_engine("batched", local), local)
        elif "batched" in (settings.ways or []):
            print(f"batched does not work here: {reason}")
    makers["one model"] = lambda: one_model(local)
    asked = settings.ways or list(makers)
    ways = {"plain loop": plain_loop(local)} | {name: makers[name]() for name in makers if name in asked}
    if case.graphs:
        recipes = {text: changed(best_recipe(local), text) for text in settings.recipes}
        ways |= {f"graphs, {text}": engine(CudaGraphs(local, recipe), local) for text, recipe in recipes.items()}
    else:
        ways |= {f"stacked, {text}": engine(packed(local, text), local) for text in settings.packings}
    return ways


def packed(local: LocalTraining, text: str) -> Engine:
    return StackedLaneGcn(local, changed(best_packing(local), text))


def chosen(cases: Sequence[Case], only: str | None) -> list[Case]:
    return [case for case in cases if not only or only in case.name]


def on_cpu(settings: argparse.Namespace) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    print(
        f"{'device-steps per CPU s':>22} {'plain loop':>11} {'stacked':>9} {'one model':>10} {'ratio':>6} {'goal':>5}"
    )
    for case in chosen((*CPU_CASES, *tuned_cases((1, 2), everything=False, steps=1, repeats=3)), settings.only):
        local = job(case, Compute(), 2_000, settings.scenes)
        ways = {
            "plain loop": plain_loop(local),
            "stacked": engine(make_engine("auto", local), local),
            "one model": one_model(local),
        }
        found = measure(case, ways, cuda=False)
        per_s = {name: DEVICES / row["seconds_per_round"] for name, row in found.items()}
        print(
            f"{case.name:>22} {per_s['plain loop']:11,.1f} {per_s['stacked']:9,.1f} {per_s['one model']:10,.1f}"
            f" {found['stacked']['ratio']:6.2f} {case.goal:5}",
            flush=True,
        )
        rows += [{"model": case.name, "goal": case.goal, "way": name, **row} for name, row in found.items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cpu or cuda")
    parser.add_argument("--precision", nargs="+", default=["tf32", "fp32", "bf16"], choices=["fp32", "tf32", "bf16"])
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=["stacked", "graphs", "batched", "one model"],
        help="only these on a GPU, beside the plain loop; all by default",
    )
    parser.add_argument(
        "--recipes", nargs="+", default=[], help="other ways to make graphs: slots=5,unfold_pixels=256 compiled=0 ..."
    )
    parser.add_argument(
        "--packings",
        nargs="+",
        default=[],
        help="other ways to lay out scenes: pair_rows=0 pair_rows=1024,tile=256 ...",
    )
    parser.add_argument("--fast", action="store_true", help="without deterministic algorithms")
    parser.add_argument("--only", help="only models whose name contains this text")
    parser.add_argument("--scenes", type=Path, help="a file of prepared scenes for LaneGCN instead of synthetic ones")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    compute = Compute.named(arguments.device)
    torch.set_num_threads(1)
    cuda = compute.device.type == "cuda"
    machine = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
    print(f"{machine}, torch {torch.__version__}, {DEVICES} devices, batch {BATCH} (LaneGCN: 16)")
    rows = on_gpu(arguments) if cuda else on_cpu(arguments)
    if arguments.json:
        table = {"machine": machine, "torch": torch.__version__, "rows": rows}
        arguments.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
