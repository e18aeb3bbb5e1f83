"""CPU time until a command answers, and until the first run of `wayfare compare` trains.

    python benchmarks/start_up.py [--repeats 5] [--json FILE]

Every command runs in its own process. `wayfare compare` runs the default preset on two workers with an upload rule that
writes a file in the first contact, which follows the first local steps. Its processes import PyTorch beside each other,
so the time on two cores is the longer of their two times and that of the worker that trains first. The goal is 4 s.
Linux only: CPU times of running processes are those of /proc, in steps of 10 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

COMMANDS = (
    ["--version"],
    ["contacts"],
    ["plan"],
    ["compare", "nonsense"],
    ["sweep", "nonsense"],
    ["field", "status", "127.0.0.1:1"],
)
GOAL_S = 4.0

_RULE = """
import os
from pathlib import Path

import wayfare


class First(wayfare.UploadRule):
    name = "first"

    def decide(self, encounter, link):
        mark = Path(__file__).with_name("trains")
        if not mark.exists():
            mark.with_name(f"{os.getpid()}.part").write_text(str(os.getpid()))
            mark.with_name(f"{os.getpid()}.part").rename(mark)
        return wayfare.send_dense(encounter, link, link.max_power_watts)
"""


@dataclass(frozen=True, kw_only=True)
class Training:
    """CPU time in seconds until the first run of a comparison trains."""

    first_process_s: float
    other_process_s: float  # which imports PyTorch beside the first, and from which workers are forked
    worker_s: float

    @property
    def on_two_cores_s(self) -> float:
        return max(self.first_process_s, self.other_process_s) + self.worker_s


def command_s(arguments: list[str], folder: str) -> float:
    process = subprocess.Popen(
        [sys.executable, "-m", "wayfare", *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return used.ru_utime + used.ru_stime


def until_training(folder: Path, limit_s: float = 120.0) -> Training:
    (folder / "first.py").write_text(_RULE, encoding="utf-8")
    mark, began = folder / "trains", time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "wayfare", "compare", "--schemes", "first.py", "--jobs", "2", "--out", "runs"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while not mark.exists():
            if process.poll() is not None or time.monotonic() - began > limit_s:
                raise SystemExit(f"the comparison did not train: {(process.stderr or sys.stdin).read()!r}")
            time.sleep(0.001)
        used_s = cpu_times_s(session=process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    first_s, worker_s = used_s.pop(process.pid), used_s.pop(int(mark.read_text(encoding="utf-8")))
    return Training(first_process_s=first_s, other_process_s=max(used_s.values()), worker_s=worker_s)


def cpu_times_s(session: int) -> dict[int, float]:
    """User and system time of every process of a session, including children that have ended."""
    found, ticks = {}, os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found[int(entry.name)] = sum(int(value) for value in fields[11:15]) / ticks
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="medians of this many")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    repeats, found = range(arguments.repeats), {}
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            name = f"wayfare {' '.join(command)}"
            found[name] = statistics.median(command_s(command, folder) for _ in repeats)
            print(f"{name:30} {found[name]:5.2f} s", flush=True)
    runs = []
    for _ in repeats:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(until_training(Path(folder)))
    median = sorted(runs, key=lambda run: run.on_two_cores_s)[len(runs) // 2]
    print(
        f"wayfare compare trains after    {median.on_two_cores_s:.2f} s on two cores"
        f" ({median.first_process_s:.2f} beside {median.other_process_s:.2f}, then {median.worker_s:.2f} in a worker);"
        f" at most {GOAL_S:g} s: {'yes' if median.on_two_cores_s <= GOAL_S else 'NO'}"
    )
    if arguments.json:
        table = {"commands_s": found, "training": [asdict(run) for run in runs]}
        arguments.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
