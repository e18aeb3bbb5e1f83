"""Benchmarks that replace functions by name find them."""

from __future__ import annotations

import sys
from pathlib import Path
from runpy import run_path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_the_benchmark_of_the_host_finds_the_functions_that_it_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCHMARKS)])
    script = run_path(str(BENCHMARKS / "contact_host.py"))
    for place, name, *_ in (*script["PARTS"], *script["VECTOR_WORK"]):
        assert callable(getattr(place, name, None)), f"{place}: {name}"
