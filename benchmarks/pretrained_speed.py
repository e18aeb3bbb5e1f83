"""The speed of pre-trained features on a CPU: a head beside the embedded default, features, and class statistics.

    python benchmarks/pretrained_speed.py [--images 500 1500] [--pixels 160] [--json FILE]

A head on cached features must train at least as fast as the network of the embedded default. Both take SGD steps of 20
devices on minibatches of 32 with one thread, in turn, and the median ratio of their CPU times counts.

Features of 50,000 images at 160 pixels must take less than 30 minutes on two cores. EfficientNet-Lite0 gets random
images, as many as the first number and then as many as the second, with all cores, through the cache. The time for
50,000 images follows from the second. Memory is bounded if more images do not raise its peak.

A device-step of more than the head is one of `pretrained-cifar10` on a CPU: a minibatch of 32, images of 160 pixels or
their activations, EfficientNet-Lite0 with random weights.

The server solves for the classifier of class statistics: for `statistics` when it is evaluated, and where devices train
on, whenever sums arrive. Sums are those of 20 devices with random vectors of 1,280 features.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rounds import job, random_task, tuned_cases
from wayfare.engine import Burst, Compute, LocalTraining, make_engine
from wayfare.forking import available_cores
from wayfare.learning.backbones import features_of, load_backbone
from wayfare.learning.batches import Batches
from wayfare.learning.data import ImageArrays
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.sums import Sums, collect, linear_classifier
from wayfare.methods import Collection

DEVICES, BATCH, ROUNDS, SAMPLES, REPEATS = 20, 32, 48, 2_000, 11
CLASSES, FEATURES = 10, 1280
BLOCKS = 1, 4, 7, 11
EMBEDDED = "embedded default"
NETWORKS = {EMBEDDED: Mlp((196, 256, 128, 10)), "head on 256": Mlp((256, 10)), "head on 1,280": Mlp((1280, 10))}
GOAL_RATIO, GOAL_MINUTES, GOAL_IMAGES = 1.0, 30.0, 50_000


def steps_of(model: Mlp) -> Callable[[], None]:
    """Local steps of a network on random vectors, by the engine that a run uses."""
    rng = np.random.default_rng(0)
    task = random_task(model, (model.sizes[0],), SAMPLES)
    held = [rng.integers(0, SAMPLES, 500) for _ in range(DEVICES)]
    local = LocalTraining(task=task, batches=Batches(held, BATCH, ROUNDS, seed=0), learning_rate=0.01)
    engine = make_engine("auto", local)
    models = [model.initial(rng) for _ in range(DEVICES)]

    def run() -> None:
        for first in range(0, ROUNDS, 12):
            engine.run(models, [Burst(device, first + 1, 12) for device in range(DEVICES)])

    return run


def measured_heads() -> list[dict[str, object]]:
    ways = {name: steps_of(model) for name, model in NETWORKS.items()}
    for run in ways.values():
        run()
    turns = [{name: _cpu_s(run) for name, run in ways.items()} for _ in range(REPEATS)]
    rows: list[dict[str, object]] = []
    print(f"{'network':>18} {'CPU time of a device-step, ms':>30} {'times the default':>18} {'goal':>5}")
    for name in ways:
        step_ms = statistics.median(turn[name] for turn in turns) * 1e3 / (DEVICES * ROUNDS)
        ratio = statistics.median(turn[EMBEDDED] / turn[name] for turn in turns)
        print(f"{name:>18} {step_ms:30.3f} {ratio:18.2f} {'' if name == EMBEDDED else GOAL_RATIO:>5}", flush=True)
        rows.append({"network": name, "step_ms": step_ms, "ratio": ratio, "goal": GOAL_RATIO})
    return rows


def _cpu_s(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def measured_parts() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    print(f"{'trained':>38} {'entries':>10} {'CPU time of a device-step, ms':>30}")
    for case in tuned_cases(BLOCKS):
        local = job(case, Compute(), SAMPLES, None)
        engine, vector = make_engine("auto", local), local.task.model.initial(np.random.default_rng(0))
        engine.run([vector], [Burst(0, 1, 1)])
        turns = [_cpu_s(partial(engine.run, [vector], [Burst(0, round_, 1)])) for round_ in range(2, 7)]
        step_ms = statistics.median(turns) * 1e3
        print(f"{case.name:>38} {len(vector):>10,} {step_ms:30.0f}", flush=True)
        rows.append({"trained": case.name, "entries": len(vector), "step_ms": step_ms})
    return rows


def measured_classifiers() -> list[dict[str, object]]:
    rng, rows = np.random.default_rng(0), []
    labels = torch.from_numpy(np.arange(SAMPLES) % CLASSES)
    # Variances fall as those of a backbone's features do.
    scales = np.linspace(1.5, 0.1, FEATURES)
    inputs = torch.from_numpy((rng.standard_normal((SAMPLES, FEATURES)) * scales).astype(np.float32))
    print(f"{'linear discriminant of 1,280 features':>40} {'CPU time, ms':>13}")
    for name, trains in (("statistics:lda", False), ("mads-rd:from-statistics", True)):
        collection = Collection(classifier="lda", trains=trains)
        layout = Sums(collection=collection, classes=CLASSES, features=FEATURES, samples=float(SAMPLES))
        sums = DEVICES * collect(inputs, labels, layout)
        solve_ms = min(_cpu_s(partial(linear_classifier, sums, layout)) for _ in range(5)) * 1e3
        print(f"{name:>40} {solve_ms:13.0f}", flush=True)
        rows.append({"scheme": name, "solve_ms": solve_ms})
    return rows


def measured_features(counts: list[int], pixels: int) -> list[dict[str, object]]:
    backbone, rng = load_backbone("efficientnet-lite0"), np.random.default_rng(0)
    rows: list[dict[str, object]] = []
    print(f"{'images':>9} {'wall s':>8} {'CPU s':>8} {'50,000 images, min':>19} {'goal':>5} {'peak memory, MB':>16}")
    for count in counts:
        images, labels = rng.integers(0, 256, (count, 3, 32, 32), np.uint8), np.zeros(count, np.uint8)
        arrays = ImageArrays(images[1:], labels[1:], images[:1], labels[:1])
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        features_of("random", arrays, backbone, pixels)
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        minutes = wall_s / count * GOAL_IMAGES / 60
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
        print(
            f"{count:>9,} {wall_s:8.1f} {cpu_s:8.1f} {minutes:19.1f} {GOAL_MINUTES:5.0f} {peak_mb:16,.0f}", flush=True
        )
        rows.append({"images": count, "wall_s": wall_s, "cpu_s": cpu_s, "minutes": minutes, "peak_mb": peak_mb})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[500, 1500])
    parser.add_argument("--pixels", type=int, default=160)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    machine = platform.processor() or platform.machine()
    print(f"{machine}, torch {torch.__version__}, {available_cores()} cores")
    torch.set_num_threads(1)
    heads, classifiers = measured_heads(), measured_classifiers()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WAYFARE_DATA"] = folder
        features = measured_features(arguments.images, arguments.pixels)
    # Last, because the memory of everything would hide that of features.
    parts = measured_parts()
    if arguments.json:
        measured = {"heads": heads, "parts": parts, "classifiers": classifiers, "features": features}
        table = {"machine": machine, "torch": torch.__version__, **measured}
        arguments.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
