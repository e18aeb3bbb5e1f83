"""Whole runs with this source tree against another one: the two take turns, and the median of their ratios counts.

    python benchmarks/against.py OTHER/src [--schemes mads,afl,fedmobile] [--turns 9] [--rounds 300] [--json FILE]

Each tree has a process of its own that runs what it is asked to by `wayfare.run`, with one thread. The figure is CPU
time of the other tree divided by that of this one: above 1 this tree is faster.
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

HERE = Path(__file__).parents[1] / "src"
WORKER = """
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


def started(source: Path, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-B", "-c", WORKER, str(rounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )


def cpu_s(worker: subprocess.Popen[str], scheme: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{scheme}\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the source folder of the other tree")
    parser.add_argument("--schemes", default="mads,mads-rd,afl-spar:paced,afl:fitting,fedmobile,fedasync")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    this, other = (started(source.resolve(), arguments.rounds) for source in (HERE, arguments.other))
    rows = []
    for scheme in arguments.schemes.split(","):
        cpu_s(this, scheme), cpu_s(other, scheme)
        ratios, began_s = [], time.monotonic()
        for turn in range(arguments.turns):
            # Who comes first changes, so that nobody always finds a warm cache.
            times = {worker: cpu_s(worker, scheme) for worker in ((this, other) if turn % 2 else (other, this))}
            ratios.append(times[other] / times[this])
        low, median, high = statistics.quantiles(ratios, n=4)
        rows.append({"scheme": scheme, "speed": median, "quartiles": [low, high]})
        print(
            f"{scheme:>16}  {median:5.3f} times as fast ({low:.3f} to {high:.3f}), {time.monotonic() - began_s:.0f} s"
        )
    for worker in (this, other):
        worker.communicate()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
