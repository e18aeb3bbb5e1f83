"""Fuzz every parser of external input: each input must load or raise one of Wayfare's errors.

    python scripts/fuzz.py [--inputs 100000] [--only "contact plan"] [--seed 0] [--memory-mb 2000]

Any other exception, more than 5 s of CPU time or a minute of wall time, or more extra memory than the limit is a
fault. The script prints the smallest input that shows it and exits with 1.
"""

from __future__ import annotations

import argparse
import logging
import platform
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tests.faults.inputs import Fuzzer, examples, fuzzers, loads_or_says_why


def main() -> int:
    """Run all fuzzers and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these parsers")
    parser.add_argument("--memory-mb", type=int, default=2000)
    arguments = parser.parse_args()
    # Damaged checkpoints cause thousands of expected warnings.
    logging.getLogger("wayfare").setLevel(logging.ERROR)
    signal.signal(signal.SIGALRM, _hangs)
    faults = 0
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as work:
        known = fuzzers(examples(Path(made)), Path(made))
        known = {name: fuzzer for name, fuzzer in known.items() if name in (arguments.only or known)}
        _limit_memory(arguments.memory_mb << 20)
        each = -(-arguments.inputs // len(known))
        total = loaded = 0
        print(f"{platform.machine()}, Python {platform.python_version()}")
        for name, fuzzer in known.items():
            began = time.monotonic()
            counts, slowest_s, fault = _try(fuzzer, each, arguments.seed, Path(work))
            total, loaded = total + sum(counts), loaded + counts[1]
            print(
                f"{name:24} {sum(counts):7,} inputs, {counts[1]:7,} load, {counts[0]:7,} rejected; slowest "
                f"{slowest_s:.2f} s; {time.monotonic() - began:.0f} s in all{'' if fault is None else '; FAULT'}",
                flush=True,
            )
            if fault is not None:
                faults += 1
                print(fault, flush=True)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{total:,} inputs: {loaded:,} load, {total - loaded:,} rejected, {faults} faults; peak {peak_mb:.0f} MB")
    return 1 if faults else 0


def _try(fuzzer: Fuzzer, count: int, start: int, folder: Path) -> tuple[list[int], float, str | None]:
    """The numbers of rejected and loaded inputs, the slowest time, and the fault if there is one."""
    counts, slowest_s = [0, 0], 0.0

    @seed(start)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def try_(data: st.DataObject) -> None:
        nonlocal slowest_s
        drawn = data.draw(fuzzer.given)
        began = time.process_time()
        signal.alarm(60)
        try:
            counts[loads_or_says_why(fuzzer, drawn, folder)] += 1
        finally:
            signal.alarm(0)
            slowest_s = max(slowest_s, time.process_time() - began)

    try:
        try_()
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        return counts, slowest_s, f"{type(error).__name__}: {error}\n{notes}"[:4000]
    return counts, slowest_s, None


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("hangs")


def _limit_memory(more_bytes: int) -> None:
    """Limit memory beyond the program's current use."""
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main())
