"""The user's objects keep their hash in every process until their code or data change."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import wayfare
from wayfare.identity.fingerprint import UnreadableError, fingerprint
from wayfare.methods import make_method
from wayfare.studies.keys import run_key

SCHEME = """
    import wayfare

    SHARE = 0.5

    def power(link, share=1.0):
        if link is None:
            return power(link)
        return SHARE * share * link.max_power_watts if "mine" in {"mine", "yours"} else 0.0

    class Base(wayfare.UploadRule):
        name = "base"

        def decide(self, encounter, link):
            return wayfare.send_top_k(encounter, link, power(link))

    class Mine(Base):
        name = "mine"
        rounds = 3

        def decide(self, encounter, link):
            return super().decide(encounter, link)
"""


def mine(code: str) -> Any:
    """The scheme as a notebook or script would define it."""
    module = ModuleType("__main__")
    exec(compile(dedent(code), "<cell>", "exec"), module.__dict__)
    return module.Mine()


def test_the_same_code_has_the_same_hash_wherever_it_stands() -> None:
    assert fingerprint(mine(SCHEME)) == fingerprint(mine("\n\n    # a comment\n" + SCHEME + "\n    other = 1\n"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SHARE = 0.5", "SHARE = 0.6"),
        ("share=1.0", "share=0.9"),
        ("SHARE * share *", "SHARE *"),
        ('{"mine", "yours"}', '{"mine", "theirs"}'),
        ("rounds = 3", "rounds = 4"),
        ("encounter, link, power(link)", "encounter, link, 2 * power(link)"),
        ("return super().decide(encounter, link)", "return Base().decide(encounter, link)"),
    ],
)
def test_whatever_changes_what_a_scheme_does_changes_its_hash(old: str, new: str) -> None:
    assert old in SCHEME
    assert fingerprint(mine(SCHEME)) != fingerprint(mine(SCHEME.replace(old, new)))


def test_another_process_comes_to_the_same_hash(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    ending = "from wayfare.identity.fingerprint import fingerprint\nprint(fingerprint(Mine()))\n"
    script.write_text(dedent(SCHEME) + ending, encoding="utf-8")
    # A new process has another order of sets.
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(fingerprint(mine(SCHEME)))


@dataclass(frozen=True)
class Table:
    values: Any


@pytest.mark.parametrize("kind", [np.arange, torch.arange])
def test_one_number_among_thousands_counts(kind: Any) -> None:
    one, other = kind(5000), kind(5000)
    assert fingerprint(Table(one)) == fingerprint(Table(other))
    other[2500] = 0
    assert fingerprint(Table(one)) != fingerprint(Table(other))


def network_of(width: int) -> Any:
    return lambda: torch.nn.Linear(2, width)


def test_a_task_counts_by_its_data_and_its_network(small: wayfare.Scenario) -> None:
    def task(width: int, first: float) -> Any:
        data = np.full((4, 2), first, dtype=np.float32), np.array([0, 1, 0, 1])
        return wayfare.own_task("own", train=data, test=data, network=network_of(width))

    def key(task: Any) -> str:
        return run_key(small, make_method("mads", small), 0, wayfare.Execution(), task)

    one = task(2, 0.0)
    before = key(one)
    # What a model has worked out since is no part of it.
    assert one.model.parameters == 6
    assert before == key(one) == key(task(2, 0.0))
    assert len({before, key(task(3, 0.0)), key(task(2, 1.0)), key(None)}) == 4


@cache
def cached(x: float) -> float:
    return x


def test_what_wraps_a_function_is_looked_through() -> None:
    assert fingerprint(cached) == fingerprint(cached)
    assert fingerprint(Table(cached)) != fingerprint(Table(fingerprint))


@pytest.mark.parametrize("folder", ["/usr/lib/python3/dist-packages", "/home/me/.local/lib/python3.11/site-packages"])
def test_libraries_of_another_environment_are_no_code_of_the_user(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.arange(3)
    before = fingerprint(samples, of=type(wayfare))
    monkeypatch.setattr(np, "__file__", f"{folder}/numpy/__init__.py")
    assert fingerprint(samples, of=type(wayfare)) == before


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(UnreadableError, match="cannot pickle"):
        fingerprint(Table(threading.Lock()))
