"""A disk fills up during a run: the error says what is saved, and the run resumes when there is space."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import wayfare
from tests.conftest import SMALL
from tests.processes import Program, start_command
from wayfare.records import read_run

SETTINGS = [word for override in SMALL for word in ("--set", override)]


def write_no_large_file() -> None:
    """Limit the size of files: equivalent to a full disk on systems where nothing can be mounted."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # Records grow to more than this in the middle of the run.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def start_run(out: Path, logs: Path, prepare: Callable[[], None] | None = None) -> Program:
    words = ["run", *SETTINGS, "--seed", "1", "--out", out, "--checkpoint-every-rounds", "5"]
    return start_command(*words, logs=logs, prepare=prepare)


def assert_resumes(done: Program, out: Path, small: wayfare.Scenario, tmp_path: Path) -> None:
    assert done.ended() == 1
    assert done.errors.count("error: ") == 1
    assert "cannot be written" in done.errors
    assert "Traceback" not in done.errors
    assert not list(out.rglob("*.new"))
    again = start_run(out, tmp_path / "again")
    assert again.ended() == 0, again.errors
    (folder,) = out.glob("*/mads-seed1")
    expected = wayfare.run(small, "mads", seed=1, out=tmp_path / "undisturbed")
    assert torch.equal(read_run(folder).model, expected.model)


def test_a_file_that_may_grow_no_more_ends_the_run_with_what_is_safe(small: wayfare.Scenario, tmp_path: Path) -> None:
    done = start_run(tmp_path / "runs", tmp_path / "logs", write_no_large_file)
    assert_resumes(done, tmp_path / "runs", small, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB in memory, if this user may mount it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("no file system can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_ends_the_run_with_what_is_safe(small: wayfare.Scenario, small_disk: Path, tmp_path: Path) -> None:
    room = small_disk / "filler"
    room.write_bytes(bytes(1_600_000))
    done = start_run(small_disk / "runs", tmp_path / "logs")
    done.ended()
    assert "No space left on device" in done.errors or "disk is full" in done.errors
    assert "wayfare resume" in done.errors
    room.unlink()
    assert_resumes(done, small_disk / "runs", small, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    done = start_run(tmp_path / "closed" / "runs", tmp_path / "logs")
    assert done.ended() == 2
    assert "cannot write here" in done.errors
