"""A disk that fills up in the middle of a run: what is safe is told, and the run goes on when there is room."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import wayfare
from tests.conftest import SMALL
from wayfare.records import read_run

SETTINGS = [word for override in SMALL for word in ("--set", override)]
# The process may write no file larger than this: as good as a full disk, where nothing can be mounted.
LIMITED = (
    "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    "limit = int(sys.argv.pop(1)); resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit));"
    "from wayfare.__main__ import main; main()"
)


def command(out: Path, *words: str) -> list[str]:
    return ["run", *SETTINGS, "--seed", "1", "--out", str(out), "--checkpoint-every-rounds", "5", *words]


def typed(*words: str, limit_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, "-c", LIMITED, str(limit_bytes)] if limit_bytes else [sys.executable, "-m", "wayfare"]
    return subprocess.run([*python, *words], capture_output=True, text=True, check=False)


def assert_goes_on(done: subprocess.CompletedProcess[str], out: Path, small: wayfare.Scenario, tmp_path: Path) -> None:
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(out.rglob("*.new"))
    again = typed(*command(out))
    assert again.returncode == 0, again.stderr
    (folder,) = out.glob("*/mads-seed1")
    expected = wayfare.run(small, "mads", seed=1, out=tmp_path / "undisturbed")
    assert torch.equal(read_run(folder).model, expected.model)


def test_a_file_that_may_grow_no_more_ends_the_run_with_what_is_safe(small: wayfare.Scenario, tmp_path: Path) -> None:
    # Records grow to more than this in the middle of the run.
    done = typed(*command(tmp_path / "runs"), limit_bytes=100_000)
    assert_goes_on(done, tmp_path / "runs", small, tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Two megabytes of memory, if this user may mount one."""
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
    done = typed(*command(small_disk / "runs"))
    assert "No space left on device" in done.stderr or "disk is full" in done.stderr
    assert "wayfare resume" in done.stderr
    room.unlink()
    assert_goes_on(done, small_disk / "runs", small, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = typed(*command(tmp_path / "runs"))
    tmp_path.chmod(0o700)
    assert done.returncode == 2
    assert "cannot write here" in done.stderr
