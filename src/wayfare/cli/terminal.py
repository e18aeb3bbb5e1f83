"""Consoles, common options and progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn
from rich.table import Table

from wayfare.cli.words import with_options
from wayfare.errors import ScenarioError
from wayfare.progress import duration_text
from wayfare.signals import exit_at_sigterm, interrupts_ignored

if TYPE_CHECKING:
    from wayfare.records import RunSummary

# PyTorch takes seconds to import. Commands import it when they run, so that `--help` stays fast.
output = Console(emoji=False)
# In a narrower window the lines of a table wrap; rich would otherwise cut digits.
output.width = max(output.width, 80)
errors = Console(stderr=True, emoji=False)

ScenarioArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="[PRESET|FILE.toml]", help="A preset (see `wayfare presets`) or a scenario file.")
]
SetOption: TypeAlias = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a field, e.g. `--set radio.bandwidth_hz=2e6`.")
]
OutOption: TypeAlias = Annotated[Path, typer.Option("--out", help="The folder for run folders.")]
JobsOption: TypeAlias = Annotated[
    int | None, typer.Option(help="Number of parallel runs; default: one per core, or one on a GPU.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
SeedsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="N|A,B,...",
        help="Number of seeds, or a list such as `1,2,3`; `7,` is seed 7 alone. All schemes of a seed share one world.",
    ),
]


def seeds_of(text: str) -> int | list[int]:
    """Parse ``--seeds``: ``5`` is a number of seeds, ``1,2,3`` a list, ``7,`` a list with one seed."""
    try:
        found = [int(seed) for seed in text.split(",") if seed.strip()] if "," in text else int(text)
    except ValueError:
        rule = "must be an integer, or several integers separated by commas"
        raise ScenarioError("--seeds", text, rule) from None
    if isinstance(found, int) and found < 1:
        raise ScenarioError("--seeds", found, "must be at least 1")
    return found


def say(text: str) -> None:
    """Print one line verbatim: no markup, colours or wrapping."""
    output.print(text, markup=False, highlight=False, soft_wrap=True)


def listing(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*headings, box=None)
    for row in rows:
        table.add_row(*row)
    return table


def facts(rows: Iterable[tuple[str, str]], title: str | None = None) -> Table:
    """A table of names and values."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_json(value: Any) -> None:
    """Print one JSON object. NaN and infinity, such as the score of a diverged run, become null."""
    print(json.dumps(_without_nan(value), indent=2, allow_nan=False))


def _without_nan(value: Any) -> Any:
    match value:
        case float():
            return value if isfinite(value) else None
        case dict():
            return {key: _without_nan(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_without_nan(entry) for entry in value]
    return value


def bars(*columns: ProgressColumn, spinner: bool = False) -> Progress:
    """Transient progress bars on standard error; nothing without a terminal."""
    first = (*([SpinnerColumn()] if spinner else []), TextColumn("{task.description}"), BarColumn())
    return Progress(*first, *columns, console=errors, transient=True, disable=not errors.is_terminal)


def number_text(value: float | None, nothing: str = "-") -> str:
    if value is None:
        return nothing
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


# Without a terminal, a progress line appears at least this often.
_SILENCE_S = 30.0


class ReadingBar:
    """A progress bar for long work inside the library. Without a terminal, a line every half minute."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._task = TaskID(0)
        self._spoken_s = time.perf_counter()

    def __call__(self, what: str, done: int, total: int) -> None:
        if not errors.is_terminal and time.perf_counter() - self._spoken_s >= _SILENCE_S:
            self._spoken_s = time.perf_counter()
            errors.print(f"{what}: {done:,} of {total:,}", markup=False, highlight=False, soft_wrap=True)
        if self._bars is None:
            self._bars = bars(MofNCompleteColumn())
            self._task = self._bars.add_task(what, total=total)
            self._bars.start()
        self._bars.update(self._task, completed=done)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        """Remove the bar, also after an error."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class Shown(Protocol):
    """A run in the progress display: its length in rounds, if known, and its relative cost."""

    @property
    def name(self) -> str: ...

    @property
    def rounds(self) -> int | None: ...

    @property
    def cost(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    rounds: int | None = None
    cost: float = 1.0


class RunProgress:
    """Progress of runs: on a terminal, a bar for each running run and one for all.

    Without a terminal it prints a line for each finished run, and every half minute while none finishes.
    """

    def __init__(self) -> None:
        self._bars = bars(MofNCompleteColumn(), TextColumn("{task.fields[clock]}"))
        self._all: TaskID | None = None
        self._running: dict[int, TaskID] = {}
        self._jobs: Sequence[Shown] = ()
        self._reached: dict[int, float] = {}  # share of each run that is done
        self._finished = self._failed = 0
        self._total = 0
        self._started = self._spoken = time.perf_counter()
        self._working_since: float | None = None  # None while workers start
        self._restore_signals: Callable[[], None] = lambda: None

    def begin(self, jobs: Sequence[Shown], finished: int = 0) -> None:
        self._jobs, self._finished, self._total = jobs, finished, finished + len(jobs)
        if finished:
            self._line(f"{finished} of {self._total} runs are already finished")
        self._all = self._bars.add_task(self._state(), total=self._total, completed=finished, clock="")
        self._bars.start()

    def advance(self, index: int, round_: int) -> None:
        rounds = self._jobs[index].rounds
        if round_ and self._working_since is None:
            self._working_since = time.perf_counter()
        if index not in self._running:
            self._running[index] = self._bars.add_task(f"  {escape(self._jobs[index].name)}", total=rounds, clock="")
        self._reached[index] = round_ / rounds if rounds else 0.0
        self._bars.update(self._running[index], completed=round_)
        self._update()
        if not errors.is_terminal and time.perf_counter() - self._spoken >= _SILENCE_S:
            far = f"round {round_:,} of {rounds:,}" if rounds else f"round {round_:,}"
            count = f"{self._finished + self._failed}/{self._total} " if self._total > 1 else ""
            self._line(f"{self._clock()} {count}{self._jobs[index].name}: {far}{self._left()}")

    def done(self, index: int, summary: RunSummary, *, elsewhere: bool = False) -> None:
        self._finished += 1
        by = " (run by another sweep)" if elsewhere else ""
        self._end(index, f"{summary.metric.name} {summary.metric.text(summary.score)}{by}")

    def failed(self, index: int, reason: str) -> None:
        self._failed += 1
        self._end(index, f"failed: {reason}", always=True)

    def again(self, index: int, reason: str) -> None:
        self._reached.pop(index, None)
        if index in self._running:
            self._bars.remove_task(self._running.pop(index))
        self._line(f"{self._jobs[index].name}: {reason}; trying again")

    def left_s(self) -> float | None:
        """Estimated time left, from the costs of the runs; None before 5 % of a run is done."""
        done = sum(self._jobs[index].cost * share for index, share in self._reached.items())
        whole = sum(job.cost for job in self._jobs)
        if not done or max(self._reached.values()) < 0.05:
            return None
        return (time.perf_counter() - (self._working_since or self._started)) * (whole - done) / done

    def _end(self, index: int, outcome: str, *, always: bool = False) -> None:
        self._reached[index] = 1.0
        if index in self._running:
            self._bars.remove_task(self._running.pop(index))
        self._update()
        if always or not errors.is_terminal:
            ended = self._finished + self._failed
            left = self._left() if ended < self._total else ""
            count = f"{ended}/{self._total} " if self._total > 1 else ""
            self._line(f"{self._clock()} {count}{self._jobs[index].name}: {outcome}{left}")

    def _clock(self) -> str:
        return f"[{time.perf_counter() - self._started:6.1f} s]"

    def _left(self) -> str:
        left_s = self.left_s()
        return f" ({duration_text(left_s)} left)" if left_s else ""

    def _update(self) -> None:
        if self._all is None:
            return
        left_s = self.left_s()
        clock = f"{duration_text(left_s)} left" if left_s is not None else ""
        ended = self._finished + self._failed
        self._bars.update(self._all, description=self._state(), completed=ended, clock=clock)

    def _state(self) -> str:
        failed = f", [red]{self._failed} failed[/red]" if self._failed else ""
        return f"{self._finished} done, {len(self._running)} running{failed}"

    def _line(self, text: str) -> None:
        self._spoken = time.perf_counter()
        errors.print(with_options(text), markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> RunProgress:
        # SIGTERM ends runs and their workers cleanly, like an interrupt.
        self._restore_signals = exit_at_sigterm()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._restore_signals()
        # Another Ctrl-C must not interrupt the last message.
        with interrupts_ignored():
            self._bars.stop()
            if kind is KeyboardInterrupt or kind is SystemExit:
                line = "interrupted; finished runs are kept, and the same command resumes the rest"
                errors.print(line, style="bold", markup=False, soft_wrap=True)
