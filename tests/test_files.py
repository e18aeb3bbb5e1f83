"""Atomic writes: a reader finds the old content or the new, and an error leaves nothing behind."""

from __future__ import annotations

import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from wayfare.errors import InputError
from wayfare.files import lock, make_folder_atomically, open_atomically, write_atomically, writing


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def test_a_file_replaces_the_one_before(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "first é\n")
    write_atomically(tmp_path / "file", b"second", durable=False)
    assert (tmp_path / "file").read_bytes() == b"second"
    assert names_in(tmp_path) == ["file"]


def test_an_error_in_the_middle_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "old")
    with pytest.raises(TypeError), open_atomically(tmp_path / "file") as file:
        file.writelines([b"half of what is ne", None])  # type: ignore[list-item]
    assert (tmp_path / "file").read_text() == "old"
    assert names_in(tmp_path) == ["file"]


def test_a_disk_that_takes_no_more_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "file", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert names_in(tmp_path) == ["file"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "old")
    if not (process := os.fork()):
        with open_atomically(tmp_path / "file") as file:
            file.write(b"half of what is ne")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / "file").read_text() == "old"
    write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_secret_is_never_readable_to_others(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("an old key that everyone may read")
    (tmp_path / "key").chmod(0o644)
    with open_atomically(tmp_path / "key", mode=0o600) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        file.write(b"secret")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_plain_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_atomically(tmp_path / "file", "")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_concurrent_writers_leave_one_whole_file(tmp_path: Path) -> None:
    contents = [bytes([letter]) * 100_000 for letter in range(8)]
    together = threading.Barrier(len(contents))

    def write(content: bytes) -> None:
        with open_atomically(tmp_path / "file") as file:
            file.write(content[:50_000])
            together.wait()
            file.write(content[50_000:])

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() in contents
    assert names_in(tmp_path) == ["file"]


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with make_folder_atomically(tmp_path / "below" / "folder", mode=0o700) as draft:
        (draft / "file").touch()
        assert not (tmp_path / "below" / "folder").exists()
    assert names_in(tmp_path / "below") == ["folder"]
    assert names_in(tmp_path / "below" / "folder") == ["file"]


def test_a_folder_that_holds_something_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    with pytest.raises(OSError, match="not empty"), make_folder_atomically(tmp_path / "folder") as draft:
        (draft / "file").touch()
    assert names_in(tmp_path) == ["folder"]
    assert names_in(tmp_path / "folder") == ["mine"]


def test_an_error_of_the_disk_names_the_path_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: cannot write here: No such file"), writing(tmp_path / "nowhere"):
        write_atomically(tmp_path / "nowhere" / "file", "")


def test_a_lock_is_refused_or_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as mine, (tmp_path / "lock").open("w") as theirs:
        lock(mine.fileno())
        with pytest.raises(BlockingIOError):
            lock(theirs.fileno())
        waiting = threading.Thread(target=lock, args=(theirs.fileno(),), kwargs={"wait": True})
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        mine.close()
        waiting.join(10)
        assert not waiting.is_alive()
