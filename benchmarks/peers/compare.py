"""Compare pfl, fluke, Flower and FLGo with a plain PyTorch loop and Wayfare, on the same job.

    python benchmarks/peers/compare.py [--venvs DIR] [--rounds 60] [--repeats 3] [--only pfl flgo] [--page FILE]

The job is in job.py. Each framework runs in its own virtual environment, created on first use below --venvs (about
1.5 GB each, more if pip installs PyTorch with CUDA) and kept. All use one thread per process. The
clock starts after three rounds and counts the CPU time of all processes, so Flower pays for every core it uses.
Repeats alternate, and the median counts. It needs Linux. FLGo installs torchvision, which must match its PyTorch: if
pip is configured to find PyTorch without CUDA, it must find such a torchvision too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

import job
import numpy as np
from numpy.typing import NDArray

from wayfare.learning.tasks.fashion_small import fashion_small
from wayfare.places import data_folder

HERE = Path(__file__).parent
# As in pyproject.toml.
TORCH = "torch>=2.6,<2.14"
# Frameworks with their own environment, and the packages installed there.
PACKAGES = {
    "pfl": "pfl[pytorch]==0.6.0",
    "fluke": "fluke-fl==0.8.1",
    "flgo": "flgo==0.4.4",
    "flower": "flwr[simulation]==1.41.0",
}
TITLES = {
    "plain": "plain PyTorch loop",
    "wayfare": "Wayfare, built-in perceptron",
    "own": "Wayfare, the same network as your own module",
    "pfl": "pfl 0.6.0",
    "fluke": "fluke 0.8.1",
    "flgo": "FLGo 0.4.4",
    "flower": "Flower 1.41.0, simulation on Ray",
}
# The table on a page is between these lines.
BEGIN, END = "<!-- peers -->", "<!-- end of peers -->"
# A job takes a minute at most.
PATIENCE_S = 600
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    package: str
    torch: str
    steps_per_cpu_s: float
    steps_per_wall_s: float
    ratio: float  # to the plain loop, in CPU time
    wall_ratio: float
    accuracy: float


def write_data(file: Path) -> None:
    """10,000 training and 2,000 test images of 28 x 28; every device holds 500, drawn without regard to class."""
    task = fashion_small((64,))

    def enlarged(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return images.reshape(-1, 14, 14).repeat(2, axis=1).repeat(2, axis=2).reshape(-1, 784)

    samples = np.random.default_rng(0).permutation(len(task.train_labels))
    np.savez(
        file,
        train_inputs=enlarged(task.train_inputs.numpy()),
        train_labels=task.train_labels.numpy(),
        test_inputs=enlarged(task.test_inputs.numpy()),
        test_labels=task.test_labels.numpy(),
        held=samples.reshape(job.DEVICES, -1),
    )


def interpreter(name: str, folder: Path) -> Path:
    """The Python of a framework; its environment is created if it does not exist."""
    if name not in PACKAGES:
        return Path(sys.executable)
    home = folder / name
    python, ready = home / "bin" / "python", home / f"ready-{PACKAGES[name]}"
    if not ready.exists():
        print(f"Creating {home} with {PACKAGES[name]} ...", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGES[name], TORCH], check=True)
        ready.touch()
    return python


def run(name: str, python: Path, data: Path, rounds: int) -> dict[str, float]:
    """Run one job in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        environment = {
            **os.environ,
            **ENVIRONMENT,
            job.DATA: str(data),
            job.ROUNDS: str(rounds),
            job.RESULT: str(result),
        }
        # Ray's workers and FLGo's generated benchmark import job.py too.
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("wb") as output:
            ended = subprocess.run(
                [python, HERE / f"with_{name}.py"],
                env=environment,
                cwd=folder,
                stdout=output,
                stderr=output,
                check=False,
                timeout=PATIENCE_S,
            )
        if ended.returncode or not result.exists():
            sys.exit(f"{name} exited with {ended.returncode}; the end of its log:\n{log.read_text()[-3000:]}")
        found: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    return found


def table(results: dict[str, list[dict[str, float]]], rounds: int) -> list[Row]:
    steps = job.DEVICES * job.STEPS * rounds

    def ratio(found: list[dict[str, float]], clock: str) -> float:
        pairs = zip(results["plain"], found, strict=True)
        return round(statistics.median(plain[clock] / own[clock] for plain, own in pairs), 3)

    return [
        Row(
            name=name,
            package=PACKAGES.get(name, ""),
            torch=str(found[0]["torch"]),
            steps_per_cpu_s=round(steps / statistics.median(one["cpu_s"] for one in found)),
            steps_per_wall_s=round(steps / statistics.median(one["wall_s"] for one in found)),
            ratio=ratio(found, "cpu_s"),
            wall_ratio=ratio(found, "wall_s"),
            accuracy=round(statistics.median(one["accuracy"] for one in found), 4),
        )
        for name, found in results.items()
    ]


def markdown(rows: list[Row]) -> str:
    head = "| 20 devices, 10 steps a round, 784-64-10 | device-steps per CPU second | ratio | accuracy |"
    lines = [
        f"| {TITLES[row.name]} | {row.steps_per_cpu_s:,.0f} | {row.ratio:.2f} | {row.accuracy:.1%} |" for row in rows
    ]
    return "\n".join([head, "| --- | --- | --- | --- |", *lines])


def write_page(page: Path, rows: list[Row]) -> None:
    """Replace the table on a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{page}: has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{markdown(rows)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, default=data_folder() / "peers", help="the folder of the environments")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PACKAGES), default=list(PACKAGES))
    parser.add_argument("--page", type=Path, help="also replace the table on this page, such as docs/results/speed.md")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    names = [name for name in TITLES if name not in PACKAGES or name in arguments.only]
    pythons = {name: interpreter(name, arguments.venvs.absolute()) for name in names}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        write_data(data)
        for repeat in range(arguments.repeats):
            for name in names:
                results[name].append(run(name, pythons[name], data, arguments.rounds))
                print(
                    f"repeat {repeat + 1}, {name}: {results[name][-1]['cpu_s']:.2f} CPU s", file=sys.stderr, flush=True
                )
    rows = table(results, arguments.rounds)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{job.DEVICES} devices, {job.STEPS} steps a round, batch {job.BATCH}, 784-64-10; device-steps per second")
    print(f"{'':>8} {'torch':>11} {'per CPU s':>10} {'ratio':>6} {'per wall s':>11} {'ratio':>6} {'accuracy':>9}")
    for row in rows:
        print(
            f"{row.name:>8} {row.torch:>11} {row.steps_per_cpu_s:10,.0f} {row.ratio:6.2f} {row.steps_per_wall_s:11,.0f}"
            f" {row.wall_ratio:6.2f} {row.accuracy:9.1%}"
        )
    if arguments.page:
        write_page(arguments.page, rows)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
