"""Results on a pre-trained network say so: they rest on knowledge from elsewhere."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests.conftest import SMALL

import wayfare
from wayfare.report.caveats import backbone_text
from wayfare.report.markdown import markdown
from wayfare.report.sections import results_section
from wayfare.report.study_tables import study_columns
from wayfare.report.tables import comparison_table
from wayfare.studies.results import read_results
from wayfare.studies.study import plan_of


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ([{"backbone": "none", "trained": "head"}], None),
        ([{"task": "of an early version"}], None),
        (
            [{"backbone": "/home/me/mine.py:net", "trained": "norms"}] * 2,
            "mine.py:net, trained beforehand on other data; learned here: norms",
        ),
        (
            [
                {"backbone": "none", "trained": "head"},
                {"backbone": "timm:a@/b/c.pth", "trained": "head"},
                {"backbone": "timm:a@/b/c.pth", "trained": "adapters"},
            ],
            "timm:a@c.pth, trained beforehand on other data; learned here: head, adapters",
        ),
    ],
)
def test_the_note_names_the_backbone_and_what_is_learned(settings: list[dict[str, str]], text: str | None) -> None:
    trains: Any = SimpleNamespace(parameters=9, sums=0)
    sums: Any = SimpleNamespace(parameters=9, sums=9)
    assert backbone_text(settings, [trains]) == text
    assert text is None or backbone_text(settings, [sums]) == text.rpartition(":")[0] + ": class statistics"


def test_tables_reports_and_pages_name_the_backbone(tmp_path: Path) -> None:
    others = [setting for setting in SMALL if not setting.startswith("learning.hidden")]
    scenario = wayfare.load("fashion-small", [*others, "learning.backbone=efficientnet-lite0", "rounds=10"])
    compared = wayfare.compare(scenario, ["statistics", "mads"], seeds=1, jobs=1, out=tmp_path)
    shown = StringIO()
    Console(file=shown, width=200).print(comparison_table(compared.schemes, compared.runs))
    results = read_results(compared.folder)
    expected = "efficientnet-lite0, trained beforehand on other data; learned here: head, class statistics"
    assert expected in shown.getvalue()
    assert f"backbone: {expected}" in results_section(results)["notes"]
    assert f"- backbone: {expected}" in markdown(results, [])


def test_a_study_with_statistics_shows_bits_unless_it_names_its_columns(tmp_path: Path) -> None:
    """An entry of statistics is sent once, so shares of an update do not compare."""
    study = {
        "name": "some",
        "scenario": "pretrained-small",
        "schemes": ["statistics", "mads"],
        "seeds": 1,
        "set": {"rounds": 4, "fleet": {"devices": 3}},
        "grid": {"radio": {"bandwidth_hz": [20e3, 1e6]}},
    }
    for metrics, heading in (({}, "sent\nMbit"), ({"metrics": ["score", "kept_fraction"]}, "kept\n%")):
        wayfare.sweep(plan_of({**study, **metrics}), out=tmp_path / heading[:4], jobs=1)
        headings = [column.heading for column in study_columns(read_results(tmp_path / heading[:4] / "some"))]
        assert [found for found in headings if found.startswith(("sent", "kept"))] == [heading]
