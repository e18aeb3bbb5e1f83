"""Compare the speed of this source tree with another: they alternate, and the median ratio counts.

    python benchmarks/against.py OTHER [--work mads,afl,fedmobile] [--turns 9] [--rounds 300] [--json FILE]
    python benchmarks/against.py OTHER --bursts [--work 64-64-10,LaneGCN] [--turns 9] [--json FILE]

OTHER is the root of the other tree. Each tree has its own process with one thread. Without `--bursts` it runs
whole runs by `wayfare.run`; with it, the local steps of the models in its own `benchmarks/rounds.py`, on the engine
chosen there. The result is the CPU time of the other tree divided by that of this one: above 1 this tree is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
WHOLE_RUNS = """
import sys, tempfile, time
import wayfare
rounds = int(sys.argv[1])
scenario = wayfare.load("fashion-small", [f"rounds={rounds}", "learning.evaluate_every_rounds=100"])
for line in sys.stdin:
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        wayfare.run(scenario, line.strip(), out=folder)
        print(time.process_time() - began, flush=True)
"""
BURSTS = """
import functools, sys, torch
import rounds
torch.set_num_threads(1)
@functools.cache
def prepared(name):
    case = next(case for case in rounds.CPU_CASES if case.name == name)
    local = rounds.job(case, rounds.Compute(), 2_000, None)
    return case, rounds.engine(rounds.make_engine("auto", local), local)
for line in sys.stdin:
    case, work = prepared(line.strip())
    print(rounds.timed(work, case.steps, cuda=False), flush=True)
"""
SCHEMES = "mads,mads-rd,afl-spar:paced,afl:fitting,fedmobile,fedasync"
MODELS = "64-64-10,784-64-10,196-256-128-10,small CNN 28x28,small CNN 14x14,ResNet-9,LaneGCN"


def started(tree: Path, program: str, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-B", "-c", program, str(rounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree / 'benchmarks'}"},
    )


def cpu_s(worker: subprocess.Popen[str], work: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{work}\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the root of the other tree")
    parser.add_argument("--bursts", action="store_true", help="local steps instead of whole runs")
    parser.add_argument("--work", help="schemes, or with --bursts models; by default several of them")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    program, usual = (BURSTS, MODELS) if arguments.bursts else (WHOLE_RUNS, SCHEMES)
    this, other = (started(tree.resolve(), program, arguments.rounds) for tree in (HERE, arguments.other))
    rows = []
    for work in (arguments.work or usual).split(","):
        cpu_s(this, work), cpu_s(other, work)
        ratios, began_s = [], time.monotonic()
        for turn in range(arguments.turns):
            # Alternate the order, so that neither always finds a warm cache.
            times = {worker: cpu_s(worker, work) for worker in ((this, other) if turn % 2 else (other, this))}
            ratios.append(times[other] / times[this])
        low, median, high = statistics.quantiles(ratios, n=4)
        rows.append({"work": work, "speed": median, "quartiles": [low, high]})
        print(f"{work:>16}  {median:5.3f} times as fast ({low:.3f} to {high:.3f}), {time.monotonic() - began_s:.0f} s")
    for worker in (this, other):
        worker.communicate()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
