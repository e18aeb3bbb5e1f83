"""How long a process needs until ResNet-9 trains on a GPU: with empty caches, and again in a second process.

    python benchmarks/ready.py [--engine batched cuda_graphs] [--precision tf32 bf16] [--cache DIR] [--json FILE]

Parts, in seconds: importing PyTorch and Wayfare, starting CUDA with the data, making the engine, and the first and the
second burst of 12 steps of 20 devices. The first burst compiles and captures what is left. Ready is the end of the
first burst, since the start of the process. The images are random bytes. Compiled kernels are cached in DIR, or in a
temporary folder. The goal is to be ready in 5 s in a second process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTS = ("imports", "cuda and data", "engine", "first burst", "second burst")
DEVICES = 20


def measured(engine_name: str, precision: str, began: float) -> dict[str, float]:
    """The parts of a start, in this process, and everything since it was asked for."""
    marks = [time.perf_counter()]
    import numpy as np
    import torch

    from full_run import random_images
    from wayfare.engine import Burst, Compute, LocalTraining, make_engine
    from wayfare.engine.compute import checked_precision
    from wayfare.learning.batches import Batches

    marks.append(time.perf_counter())
    compute = Compute.named("cuda", checked_precision(precision))
    rng = np.random.default_rng(0)
    batches = Batches([rng.integers(0, 50_000, 500) for _ in range(DEVICES)], 32, 24, seed=0)
    local = LocalTraining(task=random_images().to(compute.device), batches=batches, learning_rate=0.01, compute=compute)
    torch.cuda.synchronize()
    marks.append(time.perf_counter())
    runner = make_engine(engine_name, local)
    initial = local.task.model.initial(rng).to(compute.device)
    models = [initial.clone() for _ in range(DEVICES)]
    torch.cuda.synchronize()
    for first in (1, 13):
        marks.append(time.perf_counter())
        runner.run(models, [Burst(device, first, 12) for device in range(DEVICES)])
        torch.cuda.synchronize()
    marks.append(time.perf_counter())
    parts = {part: marks[number + 1] - marks[number] for number, part in enumerate(PARTS)}
    # On one clock for all processes.
    return parts | {"ready": marks[-2] - began}


def in_process(engine_name: str, precision: str, cache: Path) -> dict[str, float]:
    folders = {"TRITON_CACHE_DIR": str(cache / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    began = str(time.perf_counter())
    command = [sys.executable, __file__, "--inside", began, "--engine", engine_name, "--precision", precision]
    done = subprocess.run(command, env={**os.environ, **folders}, check=True, stdout=subprocess.PIPE, text=True)
    parts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", default=["batched", "cuda_graphs"])
    parser.add_argument("--precision", nargs="+", default=["tf32", "bf16"], choices=["tf32", "bf16"])
    parser.add_argument("--cache", type=Path, help="keep compiled kernels in this folder")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--inside", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside is not None:
        print(json.dumps(measured(arguments.engine[0], arguments.precision[0], arguments.inside)))
        return
    rows = []
    print(f"{'':>28} {'start':>7} " + " ".join(f"{part:>13}" for part in (*PARTS, "ready")))
    for engine_name in arguments.engine:
        for precision in arguments.precision:
            with tempfile.TemporaryDirectory() as folder:
                for start in ("first", "second"):
                    parts = in_process(engine_name, precision, arguments.cache or Path(folder))
                    rows.append({"name": engine_name, "precision": precision, "start": start, **parts})
                    print(
                        f"{engine_name + ', ' + precision:>28} {start:>7} "
                        + " ".join(f"{seconds:13.2f}" for seconds in parts.values()),
                        flush=True,
                    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
