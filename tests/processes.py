"""Programs in processes of their own that start at once.

They are forked from a process that has imported PyTorch but never used it, as workers are. So they know nothing of this
process, as if a shell had started them.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from wayfare.__main__ import main
from wayfare.forking import quick_context

_ENOUGH_S = 120.0


@dataclass(frozen=True)
class Program:
    process: BaseProcess
    out_file: Path
    errors_file: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def out(self) -> str:
        return self.out_file.read_text(encoding="utf-8")

    @property
    def errors(self) -> str:
        return self.errors_file.read_text(encoding="utf-8")

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def ended(self, timeout_s: float = _ENOUGH_S) -> int:
        """Wait for the end; the exit code, or the number of the signal that ended it, negative."""
        self.process.join(timeout_s)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            raise AssertionError(f"still running after {timeout_s:g} s: {self.errors}")
        return code


def start_command(*words: str | Path, logs: Path, prepare: Callable[[], None] | None = None) -> Program:
    """`wayfare WORDS` in a session of its own, after some preparation of its process."""
    return _start(_command, ([str(word) for word in words], prepare), logs)


def start_script(script: Path, *, folder: Path, logs: Path) -> Program:
    """`python SCRIPT` in some folder."""
    return _start(_script, (script, folder), logs)


def _start(work: Callable[..., None], args: tuple[object, ...], logs: Path) -> Program:
    logs.mkdir(parents=True, exist_ok=True)
    out, errors = logs / "out.txt", logs / "errors.txt"
    context = quick_context("wayfare.studies.local", "wayfare.field.rig.demo")
    process = context.Process(target=_live, args=(work, args, out, errors, dict(os.environ)))
    process.start()
    return Program(process, out, errors)


def _live(
    work: Callable[..., None], args: tuple[object, ...], out: Path, errors: Path, environment: dict[str, str]
) -> None:
    os.setsid()
    for file, number in ((out, 1), (errors, 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(environment)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    work(*args)


def _command(words: list[str], prepare: Callable[[], None] | None) -> None:
    sys.argv = ["wayfare", *words]
    if prepare is not None:
        prepare()
    main()


def _script(script: Path, folder: Path) -> None:
    os.chdir(folder)
    sys.argv, sys.path[0] = [str(script)], str(script.parent)
    runpy.run_path(str(script), run_name="__main__")
