"""Central training of LaneGCN on Argoverse 1, with and without the lane graph, against constant velocity on val/.

    python benchmarks/argoverse_central.py --folder argoverse --map navmap --map-folder navmap [--json FILE]
    python benchmarks/argoverse_central.py --prepare scenes.npz --folder argoverse --map navmap --map-folder navmap
    python benchmarks/argoverse_central.py --folder scenes.npz --device cuda

The second line only reads the sequences and writes them to one file for the third, on another machine.
Training uses AdamW with warm-up and a cosine schedule, and random mirroring of scenes. The moving average of the
weights is evaluated.
The last state counts; none is selected by the validation scenes.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from wayfare.learning.argoverse.cache import Prepared, load_prepared, prepared_scenes, save_prepared
from wayfare.learning.argoverse.metrics import one_guess
from wayfare.learning.argoverse.scenes import SceneSettings, constant_velocity, fitted_constant_velocity
from wayfare.learning.argoverse.sequence import OBSERVED_STEPS
from wayfare.learning.models.base import load_vector
from wayfare.learning.models.lanegcn import LaneGcn
from wayfare.learning.tasks.argoverse import Forecasting, forecasting
from wayfare.places import data_folder
from wayfare.streams import FLEET, Stream, generator

PEAK_RATE, WEIGHT_DECAY, WARM_UP_SHARE, AVERAGING = 1e-3, 1e-2, 0.05, 0.998


def train(task: Forecasting, arguments: argparse.Namespace, seed: int, label: str) -> dict[str, object]:
    device = torch.device(arguments.device)
    task = task.to(device)
    module = task.model.module()
    load_vector(module, task.model.initial(generator(seed, Stream.INITIAL_MODEL, FLEET)))
    module.to(device).train()
    averaged = copy.deepcopy(module).eval()
    optimiser = torch.optim.AdamW(module.parameters(), lr=PEAK_RATE, weight_decay=WEIGHT_DECAY)
    order, mirror = (generator(seed, stream, FLEET) for stream in (Stream.MINIBATCH, Stream.AUGMENTATION))
    scenes = len(task.train)
    steps = arguments.epochs * math.ceil(scenes / arguments.batch)
    started, step = time.perf_counter(), 0
    for epoch in range(arguments.epochs):
        total = torch.zeros((), device=device)
        for samples in torch.from_numpy(order.permutation(scenes)).split(arguments.batch):
            rate = PEAK_RATE * schedule(step / steps)
            for group in optimiser.param_groups:
                group["lr"] = rate
            crops = torch.from_numpy(mirror.integers(0, 2, (len(samples), 3)))
            loss = task.loss(module, samples.to(device), crops.to(device))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 5.0)
            optimiser.step()
            step += 1
            average(averaged, module, min(AVERAGING, step / (step + 10)))
            total += loss.detach() * len(samples)
        if (epoch + 1) % max(arguments.epochs // 8, 1) == 0 or epoch + 1 == arguments.epochs:
            with torch.no_grad():
                result = task.evaluate(averaged)
            print(
                f"{label} seed {seed} epoch {epoch + 1:3}: {time.perf_counter() - started:6.1f} s, "
                f"train loss {float(total) / scenes:.3f}, val loss {result.loss:.3f}, ADE {result.score:.3f} m, "
                + ", ".join(f"{name} {value:.3f}" for name, value in result.others.items()),
                flush=True,
            )
    return {
        "map": label,
        "seed": seed,
        "parameters": task.model.parameters,
        "train_s": round(time.perf_counter() - started, 1),
        "ade_m": result.score,
        **result.others,
    }


def schedule(share: float) -> float:
    """The factor of the peak learning rate."""
    if share < WARM_UP_SHARE:
        return share / WARM_UP_SHARE
    return 0.5 * (1 + math.cos(math.pi * (share - WARM_UP_SHARE) / (1 - WARM_UP_SHARE)))


@torch.no_grad()
def average(averaged: nn.Module, module: nn.Module, keep: float) -> None:
    torch._foreach_lerp_(list(averaged.parameters()), list(module.parameters()), 1 - keep)


def baselines(prepared: Prepared) -> dict[str, dict[str, float]]:
    places = prepared.val.places_m()[prepared.val.first_actor[:-1]]
    truth = torch.from_numpy(places[:, OBSERVED_STEPS:])
    guesses = {
        "constant velocity (2 s mean)": constant_velocity(places),
        "constant velocity (fitted, 0.8 s)": fitted_constant_velocity(places),
    }
    errors = {name: one_guess(torch.from_numpy(guess), truth) for name, guess in guesses.items()}
    return {
        name: {"ade_m": error.ade_m, "fde_m": error.fde_m, "miss_rate": error.miss_rate}
        for name, error in errors.items()
    }


def prepared_of(arguments: argparse.Namespace) -> Prepared:
    if arguments.folder.suffix == ".npz":
        return load_prepared(arguments.folder)
    return prepared_scenes(
        arguments.folder, arguments.map, arguments.map_folder, SceneSettings(), data_folder() / "argoverse"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="train/data/*.csv and val/data/*.csv, or a .npz")
    parser.add_argument("--map", choices=["none", "navmap", "hd"], default="navmap")
    parser.add_argument("--map-folder", type=Path)
    parser.add_argument("--prepare", type=Path, help="write the scenes to this file and stop")
    parser.add_argument("--only", choices=["map", "none"], help="train with the map only, or without only")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--modes", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    began = time.perf_counter()
    prepared = prepared_of(arguments)
    print(f"{len(prepared.train):,} + {len(prepared.val):,} scenes in {time.perf_counter() - began:.1f} s", flush=True)
    if arguments.prepare:
        save_prepared(arguments.prepare, prepared)
        return
    hardware = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.processor()
    errors = baselines(prepared)
    for name, error in errors.items():
        print(f"{name}: ADE {error['ade_m']:.3f} m, FDE {error['fde_m']:.3f} m, miss rate {error['miss_rate']:.3f}")
    chosen = [
        name for name in ("map", "none") if arguments.only in (None, name) and (name == "none" or len(prepared.lanes))
    ]
    runs = []
    for name in chosen:
        model = LaneGcn(width=arguments.width, modes=arguments.modes, lanes=name == "map")
        task = forecasting(prepared, model)
        runs += [train(task, arguments, seed, name) for seed in arguments.seeds]
    first = next(iter(errors.values()))["ade_m"]
    for name in chosen:
        ade = statistics.mean(float(str(run["ade_m"])) for run in runs if run["map"] == name)
        print(f"{name}: ADE (K = 1, 3 s) {ade:.3f} m, {100 * (1 - ade / first):.1f} % below constant velocity")
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items() if name != "json"}
        machine = {"hardware": hardware, "torch": torch.__version__, "settings": settings}
        figures = {**machine, "baselines": errors, "runs": runs}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
