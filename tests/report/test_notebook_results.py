"""A comparison in Python: a table for notebooks, data frames, curves and a report."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wayfare
from wayfare.errors import InputError, UnavailableError
from wayfare.methods import scheme_label
from wayfare.report.labels import named_with_task
from wayfare.report.notebook import ShownResults
from wayfare.scenario import Scenario


@pytest.fixture(scope="module")
def done(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> ShownResults:
    out = tmp_path_factory.mktemp("runs")
    return wayfare.compare(small, ["mads", "x = afl-spar:paced"], seeds=2, jobs=1, out=out)


def test_a_comparison_shows_itself_as_a_table(done: ShownResults) -> None:
    html = done._repr_html_()
    assert html.count("<tr>") == 3
    assert "<td>MADS</td>" in html
    assert "<th>scheme</th>" in html
    assert "<caption>" in html


def test_a_comparison_and_its_runs_print_as_what_they_found(done: ShownResults) -> None:
    assert str(done).startswith(done.manifest.name)
    assert all(scheme_label(row.scheme) in str(done) for row in done.rows)
    assert max(map(len, str(done).splitlines())) <= 100
    assert str(done.runs[0]).startswith("<RunRecord of mads, seed 0, ")


def test_updates_of_different_sizes_are_compared_by_bits(done: ShownResults) -> None:
    assert "<th>kept %</th>" in done._repr_html_()
    first, *others = done.rows
    larger = [replace(result, summary=replace(result.summary, parameters=9)) for result in first.results]
    html = replace(done, rows=[replace(first, results=larger), *others])._repr_html_()
    assert "<th>kept %</th>" not in html
    assert "<th>sent Mbit</th>" in html


def test_names_are_text_and_no_markup(done: ShownResults) -> None:
    row = done.rows[0]
    assert "<b>" not in replace(done, rows=[replace(row, scheme="<b>")])._repr_html_()


class Frame(list[Any]):
    """What pandas makes of rows, without pandas."""


def test_it_gives_data_frames_where_pandas_is_installed(done: ShownResults, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = ModuleType("pandas")
    pandas.DataFrame = Frame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    runs, evaluations = done.frame(), done.evaluations_frame()
    assert isinstance(runs, Frame)
    assert [(row["scheme"], row["seed"]) for row in runs] == [("mads", 0), ("mads", 1), ("x", 0), ("x", 1)]
    assert {row["round"] for row in evaluations} >= {20, 40, 60}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnavailableError, match="pip install pandas"):
        done.frame()


def test_it_plots_its_curves(done: ShownResults, tmp_path: Path) -> None:
    picture = done.plot()
    assert picture.file == done.folder / "curves.png"
    assert (picture._repr_png_() or b"").startswith(b"\x89PNG")
    drawn = done.plot(tmp_path / "curves.svg")
    assert drawn._repr_png_() is None
    assert "<svg" in (drawn._repr_svg_() or "")


def test_it_writes_its_report(done: ShownResults, tmp_path: Path) -> None:
    page, *others = done.report(tmp_path / "report")
    assert page.name == "index.html"
    assert [file.name for file in others] == ["report.md"]


def test_a_study_of_several_points_shows_what_varies(tmp_path: Path) -> None:
    from tests.conftest import SMALL

    from wayfare.studies.study import plan_of

    table = {"name": "two", "schemes": ["mads"], "seeds": 1, "grid": {"rounds": [20, 40]}}
    settings = {key: value for key, _, value in (text.partition("=") for text in SMALL)}
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        here = nested
        for section in sections:
            here = here.setdefault(section, {})
        here[last] = [16] if value == "[16]" else float(value) if "e" in value else int(value)
    nested.pop("rounds")
    done = wayfare.sweep(plan_of({**table, "set": nested}), out=tmp_path, jobs=1).results
    assert isinstance(done, ShownResults)
    assert "<th>rounds</th>" in done._repr_html_()
    with pytest.raises(InputError, match="needs a study of one point"):
        done.plot()


@pytest.mark.parametrize(
    ("name", "task", "title"),
    [
        ("fashion-small", "fashion-small", "fashion-small"),
        ("paper-cifar10-waypoint", "cifar10", "paper-cifar10-waypoint"),
        ("fashion-small", "rings", "fashion-small, task rings"),
        ("fashion-small", "small", "fashion-small, task small"),
    ],
)
def test_titles_name_the_task_unless_the_name_does(name: str, task: str, title: str) -> None:
    assert named_with_task(name, task) == title


def test_a_notebook_gets_plain_text_once(done: ShownResults, monkeypatch: pytest.MonkeyPatch) -> None:
    def displayed(*_: object) -> None:
        raise AssertionError("shown a second time")

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", displayed)
    assert "\x1b" not in repr(done)
