"""Kills runs at random points with SIGKILL, resumes them, and compares the results with the undisturbed run.

Runs are forked from this process, which has imported everything, so that a trial costs little more than its rounds. A
third of the kills come after a random time, from outside. The others come at an operation that touches the disk, its
kind and then its occurrence drawn at random: a write into a checkpoint (of which half is then written), a flush, a new
name, a deletion, a statement of SQLite or the end of its transaction. So every place in the writing of a checkpoint is
met.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import wayfare
from wayfare.records import checkpoints, layout, unfinished, write
from wayfare.scenario import Scenario
from wayfare.world import draw_world

TABLES = ("contacts", "evaluations", "metrics", "devices", "model")
# Every kind of state that a method can carry: of the server, of devices, of momentum, of relays.
SCHEMES = (
    *("mads", "afl-spar:paced", "afl", "sfl-spar:paced", "mads + sgd(momentum=0.9)", "fedbuff", "ca2fl", "fadas"),
    *(
        "scaffold",
        "feddyn",
        "ef21-sgdm",
        "dgc",
        "random-k",
        "qsgd",
        "threshold",
        "mobility-aware",
        "staleness-weighted",
    ),
    *("fedmobile:unlimited", "fedasync", "optimal", "afl-spar", "sfl-spar", "afl:unlimited", "mads-rd"),
)
ENGINES = ("stacked", "reference")
Contents: TypeAlias = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run to be killed."""

    scenario: Scenario
    scheme: str
    engine: str
    checkpoint_every_rounds: int

    def run(self, out: Path) -> None:
        wayfare.run(self.scenario, self.scheme, out=out, execution=self.execution)

    @property
    def execution(self) -> wayfare.Execution:
        safeguards = wayfare.Safeguards(checkpoint_every_rounds=self.checkpoint_every_rounds)
        return wayfare.Execution(engine=self.engine, safeguards=safeguards)


@dataclass(slots=True)
class Tried:
    """The results of all trials."""

    kills: int = 0
    identical: int = 0
    by_operation: Counter[str] = field(default_factory=Counter)
    by_case: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class DiskOperations:
    """Counts operations that touch the disk, by their kind; at one of them the process kills itself."""

    def __init__(self, kill_at: tuple[str, int] | None) -> None:
        self._kill_at, self.seen = kill_at, Counter[str]()

    def happens(self, name: str, before: Callable[[], None] | None = None) -> None:
        """An operation is about to take place."""
        self.seen[name] += 1
        if (name, self.seen[name]) == self._kill_at:
            if before is not None:
                before()
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """For the rest of this process; it is a fork that ends soon."""
        summed, fsync, replace, rename, unlink, connect = (
            checkpoints._Summed.write,
            os.fsync,
            Path.replace,
            Path.rename,
            Path.unlink,
            layout.connect,
        )

        def half(stream: Any, content: bytes) -> None:
            stream._stream.write(content[: len(content) // 2])
            stream._stream.flush()

        def write_(stream: Any, content: bytes) -> int:
            self.happens("write", lambda: half(stream, content))
            return summed(stream, content)

        def traced(partial: Path) -> sqlite3.Connection:
            connection = connect(partial)
            connection.set_trace_callback(lambda statement: self.happens(f"SQL {statement.split()[0]}"))
            return connection

        def told(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*arguments: Any, **named: Any) -> Any:
                self.happens(name)
                return function(*arguments, **named)

            return wrapper

        checkpoints._Summed.write = write_  # type: ignore[method-assign, assignment]
        os.fsync = told("fsync", fsync)
        Path.replace = told("replace", replace)  # type: ignore[method-assign]
        Path.rename = told("rename", rename)  # type: ignore[method-assign]
        Path.unlink = told("unlink", unlink)  # type: ignore[method-assign]
        for module in (layout, write, unfinished):
            module.connect = traced  # type: ignore[attr-defined]


def in_fork(work: Callable[[], None]) -> int:
    """Start work in a fork; its process id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(process: int) -> int:
    """Wait for a process; its exit code, or the number of the signal that ended it, negative."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def contents(out: Path) -> Contents:
    """The reproducible content of a finished run; the folder must contain nothing else."""
    files = [file for file in out.rglob("*") if file.is_file()]
    assert [file.name for file in files] == ["run.sqlite"], f"more than the records is left: {files}"
    with closing(sqlite3.connect(files[0])) as database:
        return {table: database.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}


def without_gap_or_duplicate(scenario: Scenario, found: Contents) -> None:
    """The records contain every contact and every evaluation exactly once."""
    meets = draw_world(scenario, 0).meets
    wanted = list(zip(meets.round.tolist(), meets.device.tolist(), strict=True))
    assert [row[:2] for row in found["contacts"]] == wanted
    every = scenario.learning.evaluate_every_rounds
    rounds = [round_ for round_ in range(scenario.rounds + 1) if round_ % every == 0 or round_ == scenario.rounds]
    assert [row[0] for row in found["evaluations"]] == rounds


class Harness:
    """Trials of many cases in one folder."""

    def __init__(self, folder: Path, scenario: Scenario, *, seed: int, checkpoint_every_rounds: int) -> None:
        torch.set_num_threads(1)
        self._folder, self._scenario, self._every = folder, scenario, checkpoint_every_rounds
        self._rng = np.random.Generator(np.random.PCG64(seed))
        # Forks share what is drawn here.
        draw_world(scenario, 0)
        self._expected: dict[tuple[str, str], tuple[Contents, Counter[str], float]] = {}
        self.tried = Tried()

    def trials(self, count: int) -> Iterator[str]:
        """Kill this many runs, resume and compare each, and describe each trial in a line."""
        place = 0
        while self.tried.identical + len(self.tried.failures) < count:
            case = Case(
                scenario=self._scenario,
                scheme=SCHEMES[place % len(SCHEMES)],
                engine=ENGINES[(place // len(SCHEMES)) % len(ENGINES)],
                checkpoint_every_rounds=self._every,
            )
            place += 1
            yield self._trial(case)

    def _trial(self, case: Case) -> str:
        expected, operations, duration_s = self._undisturbed(case)
        name = f"{case.scheme} {case.engine}"
        out = self._folder / "trial"
        shutil.rmtree(out, ignore_errors=True)
        how = self._kill(case, out, operations, duration_s)
        if how is None:
            return f"{name}: ended before it was killed"
        if self._rng.random() < 0.25:
            # The resume may be killed as well.
            again = self._kill(case, out, operations, duration_s)
            how += f", then {again}" if again else ""
        code = ended(in_fork(lambda: case.run(out)))
        try:
            assert code == 0, f"the resume ended with {code}"
            found = contents(out)
            without_gap_or_duplicate(case.scenario, found)
            differing = [table for table in TABLES if found[table] != expected[table]]
            assert not differing, f"not the undisturbed run: {differing}"
        except AssertionError as error:
            self.tried.failures.append(f"{name}, killed {how}: {error}")
            return f"{name}: killed {how}: FAILED: {error}"
        self.tried.identical += 1
        self.tried.by_case[name] += 1
        return f"{name}: killed {how}: identical"

    def _kill(self, case: Case, out: Path, operations: Counter[str], duration_s: float) -> str | None:
        """Start or resume a run and kill it. Returns the point of the kill, or None if the run finished first."""
        if self._rng.random() < 1 / 3:
            delay_s = float(self._rng.uniform(0, duration_s))
            process = in_fork(lambda: case.run(out))
            time.sleep(delay_s)
            os.kill(process, signal.SIGKILL)
            kind, where = "a random time", f"after {delay_s:.2f} s"
        else:
            kind = str(self._rng.choice(sorted(operations)))
            occurrence = int(self._rng.integers(1, operations[kind] + 1))

            def counted() -> None:
                DiskOperations((kind, occurrence)).install()
                case.run(out)

            process = in_fork(counted)
            where = f"at {kind} {occurrence} of {operations[kind]}"
        if ended(process) != -signal.SIGKILL:
            return None
        self.tried.kills += 1
        self.tried.by_operation[kind] += 1
        return where

    def _undisturbed(self, case: Case) -> tuple[Contents, Counter[str], float]:
        """Content, disk operations and duration of the undisturbed run."""
        key = case.scheme, case.engine
        if key not in self._expected:
            out, counted = self._folder / "undisturbed", self._folder / "counted"
            shutil.rmtree(out, ignore_errors=True)

            def count() -> None:
                disk = DiskOperations(None)
                disk.install()
                case.run(out)
                counted.write_text(json.dumps(disk.seen), encoding="utf-8")

            began = time.monotonic()
            assert ended(in_fork(count)) == 0
            duration_s = time.monotonic() - began
            operations = Counter[str](json.loads(counted.read_text(encoding="utf-8")))
            self._expected[key] = contents(out), operations, duration_s
        return self._expected[key]
