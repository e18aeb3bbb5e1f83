"""The cost of checkpoints at their default interval, as a share of the run time. The goal is under 3 %.

    python benchmarks/checkpoints.py [--rounds 12000] [--json FILE]

First a whole run of the default preset, which measures its own checkpoints. Then states of larger fleets, written as a
run would write them. The interval grows with the cost of a checkpoint, so the share is bounded for fleets of any size.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import torch

import wayfare
from wayfare.device import DeviceState
from wayfare.engine import TrainerState
from wayfare.records.checkpoints import write_checkpoint
from wayfare.server import ServerState
from wayfare.simulator import SimulationState
from wayfare.studies import keeping
from wayfare.studies.keeping import Keeper

GOAL = 0.03


@dataclass(frozen=True, kw_only=True)
class Result:
    what: str
    state_mb: float
    checkpoints: int
    checkpoint_s: float
    interval_s: float
    share: float


def whole_run(rounds: int, folder: Path) -> Result:
    """The embedded default with the default interval."""
    spent: list[float] = []
    sizes: list[int] = []
    checkpoint = Keeper.checkpoint

    def timed(keeper: Keeper, *, pinned: bool = False) -> None:
        began = time.perf_counter()
        checkpoint(keeper, pinned=pinned)
        spent.append(time.perf_counter() - began)
        sizes.append(max(file.stat().st_size for file in folder.rglob("*.checkpoint")))

    scenario = wayfare.load("fashion-small", [f"rounds={rounds}"])
    with patch.object(Keeper, "checkpoint", timed):
        record = wayfare.run(scenario, "mads", out=folder)
    if not spent:
        raise SystemExit(f"the run took {record.wall_s:.0f} s, too short for a checkpoint; use more --rounds")
    mean_s = sum(spent) / len(spent)
    return Result(
        what=f"fashion-small, 20 devices, {rounds} rounds, {record.wall_s:.0f} s",
        state_mb=round(max(sizes) / 1e6, 1),
        checkpoints=len(spent),
        checkpoint_s=round(mean_s, 3),
        interval_s=round(record.wall_s / len(spent), 1),
        share=sum(spent) / record.wall_s,
    )


def state_of(devices: int, entries: int) -> SimulationState:
    """A state in which every device has a received model, a memory and an unfinished burst."""

    def vector(number: int) -> torch.Tensor:
        return torch.full((entries,), 0.5 + number)

    states = [
        DeviceState(received=vector(3 * n), received_round=1, memory=vector(3 * n + 1), budget_joules=1.0)
        for n in range(devices)
    ]
    underway = {n: vector(3 * n + 2) for n in range(devices)}
    trainer = TrainerState(done=[1] * devices, underway=underway)
    return SimulationState(round=1, bits=0.0, server=ServerState(model=vector(-1)), devices=states, trainer=trainer)


def written(what: str, devices: int, entries: int, folder: Path) -> Result:
    """Write a state twice, the second time while the disk is busy with the first."""
    state = state_of(devices, entries)
    spent = []
    for _ in range(2):
        began = time.perf_counter()
        assert state.first_nonfinite() is None
        saved = write_checkpoint(folder, state)
        spent.append(time.perf_counter() - began)
    (folder / saved.file).unlink()
    interval_s = max(keeping._DEFAULT_EVERY_S, keeping._TIMES_ITS_COST * spent[-1])
    return Result(
        what=what,
        state_mb=round(saved.size_bytes / 1e6, 1),
        checkpoints=2,
        checkpoint_s=round(spent[-1], 3),
        interval_s=round(interval_s, 1),
        share=spent[-1] / (interval_s + spent[-1]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12_000)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, torch {torch.__version__}, one thread")
    print(f"{'':58} {'MB':>7} {'written':>7} {'s each':>7} {'every s':>8} {'share':>7}")
    results = []
    fleets = (
        ("500 devices of fashion-small, all under way", 500, 84_618),
        ("20 devices of ResNet-9, all under way", 20, 6_573_130),
    )
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for number in range(1 + len(fleets)):
            result = written(*fleets[number - 1], folder) if number else whole_run(arguments.rounds, folder)
            results.append(result)
            print(
                f"{result.what:58} {result.state_mb:7,.0f} {result.checkpoints:7} {result.checkpoint_s:7.2f} "
                f"{result.interval_s:8.1f} {result.share:7.2%}",
                flush=True,
            )
    good = all(result.share < GOAL for result in results)
    print(f"under {GOAL:.0%}: {'yes' if good else 'NO'}")
    if arguments.json:
        rows = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
