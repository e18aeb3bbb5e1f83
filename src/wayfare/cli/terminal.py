"""What commands share: consoles, options and progress."""

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

# Commands import what needs PyTorch when they run: it takes seconds, and `--help` should not.
output = Console(emoji=False)
# Tables need so many columns. In a narrower window their lines break; squeezed, numbers would lose digits.
output.width = max(output.width, 80)
errors = Console(stderr=True, emoji=False)

ScenarioArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="[PRESET|FILE.toml]", help="A preset (see `wayfare presets`) or a scenario file.")
]
SetOption: TypeAlias = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a field, e.g. `--set radio.bandwidth_hz=2e6`.")
]
OutOption: TypeAlias = Annotated[Path, typer.Option("--out", help="Where run folders go.")]
JobsOption: TypeAlias = Annotated[int | None, typer.Option(help="Runs at the same time; all cores if not given.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
SeedsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="N|A,B,...",
        help="How many seeds, or which; all schemes of a seed meet the same world: `--seeds 1,2,3`.",
    ),
]


def seeds_of(text: str) -> int | list[int]:
    """``5`` seeds, or the seeds ``1,2,3``; ``7,`` is seed 7 alone."""
    try:
        found = [int(seed) for seed in text.split(",") if seed.strip()] if "," in text else int(text)
    except ValueError:
        rule = "input should be a valid integer, or several with commas between them"
        raise ScenarioError("--seeds", text, rule) from None
    if isinstance(found, int) and found < 1:
        raise ScenarioError("--seeds", found, "must be at least 1")
    return found


def say(text: str) -> None:
    """One line as it is: no markup, no colours, no line breaks."""
    output.print(text, markup=False, highlight=False, soft_wrap=True)


def listing(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*headings, box=None)
    for row in rows:
        table.add_row(*row)
    return table


def facts(rows: Iterable[tuple[str, str]], title: str | None = None) -> Table:
    """Names, each with what there is to say of it."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_json(value: Any) -> None:
    """One JSON object on standard output; what is no number, such as the score of a run that diverged, is null."""
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
    """Bars on standard error that are gone when the work is done; nothing elsewhere than on a terminal."""
    first = (*([SpinnerColumn()] if spinner else []), TextColumn("{task.description}"), BarColumn())
    return Progress(*first, *columns, console=errors, transient=True, disable=not errors.is_terminal)


def number_text(value: float | None, nothing: str = "-") -> str:
    if value is None:
        return nothing
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


# Elsewhere than on a terminal nothing is said for so long at most while a run is under way.
_SILENCE_S = 30.0


class ReadingBar:
    """A bar on a terminal for what the library tells of long work; nothing elsewhere."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._task = TaskID(0)

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = bars(MofNCompleteColumn())
            self._task = self._bars.add_task(what, total=total)
            self._bars.start()
        self._bars.update(self._task, completed=done)
        if done >= total:
            self.stop()

    def stop(self) -> None:
        """Give the terminal back, also where the work ended with an error."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class Shown(Protocol):
    """A run as progress shows it: how far it goes, where that is known, and how long it takes beside the others."""

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
    """A bar for every run under way and one for all, on a terminal.

    Elsewhere a line for each finished run, and one every half minute as long as none ends.
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
        self._working_since: float | None = None  # before that, workers start up
        self._give_back: Callable[[], None] = lambda: None

    def begin(self, jobs: Sequence[Shown], finished: int = 0) -> None:
        self._jobs, self._finished, self._total = jobs, finished, finished + len(jobs)
        if finished:
            self._line(f"{finished} of {self._total} runs are finished already")
        self._all = self._bars.add_task(self._state(), total=self._total, completed=finished, clock="")
        self._bars.start()

    def advance(self, place: int, round_: int) -> None:
        rounds = self._jobs[place].rounds
        if round_ and self._working_since is None:
            self._working_since = time.perf_counter()
        if place not in self._running:
            self._running[place] = self._bars.add_task(f"  {escape(self._jobs[place].name)}", total=rounds, clock="")
        self._reached[place] = round_ / rounds if rounds else 0.0
        self._bars.update(self._running[place], completed=round_)
        self._update()
        if not errors.is_terminal and time.perf_counter() - self._spoken >= _SILENCE_S:
            far = f"round {round_:,} of {rounds:,}" if rounds else f"round {round_:,}"
            count = f"{self._finished + self._failed}/{self._total} " if self._total > 1 else ""
            self._line(f"{self._clock()} {count}{self._jobs[place].name}: {far}{self._left()}")

    def done(self, place: int, summary: RunSummary, *, elsewhere: bool = False) -> None:
        self._finished += 1
        by = " (by another sweep)" if elsewhere else ""
        self._end(place, f"{summary.metric.name} {summary.metric.text(summary.score)}{by}")

    def failed(self, place: int, reason: str) -> None:
        self._failed += 1
        self._end(place, f"failed: {reason}", always=True)

    def again(self, place: int, reason: str) -> None:
        self._reached.pop(place, None)
        if place in self._running:
            self._bars.remove_task(self._running.pop(place))
        self._line(f"{self._jobs[place].name}: {reason}; trying again")

    def left_s(self) -> float | None:
        """Time left at the pace so far, by the costs of the runs; None before a twentieth of a run is done."""
        done = sum(self._jobs[place].cost * share for place, share in self._reached.items())
        whole = sum(job.cost for job in self._jobs)
        if not done or max(self._reached.values()) < 0.05:
            return None
        return (time.perf_counter() - (self._working_since or self._started)) * (whole - done) / done

    def _end(self, place: int, outcome: str, *, always: bool = False) -> None:
        self._reached[place] = 1.0
        if place in self._running:
            self._bars.remove_task(self._running.pop(place))
        self._update()
        if always or not errors.is_terminal:
            ended = self._finished + self._failed
            left = self._left() if ended < self._total else ""
            count = f"{ended}/{self._total} " if self._total > 1 else ""
            self._line(f"{self._clock()} {count}{self._jobs[place].name}: {outcome}{left}")

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
        # While runs are under way SIGTERM ends them like an interrupt does: in order, and workers with them.
        self._give_back = exit_at_sigterm()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._give_back()
        # Another Ctrl-C must not cut the last words short.
        with interrupts_ignored():
            self._bars.stop()
            if kind is KeyboardInterrupt or kind is SystemExit:
                line = "stopped; what is finished is kept, and the same command goes on with the rest"
                errors.print(line, style="bold", markup=False, soft_wrap=True)
