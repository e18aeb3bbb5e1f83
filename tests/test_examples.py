"""Every example runs unchanged in an empty folder and prints the output on record.

Numbers are compared on machines that round like those of the goldens; elsewhere only the text is compared.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import start_script
from tests.simulator import goldens
from tests.simulator.numerics import fingerprint

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("example", EXAMPLES[1:], ids=lambda path: path.stem)
def test_the_example_prints_the_output_beside_it(example: Path, tmp_path: Path) -> None:
    program = start_script(example, folder=tmp_path, logs=tmp_path / "logs")
    assert program.ended() == 0, program.errors
    assert_prints(program.out, example)


def test_an_example_needs_nothing_but_python(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES[0])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_prints(done.stdout, EXAMPLES[0])


def assert_prints(text: str, example: Path) -> None:
    expected = example.with_suffix(".out").read_text(encoding="utf-8")
    if fingerprint() in goldens.read()["machines"]:
        assert text == expected
    else:
        assert without_numbers(text) == without_numbers(expected)


def without_numbers(text: str) -> list[str]:
    return re.sub(r"[-+]?\d[\d,.]*", "", text).split()


def test_every_example_has_a_number_of_its_own() -> None:
    assert [path.name[:2] for path in EXAMPLES] == [f"{number:02}" for number in range(1, len(EXAMPLES) + 1)]


@pytest.mark.parametrize(("name", "lines"), [("my_method", 20), ("my_task", 30)])
def test_a_scheme_or_a_task_of_ones_own_takes_few_lines(name: str, lines: int) -> None:
    (example,) = [path for path in EXAMPLES if name in path.stem]
    text = example.read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert len([line for line in text.splitlines() if line.strip()]) <= lines
