"""What commands share: consoles, options and progress."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from wayfare.records import RunSummary

# Commands import what needs PyTorch when they run: it takes seconds, and `--help` should not.
output = Console(emoji=False)
errors = Console(stderr=True, emoji=False)

ScenarioArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="[PRESET|FILE.toml]", help="A preset (see `wayfare presets`) or a scenario file.")
]
SetOption: TypeAlias = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field, e.g. `--set radio.bandwidth_hz=2e6`."),
]
OutOption: TypeAlias = Annotated[Path, typer.Option("--out", help="Where run folders go.")]
EngineOption: TypeAlias = Annotated[
    str, typer.Option("--engine", help="auto, reference, stacked, vmap or cuda_graphs: equal results, other speeds.")
]
DeviceOption: TypeAlias = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:NUMBER.")]
PrecisionOption: TypeAlias = Annotated[
    str, typer.Option("--precision", help="fp32 (strict); on a GPU also tf32 and bf16.")
]
FastOption: TypeAlias = Annotated[bool, typer.Option("--fast", help="Speed may cost bit-identical repeats.")]
CheckpointSecondsOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--checkpoint-every-s", help="Seconds between checkpoints; 30 if not given, more where they take long."
    ),
]
CheckpointRoundsOption: TypeAlias = Annotated[
    int | None, typer.Option("--checkpoint-every-rounds", help="Rounds between checkpoints.")
]
KeepOption: TypeAlias = Annotated[
    bool, typer.Option("--keep-checkpoint", help="Keep one after the end, so that the run can be made longer.")
]
DivergenceOption: TypeAlias = Annotated[
    bool, typer.Option("--allow-divergence", help="Record NaN and infinity and go on, instead of stopping.")
]
ParanoidOption: TypeAlias = Annotated[
    bool, typer.Option("--paranoid", help="Check everything that must hold, mass conservation too; slower.")
]
FreshOption: TypeAlias = Annotated[bool, typer.Option("--fresh", help="Start unfinished runs over.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    print(json.dumps(value, indent=2))


class RunProgress:
    """A bar for every run under way and one for all, on a terminal; a line for each finished run elsewhere."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        )
        self._all: TaskID | None = None
        self._running: dict[int, TaskID] = {}
        self._names: Sequence[str] = ()
        self._rounds: int | None = None
        self._started = time.perf_counter()
        self._on_terminate: Any = None

    def begin(self, names: Sequence[str], rounds: int | None) -> None:
        """Show the whole."""
        self._names, self._rounds = names, rounds
        self._all = self._bars.add_task(f"{len(names)} run{'s' if len(names) > 1 else ''}", total=len(names))
        self._bars.start()

    def advance(self, place: int, round_: int) -> None:
        """Show one run."""
        if place not in self._running:
            self._running[place] = self._bars.add_task(f"  {self._names[place]}", total=self._rounds)
        self._bars.update(self._running[place], completed=round_)

    def done(self, place: int, summary: RunSummary) -> None:
        """Count a finished run."""
        if place in self._running:
            self._bars.remove_task(self._running.pop(place))
        if self._all is not None:
            self._bars.advance(self._all)
        if not errors.is_terminal:
            elapsed_s = time.perf_counter() - self._started
            score = f"{summary.metric.name} {summary.metric.text(summary.score)}"
            line = f"[{elapsed_s:6.1f} s] {self._names[place]}: {score}"
            errors.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> RunProgress:
        # While runs are under way SIGTERM ends them like an interrupt does: in order, and workers with them.
        if threading.current_thread() is threading.main_thread():
            self._on_terminate = signal.signal(signal.SIGTERM, _terminate)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._on_terminate is not None:
            signal.signal(signal.SIGTERM, self._on_terminate)
        self._bars.stop()
        if kind is KeyboardInterrupt or kind is SystemExit:
            line = "stopped; what is finished is kept, and the same command goes on with the rest"
            errors.print(line, style="bold", markup=False, soft_wrap=True)


def _terminate(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)
