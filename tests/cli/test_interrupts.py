"""Interrupted commands lose nothing and leave no process behind."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import SETTINGS, Type
from tests.processes import start_command
from wayfare.cli.terminal import RunProgress

# Long enough to be met under way by the first worker that is up.
COMPARE = ("compare", *SETTINGS, "--set", "rounds=800", "--schemes", "mads,afl", "--seeds", "1", "--json")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    program = start_command(*COMPARE, "--out", folder / "runs", "--jobs", "1", logs=folder)
    assert program.ended() == 0, program.errors
    return rows_of(json.loads(program.out))


def rows_of(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a comparison without wall times."""
    rows: list[dict[str, Any]] = comparison["rows"]
    for row in rows:
        assert row["metrics"].pop("wall_s")
    return rows


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_comparison_and_the_same_command_resumes_it(
    number: signal.Signals, code: int, wayfare_command: Type, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    program = start_command(*COMPARE, "--out", tmp_path, "--jobs", "2", logs=tmp_path / "logs")
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("*.partial/run.sqlite")) and time.monotonic() < deadline:
        time.sleep(0.05)
    # A terminal sends SIGINT to all processes, a supervisor SIGTERM to the first.
    if number == signal.SIGINT:
        os.killpg(program.pid, number)
    else:
        program.send_signal(number)
    assert program.ended(30) == code
    assert "interrupted; finished runs are kept, and the same command resumes the rest" in program.errors
    assert "Traceback" not in program.errors
    deadline = time.monotonic() + 10
    while alive(program.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(program.pid)
    assert list(tmp_path.rglob("*.checkpoint"))
    again = wayfare_command(*COMPARE, "--out", tmp_path, "--jobs", "1")
    assert rows_of(again.json) == undisturbed


SLOW = """
import time
from pathlib import Path

import wayfare


class Slow(wayfare.UploadRule):
    name = "slow"

    def decide(self, encounter, link):
        Path(__file__).with_name("deciding").touch()
        time.sleep(60)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_second_interrupt_ends_it_at_once_and_as_quietly_as_one(jobs: int, tmp_path: Path) -> None:
    scheme = tmp_path / "slow.py"
    scheme.write_text(SLOW, encoding="utf-8")
    words = [*SETTINGS, "--schemes", f"{scheme}:Slow,mads", "--seeds", "1", "--jobs", str(jobs)]
    program = start_command("compare", *words, "--out", tmp_path / "a", logs=tmp_path / "logs")
    deadline = time.monotonic() + 60
    while not (tmp_path / "deciding").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(program.pid, signal.SIGINT)
    # The answer comes while the round is still under way; what another run has told by then may stand before it.
    while "stopping: " not in program.errors.rpartition("\n")[0]:
        assert program.process.is_alive(), program.errors
        time.sleep(0.01)
    pressed = time.monotonic()
    os.killpg(program.pid, signal.SIGINT)
    assert program.ended(30) == 130
    assert time.monotonic() - pressed < 8
    (first,) = [line for line in program.errors.splitlines() if "stopping: " in line]
    errors = program.errors.partition(first)[2]
    assert "press Ctrl-C again to stop at once" in first
    assert errors.splitlines()[-1] == "interrupted; finished runs are kept, and the same command resumes the rest"
    assert "Traceback" not in errors
    assert "Error" not in errors


def test_a_run_that_was_stopped_is_resumed_by_its_folder(wayfare_command: Type, tmp_path: Path) -> None:
    program = start_command("run", *SETTINGS, "--set", "rounds=800", "--out", tmp_path, logs=tmp_path / "logs")
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("*.partial/run.sqlite")) and time.monotonic() < deadline:
        time.sleep(0.01)
    program.send_signal(signal.SIGTERM)
    assert program.ended() == 143
    assert "mads-seed0: stopped; a checkpoint holds everything up to round " in program.errors
    folder = next(tmp_path.glob("*/mads-seed0.partial"))
    assert "only `rounds` of a run may change" in wayfare_command("resume", folder, "--set", "radio.range_m=5").err
    assert "resume with `wayfare resume " in wayfare_command("show", folder).err
    done = wayfare_command("resume", folder.parent, "--json")
    assert done.code == 0
    assert done.json["runs"][0]["scheme"] == "mads"
    assert "this run is finished" in wayfare_command("resume", done.json["runs"][0]["folder"]).err


def alive(group: int) -> bool:
    """Whether a process group still has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_interrupts_are_heard_again_after_the_last_words() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), RunProgress():
        raise KeyboardInterrupt
    assert signal.getsignal(signal.SIGINT) is before
