"""How long a process needs until ResNet-9 trains on a GPU: with empty caches, and again in a second process.

    python benchmarks/ready.py [--engine batched cuda_graphs] [--precision tf32 bf16] [--cache DIR] [--json FILE]

Parts, in seconds: importing PyTorch and Wayfare, starting CUDA with the data, making the engine, and the first and the
second burst of 12 steps of 20 devices. The first burst compiles and captures what is left. Compiled kernels are cached
in DIR, or in a temporary folder.
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


def measured(engine_name: str, precision: str) -> dict[str, float]:
    """The parts of a start, in this process."""
    marks = [time.perf_counter()]
    import torch

    from rounds import GPU_CASES, engine, job
    from wayfare.engine import Compute, make_engine
    from wayfare.engine.compute import checked_precision

    marks.append(time.perf_counter())
    local = job(GPU_CASES[0], Compute.named("cuda", checked_precision(precision)), 50_000, None)
    torch.cuda.synchronize()
    marks.append(time.perf_counter())
    work = engine(make_engine(engine_name, local), local)
    torch.cuda.synchronize()
    for _ in range(2):
        marks.append(time.perf_counter())
        work(12)
        torch.cuda.synchronize()
    marks.append(time.perf_counter())
    return {part: marks[number + 1] - marks[number] for number, part in enumerate(PARTS)}


def in_process(engine_name: str, precision: str, cache: Path) -> dict[str, float]:
    folders = {"TRITON_CACHE_DIR": str(cache / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
    began = time.perf_counter()
    command = [sys.executable, __file__, "--inside", "--engine", engine_name, "--precision", precision]
    done = subprocess.run(command, env={**os.environ, **folders}, check=True, stdout=subprocess.PIPE, text=True)
    parts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    # Everything until the first burst is done, with the start and the end of the process.
    parts["ready"] = time.perf_counter() - began - parts["second burst"]
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", default=["batched", "cuda_graphs"])
    parser.add_argument("--precision", nargs="+", default=["tf32", "bf16"], choices=["tf32", "bf16"])
    parser.add_argument("--cache", type=Path, help="keep compiled kernels in this folder")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(measured(arguments.engine[0], arguments.precision[0])))
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
