"""Long work in the library reports its progress, and a terminal shows it."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from wayfare.cli import terminal
from wayfare.progress import listening, report_progress


def test_nobody_need_listen_and_a_listener_hears_until_its_block_ends() -> None:
    heard: list[tuple[str, int, int]] = []
    report_progress("reading", 1, 3)
    with listening(lambda *told: heard.append(told)):
        report_progress("reading", 2, 3)
    report_progress("reading", 3, 3)
    assert heard == [("reading", 2, 3)]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_only(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(terminal, "errors", Console(file=screen, force_terminal=is_terminal, width=60))
    with listening(terminal.ReadingBar()):
        for done in range(1, 4):
            report_progress("reading sequences", done, 3)
    assert ("reading sequences" in screen.getvalue()) == is_terminal


def test_work_that_fails_half_way_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(terminal, "errors", Console(file=screen, force_terminal=True, width=60))
    bar = terminal.ReadingBar()
    bar("reading sequences", 1, 3)
    bar.stop()
    bar.stop()
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert screen.getvalue().rindex(shown) > screen.getvalue().rindex(hidden)


def test_without_a_terminal_long_work_prints_a_line_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = StringIO(), iter(range(0, 1000, 10))
    monkeypatch.setattr(terminal, "errors", Console(file=screen, width=60))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    bar = terminal.ReadingBar()
    for done in range(1, 8):
        bar("features of cifar10", 1000 * done, 60_000)
    assert screen.getvalue().splitlines() == [
        "features of cifar10: 3,000 of 60,000",
        "features of cifar10: 6,000 of 60,000",
    ]
