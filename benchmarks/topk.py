"""Exact top-k of a ResNet-9's 6,568,650 entries: ours against `torch.topk`, in one run.

    python benchmarks/topk.py [--device cpu] [--json FILE]

The entries are normal, as updates nearly are, and one in ten is 0, as after error feedback. Both keep the k
largest magnitudes; ours also sorts them by index and gives ties to the lower one. On a CPU the
result is CPU time with one thread, on a GPU wall time. `kthvalue`, the obvious alternative, is measured too.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wayfare.sparsify import top_k

ENTRIES, REPEATS = 6_568_650, 7
SHARES = (0.01, 0.1, 0.25, 0.5)
GOAL_SHARE, GOAL = 0.1, 4.0


def vector(device: torch.device) -> Tensor:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(ENTRIES).astype(np.float32)
    values[rng.random(ENTRIES) < 0.1] = 0
    return torch.from_numpy(values).to(device)


def by_topk(values: Tensor, k: int) -> Tensor:
    return values[values.abs().topk(k).indices]


def by_unsorted_topk(values: Tensor, k: int) -> Tensor:
    return values[values.abs().topk(k, sorted=False).indices]


def by_kthvalue(values: Tensor, k: int) -> Tensor:
    magnitude = values.abs()
    return values[magnitude >= magnitude.kthvalue(len(values) - k + 1).values]


def ours(values: Tensor, k: int) -> Tensor:
    return top_k(values, k).values


WAYS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "ours": ours,
    "torch.topk": by_topk,
    "torch.topk, unsorted": by_unsorted_topk,
    "torch.kthvalue": by_kthvalue,
}


def seconds(way: Callable[[Tensor, int], Tensor], values: Tensor, k: int) -> float:
    if values.is_cuda:
        torch.cuda.synchronize()
    clock = time.perf_counter if values.is_cuda else time.process_time
    began = clock()
    kept = way(values, k)
    if values.is_cuda:
        torch.cuda.synchronize()
    assert len(kept) >= k  # `kthvalue` alone keeps every tie
    return clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    values = vector(torch.device(arguments.device))
    machine = torch.cuda.get_device_name() if values.is_cuda else platform.processor() or platform.machine()
    print(f"{machine}, torch {torch.__version__}, {ENTRIES:,} entries, milliseconds")
    print(f"{'k/s':>6} " + " ".join(f"{name:>21}" for name in WAYS) + f" {'ratio':>7} {'goal':>5}")
    rows = []
    for share in SHARES:
        k = round(share * ENTRIES)
        for way in WAYS.values():
            way(values, k)
        times = [{name: seconds(way, values, k) for name, way in WAYS.items()} for _ in range(REPEATS)]
        medians = {name: statistics.median(row[name] for row in times) for name in WAYS}
        ratio = statistics.median(row["torch.topk"] / row["ours"] for row in times)
        goal = GOAL if share == GOAL_SHARE and not values.is_cuda else None
        print(
            f"{share:6} "
            + " ".join(f"{1e3 * medians[name]:21.2f}" for name in WAYS)
            + f" {ratio:7.2f} {goal or '':>5}",
            flush=True,
        )
        rows.append({"share": share, "seconds": medians, "ratio_to_topk": ratio, "goal": goal})
    if arguments.json:
        table = {"machine": machine, "entries": ENTRIES, "rows": rows}
        arguments.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
