"""The words in pictures, as matplotlib draws them."""

from __future__ import annotations

import re
from dataclasses import replace
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
from wayfare.report.study_figures import study_figure
from wayfare.report.write import write_report
from wayfare.studies.results import read_results


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


def test_figures_of_a_comparison_stay_within_what_can_be(comparison: Path, tmp_path: Path, drawn: list[Any]) -> None:
    write_report(comparison, tmp_path, figures="svg")
    names = ("accuracy-rounds", "accuracy-energy", "accuracy-bits", "energy-devices", "queue", "kept", "staleness")
    axes = {name: figure.axes[0] for name, figure in zip(names, drawn, strict=True)}
    for name, panel in axes.items():
        assert panel.get_xlim()[0] >= 0, name
        assert re.search(r"\(.+\)|^round$", panel.get_xlabel()), name
        if name.startswith("accuracy"):
            assert panel.get_ylabel() == "test accuracy (%)"
            assert 0 <= panel.get_ylim()[0] < panel.get_ylim()[1] <= 100
    budget = read_results(comparison).schemes[0].budget_joules
    lines = {line.get_label(): line for line in axes["accuracy-energy"].lines}
    assert list(lines["energy budget"].get_xdata()) == [budget, budget]
    assert axes["accuracy-energy"].get_xlim()[1] > budget


def test_figures_of_a_study_show_the_budget_and_bars_beside_each_other(
    study: Path, tmp_path: Path, drawn: list[Any]
) -> None:
    read = read_results(study)
    wide = replace(read.rows[0].estimates["score"], mean=0.97, ci95=0.2)
    rows = [replace(row, estimates={**row.estimates, "score": wide}) for row in read.rows]
    results = replace(read, rows=rows)
    for metric in ("score", "energy_joules"):
        study_figure(results, metric, tmp_path / f"{metric}.svg")
    score, energy = (figure.axes[0] for figure in drawn)
    assert 0 <= score.get_ylim()[0] < score.get_ylim()[1] <= 100
    assert energy.get_ylim()[0] >= 0
    assert energy.get_ylabel() == "energy (J)"
    assert "energy budget" in energy.get_legend_handles_labels()[1]
    one, other = (container.lines[0].get_xdata() for container in score.containers)
    assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))
