"""Kill runs of the default preset with SIGKILL at random points and resume them; every result must be identical.

    python scripts/kill_runs.py [--kills 200] [--rounds 300] [--checkpoint-every-rounds 7] [--seed 0] [--set A=B]

It covers all schemes and energy rules, with the engines `reference` and `stacked`. It exits with 1 if any resumed run
differs from the undisturbed one in any bit of its model or records, or leaves a gap, a duplicate or a file behind.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.killing import Harness

import wayfare


def main() -> int:
    """Run all trials; print a line for each, and a table at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--checkpoint-every-rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="override a field")
    arguments = parser.parse_args()
    scenario = wayfare.load("fashion-small", [*arguments.set, f"rounds={arguments.rounds}"])
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(
            Path(folder), scenario, seed=arguments.seed, checkpoint_every_rounds=arguments.checkpoint_every_rounds
        )
        for line in harness.trials(arguments.kills):
            print(line, flush=True)
    tried = harness.tried
    print(f"\n{platform.machine()}, Python {platform.python_version()}, {time.monotonic() - began:.0f} s")
    print(f"{tried.kills} kills, {tried.identical} resumes identical, {len(tried.failures)} not")
    for title, counts in (("where", tried.by_operation), ("what", tried.by_case)):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    for failure in tried.failures:
        print(f"FAILED {failure}")
    return 1 if tried.failures else 0


if __name__ == "__main__":
    sys.exit(main())
