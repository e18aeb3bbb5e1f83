"""The words in pictures, as matplotlib draws them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pictures import words_of

import wayfare
from wayfare.contacts import draw_plan
from wayfare.contacts.statistics import plan_statistics
from wayfare.report import canvas
from wayfare.report.contact_figures import plot_contacts
from wayfare.report.holdings import holdings_of, plot_holdings


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were written, as objects."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    write = Figure.savefig

    def kept(self: Figure, *args: Any, **options: Any) -> None:
        write(self, *args, **options)
        figures.append(self)

    monkeypatch.setattr(Figure, "savefig", kept)
    return figures


def test_contact_times_have_plain_numbers_at_their_ticks(tmp_path: Path, drawn: list[Any]) -> None:
    plan = draw_plan(wayfare.load("fashion-small"), 0)
    plot_contacts(plan, plan_statistics(plan), tmp_path / "contacts.png", title="contacts")
    _, contact, _ = drawn[0].axes
    assert {"0.001", "0.01", "0.1", "1"} <= {tick.get_text() for tick in contact.get_yticklabels()}


@pytest.mark.parametrize("scale", ["log", "symlog", "linear"])
def test_every_scale_has_plain_numbers(scale: str, tmp_path: Path, drawn: list[Any]) -> None:
    with canvas.wide_figure(tmp_path / "figure.svg") as figure:
        axes = figure.add_subplot()
        axes.plot([1, 2e7], [0.002, 3e5])
        axes.set(xscale=scale, yscale=scale)
    assert not any("$" in words for words in words_of(drawn[0]))


def test_a_short_logarithmic_axis_has_numbers_between_powers_of_ten(tmp_path: Path, drawn: list[Any]) -> None:
    with canvas.wide_figure(tmp_path / "figure.svg") as figure:
        axes = figure.add_subplot()
        axes.plot([20, 80], [20, 80])
        axes.set(xscale="log", yscale="log")
    assert {"20", "30", "40"} <= set(words_of(drawn[0]))


def test_holdings_are_drawn_on_the_common_sheet(tmp_path: Path, drawn: list[Any]) -> None:
    held = holdings_of(wayfare.load("fashion-small", ["fleet.devices=3"]), 0)
    plot_holdings(held, tmp_path / "held.png")
    assert {"training samples", "device"} <= set(words_of(drawn[0]))
