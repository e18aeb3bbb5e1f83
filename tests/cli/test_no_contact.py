"""Scores of runs without a contact are never shown without a warning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMALL
from tests.report.test_verdict import runs
from wayfare.report.caveats import NOTHING_LEARNED, no_contact
from wayfare.report.write import write_report

OUT_OF_RANGE = [word for setting in (*SMALL, "rounds=20", "radio.range_m=0.001") for word in ("--set", setting)]


def test_a_comparison_without_a_contact_ends_with_an_error_and_says_why(
    wayfare_command: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compare = ("compare", "fashion-small", *OUT_OF_RANGE, "--seeds", 2, "--schemes", "mads,afl", "--jobs", 1)
    shown = wayfare_command(*compare, "--out", tmp_path)
    assert shown.code == 1
    assert "No device met the server in any run" in " ".join(shown.out.split())
    assert "No device met the server in any run" in shown.err
    assert "seed 1: no device meets the server in 200 s" in caplog.text
    folder = next(tmp_path.iterdir())
    assert wayfare_command(*compare, "--out", tmp_path, "--json").json["warnings"] == [NOTHING_LEARNED]
    page, text = write_report(folder)
    assert "<h1>Nothing was learned: no device met the server</h1>" in page.read_text()
    assert f"**Warning:** {NOTHING_LEARNED}." in text.read_text()


def test_a_run_without_a_contact_ends_with_an_error(
    wayfare_command: Callable[..., Any],
    tmp_path: Path,
) -> None:
    done = wayfare_command("run", "fashion-small", *OUT_OF_RANGE, "--out", tmp_path, "--json")
    assert (done.code, done.json["contacts"]) == (1, 0)
    assert NOTHING_LEARNED in done.err


def test_worlds_without_a_contact_are_named_where_others_have_some() -> None:
    first, second, third = runs("mads", [0.1, 0.5, 0.5])
    silent = replace(first, contacts=0)
    assert no_contact([("", first), ("", second)]) is None
    assert no_contact([("", silent), ("", replace(second, contacts=0))]) == NOTHING_LEARNED
    assert "(seed 0)" in str(no_contact([("", silent), ("", second)]))
    assert "(speed 5, seed 0)" in str(no_contact([("speed 5", silent), ("speed 5", silent), ("speed 10", third)]))
