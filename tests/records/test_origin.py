"""Which state of the code made a run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import SMALL

import wayfare
from wayfare.records import origin


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("WAYFARE_COMMIT", raising=False)
    origin.commit_of_code.cache_clear()
    yield
    origin.commit_of_code.cache_clear()


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_checkout_names_its_commit_and_whether_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "origin.py"
    file.write_text("one\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "one")
    _git(tmp_path, "tag", "-a", "v1", "-m", "a name that says nothing about the files")
    monkeypatch.setattr(origin, "__file__", str(file))
    commit = _git(tmp_path, "rev-parse", "--short", "HEAD")
    assert origin.commit_of_code() == commit
    file.write_text("two\n")
    origin.commit_of_code.cache_clear()
    assert origin.commit_of_code() == f"{commit}-dirty"


def test_files_that_no_repository_knows_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "__file__", str(tmp_path / "origin.py"))
    assert origin.commit_of_code() is None
    _git(tmp_path, "init", "-q")
    (tmp_path / "origin.py").write_text("installed below somebody's repository\n")
    assert origin.commit_of_code() is None


def test_a_copy_without_history_is_told_and_records_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYFARE_COMMIT", "1234abc")
    record = wayfare.run(wayfare.load("fashion-small", [*SMALL, "rounds=4"]), out=tmp_path)
    assert [session["commit"] for session in record.meta["sessions"]] == ["1234abc"]
