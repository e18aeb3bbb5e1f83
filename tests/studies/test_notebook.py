"""Schemes and tasks of a notebook run in its process, and one line says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tests.conftest import SMALL

MINE = """
    import numpy as np, torch, wayfare

    class Mine(wayfare.UploadRule):
        name = "mine"

        def decide(self, encounter, link):
            return wayfare.send_top_k(encounter, link, link.max_power_watts)

    small = wayfare.load("fashion-small", SETTINGS)
"""
SCHEME = "print(wayfare.compare(small, ['mads', Mine()], seeds=2, jobs=2, out=OUT).seeds)"
TASK = """
    data = np.zeros((60, 2), dtype="f4"), np.arange(60) % 3
    own = wayfare.own_task("own", train=data, test=data, network=lambda: torch.nn.Linear(2, 3))
    print(wayfare.compare(small, ["mads"], seeds=2, jobs=2, task=own, out=OUT).seeds)
"""
OURS = "print(wayfare.compare(small, ['mads', 'afl'], seeds=1, jobs=2, out=OUT).seeds + 1)"


def outcome(code: str, folder: Path, *, piped: bool) -> subprocess.CompletedProcess[str]:
    whole = dedent(MINE) + dedent(code)
    whole = whole.replace("SETTINGS", repr([*SMALL, "rounds=20"])).replace("OUT", repr(str(folder)))
    words = [sys.executable, "-"] if piped else [sys.executable, "-c", whole]
    return subprocess.run(words, input=whole if piped else None, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("code", "piped", "line"),
    [
        (SCHEME, False, "Mine is defined in a notebook cell or at a prompt"),
        (TASK, False, "<lambda> is defined in a notebook cell or at a prompt"),
        (OURS, False, ""),
        (SCHEME, True, "worker processes cannot read the program <stdin>"),
    ],
)
def test_what_workers_cannot_find_runs_in_this_process(code: str, piped: bool, line: str, tmp_path: Path) -> None:
    done = outcome(code, tmp_path, piped=piped)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == bool(line), done.stderr
    assert not line or f"runs use one process: {line}" in lines[0]
