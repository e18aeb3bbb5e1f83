"""Every example runs as it stands, in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_prints_something(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("name", "lines"), [("my_method", 20), ("my_task", 30)])
def test_a_scheme_or_a_task_of_ones_own_takes_few_lines(name: str, lines: int) -> None:
    (example,) = [path for path in EXAMPLES if name in path.stem]
    text = example.read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert len([line for line in text.splitlines() if line.strip()]) <= lines
