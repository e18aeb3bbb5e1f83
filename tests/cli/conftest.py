from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import typer


@dataclass(frozen=True)
class Finished:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


# Typer makes the same tree of commands for every call, in which only the words differ.
_commands_of = cache(typer.main.get_command)


@pytest.fixture
def wayfare_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Run a command in this process and capture its output and exit code."""
    from wayfare.cli.app import main

    monkeypatch.setattr("typer.main.get_command", _commands_of)

    def type_(*words: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["wayfare", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return type_
