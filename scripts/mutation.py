"""Change one token of a package at a time, and count how often its own tests notice.

    python scripts/mutation.py [--only control radio] [--sample 40] [--seed 0] [--where TEXT] [--survivors]

Without `--sample` it tries every mutant, which takes days. It prints the survivors and writes all results to
build/mutation.json; `--survivors` tries the survivors of the last run again. It ends with 1 where a package kills less
than 95 % of the mutants that can be killed: docs/results/mutation.md lists those that cannot.

Cosmic Ray starts a new Python for each mutant, and importing PyTorch takes longer than most tests here. So this script
forks: a process that has run the tests once swaps the code of one function and runs the tests that execute its line.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from mutants import Mutant, Place, places_in

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results/mutation.md"
RESULTS = ROOT / "build/mutation.json"
SOURCE = Path("src/wayfare")
LEAST_SHARE = 0.95
MEMORY_BYTES = 12 << 30
PATIENCE = 6  # seconds to wait for each second of CPU time
LIBRARIES = (
    *("torch", "scipy.stats", "scipy.optimize", "hypothesis", "pydantic", "typer", "rich.console", "constriction"),
    *("matplotlib.pyplot", "nats", "cryptography.x509", "xdist.plugin", "anyio.pytest_plugin", "pytest_timeout"),
)

# What to change, and the tests that are to notice it.
PACKAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "control": ("control", ("tests/control",)),
    "device": ("device", ("tests/device", "tests/simulator/test_forecasts.py")),
    "server": ("server.py", ("tests/test_server.py",)),
    "sparsify": ("sparsify", ("tests/sparsify",)),
    "radio": ("radio", ("tests/radio",)),
    "methods": ("methods", ("tests/methods",)),
    "codec": ("codec", ("tests/codec",)),
    "contacts": ("contacts", ("tests/contacts",)),
    "partition": ("learning/partition.py", ("tests/learning/test_partitions.py",)),
    "statistics": ("records/statistics.py", ("tests/records/test_seed_statistics.py",)),
    "theory": ("theory", ("tests/theory",)),
    "ledger": ("field/runtime/ledger.py", ("tests/field/test_ledger.py", "tests/field/test_ledger_rounds.py")),
    "outbox": ("field/runtime/outbox.py", ("tests/field/test_outbox.py", "tests/field/test_outbox_progress.py")),
    "exchange": (
        "field/runtime/exchange.py",
        ("tests/field/test_exchange_by_hand.py", "tests/field/test_downloads_by_hand.py"),
    ),
}
# Whole runs, other processes and long samples: too slow to be repeated for each mutant.
TOO_SLOW = (
    *("test_corrected_runs.py", "test_every_method.py", "test_fitting.py", "test_bounds.py", "test_constants.py"),
    *("test_controller_bounds.py", "test_staleness.py", "test_planner.py", "test_documents.py", "test_billing.py"),
    *("a_fleet_uses", "scale_of_a_model", "a_fleet_with_more", "malformed"),
    *("power_that_fails", "in_other_processes", "of_a_file_run", "runs_too", "learns_and_repeats", "unbiased"),
    *("same_chance", "nothing_is_lost_or_counted", "auto_keeps", "a_run_that_finds", "is_not_harmed", "true_length"),
)
OPTIONS = (
    *("-x", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"),
    *("-k", f"not ({' or '.join(TOO_SLOW)})"),
)

TraceFunction = Callable[[FrameType, str, Any], Any]


def main() -> int:
    """Try the mutants of each package; 1 if one of them kills too few."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PACKAGES, default=list(PACKAGES), metavar="PACKAGE")
    parser.add_argument("--sample", type=int, metavar="MUTANTS", help="so many of each package, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--where", default="", metavar="TEXT", help="only lines that contain this")
    parser.add_argument("--survivors", action="store_true", help="only those that survived the last run")
    arguments = parser.parse_args()
    for library in LIBRARIES:
        importlib.import_module(library)
    results: dict[str, dict[str, str]] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    page = PAGE.read_text("utf-8").replace(r"\|", "|")
    equivalent = set(re.findall(r"^\| `(.+?)` \| `(.+?)` \| `(.+?)` \|", page, re.MULTILINE))
    kill_enough = True
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "runs"))
        os.chdir(copy)
        sys.path[:0] = [str(copy / "src"), str(copy)]
        os.environ["PYTHONPATH"] = f"{copy / 'src'}:{copy}"
        for package in arguments.only:
            every = sampled = [place for place in all_places(package) if arguments.where in place.was]
            if arguments.sample is not None and arguments.sample < len(every):
                sampled = random.Random(arguments.seed).sample(every, arguments.sample)
            chosen = [place.mutant() for place in sampled]
            before = results.get(package, {}) if arguments.survivors else {}
            if arguments.survivors:
                chosen = [mutant for mutant in chosen if before.get(mutant.name) == "survived"]
            results[package] = before | outcomes_of(package, chosen, equivalent)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1), "utf-8")
            kill_enough &= report(package, len(every), list(results[package].values()))
    return int(not kill_enough)


def all_places(package: str) -> list[Place]:
    """Every place of a package, in the order of its files."""
    source = SOURCE / PACKAGES[package][0]
    modules = sorted(source.rglob("*.py")) if source.is_dir() else [source]
    return [place for module in modules for place in places_in(module, SOURCE)]


def report(package: str, total: int, outcomes: list[str]) -> bool:
    """Print the line of a package; whether it kills enough."""
    killed, survived, equivalent = (outcomes.count(each) for each in ("killed", "survived", "equivalent"))
    share = killed / max(killed + survived, 1)
    print(
        f"{package:11} {total:5} mutants, {len(outcomes):4} tried, {killed:4} killed, {equivalent:3} equivalent, "
        f"{survived:3} survived: {share:.1%}",
        flush=True,
    )
    return share >= LEAST_SHARE or killed + survived == 0


class Recorder:
    """Notes which tests execute which lines of some modules, and how long each test takes."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._files = {str((SOURCE / module).resolve()) for module in modules}
        self._lines: dict[str, set[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace one test with its fixtures."""
        executed = self._lines[item.nodeid] = set()

        def in_function(frame: FrameType, event: str, _: object) -> TraceFunction:
            executed.add((frame.f_code.co_filename, frame.f_lineno))
            return in_function

        def anywhere(frame: FrameType, event: str, _: object) -> TraceFunction | None:
            return in_function if frame.f_code.co_filename in self._files else None

        began_s = time.monotonic()
        sys.settrace(anywhere)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.seconds[item.nodeid] = time.monotonic() - began_s

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that execute the changed line, the quickest first."""
        place = (str((SOURCE / mutant.module).resolve()), mutant.line)
        return [test for test in self.quickest_first() if place in self._lines[test]]

    def quickest_first(self) -> list[str]:
        """All tests."""
        return sorted(self.seconds, key=self.seconds.__getitem__)


def outcomes_of(package: str, mutants: list[Mutant], equivalent: set[tuple[str, str, str]]) -> dict[str, str]:
    """What became of each mutant."""
    outcomes = {mutant.name: "equivalent" for mutant in mutants if mutant.is_among(equivalent)}
    left = [mutant for mutant in mutants if mutant.name not in outcomes]
    results = Path("results.json")
    # A process that has imported the package tries what is inside functions; this one, which has not, the rest.
    inside = [mutant for mutant in left if mutant.in_function]
    if fails_in_child(lambda: try_inside_functions(PACKAGES[package][1], inside, results), limit_s=1e6):
        raise SystemExit(f"{package}: its tests fail without any change")
    found, tests, limit_s = json.loads(results.read_text("utf-8"))
    outcomes |= found
    for mutant in left:
        if not mutant.in_function:
            with on_disk(mutant):
                killed = fails_in_child(lambda: run_tests(tests), limit_s=limit_s)
            outcomes[mutant.name] = outcome_of(mutant, killed)
    return outcomes


def try_inside_functions(tests: Sequence[str], mutants: list[Mutant], results: Path) -> int:
    """Run the tests unchanged, then each mutant against the tests that execute its line."""
    recorder = Recorder({mutant.module for mutant in mutants})
    if failed := run_tests(tests, recorder):
        return failed
    outcomes = {}
    for mutant in mutants:
        chosen = recorder.tests_of(mutant)
        limit_s = 10.0 + 10 * sum(recorder.seconds[test] for test in chosen)
        with on_disk(mutant):  # for processes that tests start
            killed = bool(chosen) and fails_in_child(functools.partial(run_swapped, mutant, chosen), limit_s=limit_s)
        outcomes[mutant.name] = outcome_of(mutant, killed)
    whole_s = sum(recorder.seconds.values())
    results.write_text(json.dumps([outcomes, recorder.quickest_first(), 30.0 + 10 * whole_s]), "utf-8")
    return 0


def outcome_of(mutant: Mutant, killed: bool) -> str:
    """The outcome in a word; a survivor is printed."""
    if not killed:
        print(f"  {mutant.module}:{mutant.line}: {mutant.was}\n      -> {mutant.becomes}", flush=True)
    return "killed" if killed else "survived"


@contextmanager
def on_disk(mutant: Mutant) -> Iterator[None]:
    """The mutant in place of its module."""
    file = SOURCE / mutant.module
    original, stat = file.read_text("utf-8"), file.stat()
    file.write_text(mutant.code, "utf-8")
    yield
    file.write_text(original, "utf-8")
    # Python compares the time of a compiled file with that of its source.
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def run_swapped(mutant: Mutant, tests: Sequence[str]) -> int:
    """Put the changed code into the functions that exist, then run the tests."""
    path = str((SOURCE / mutant.module).resolve())
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compile(mutant.code, path, "exec"))}
    for thing in gc.get_objects():
        # isinstance would wake modules that load themselves when they are looked at.
        if type(thing) is FunctionType and thing.__code__.co_filename == path:
            thing.__code__ = codes[thing.__code__.co_qualname, thing.__code__.co_firstlineno]
        elif type(thing) is functools._lru_cache_wrapper:
            thing.cache_clear()
    return run_tests(tests)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def run_tests(tests: Sequence[str], *plugins: object) -> int:
    """Pytest in this process, silently and up to the first failure."""
    # Only the unchanged package may be compiled to files.
    sys.dont_write_bytecode = not plugins
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.stdout.flush()
    kept = [os.dup(stream) for stream in (1, 2)]
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    failed = int(pytest.main([*OPTIONS, *tests], plugins=plugins))
    for stream, before in zip((1, 2), kept, strict=True):
        os.dup2(before, stream)
    return failed


def fails_in_child(work: Callable[[], int], *, limit_s: float) -> bool:
    """Whether a process of its own fails at something, or takes too long: CPU time, as others may use the machine."""
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s)))
            failed = work()
        finally:
            sys.stdout.flush()
            os._exit(failed)
    end_s = time.monotonic() + PATIENCE * limit_s
    while time.monotonic() < end_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status != 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


if __name__ == "__main__":
    sys.exit(main())
