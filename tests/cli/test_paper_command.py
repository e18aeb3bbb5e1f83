"""`wayfare paper` as typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.cli.conftest import Finished
from tests.studies.test_paper import smallest
from wayfare.studies.paper import PaperFigure

Type: TypeAlias = Callable[..., Finished]


@pytest.fixture
def small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure at the smallest size."""
    study = PaperFigure.study

    def small(figure: PaperFigure, *, quick: bool) -> Mapping[str, Any]:
        table = smallest(study(figure, quick=quick))
        return {**table, "schemes": [*table["schemes"], *figure.also]}

    monkeypatch.setattr(PaperFigure, "study", small)


@pytest.mark.usefixtures("small_figures")
def test_a_figure_is_drawn_recorded_and_drawn_again_from_what_is_there(wayfare_command: Type, tmp_path: Path) -> None:
    words = ["paper", "fig8c", "--quick", "--jobs", "1", "--out", tmp_path / "runs"]
    none = wayfare_command(*words, "--finished")
    assert none.code == 2
    assert "contains no finished run of fig8c in fp32" in none.err
    done = wayfare_command(*words, "--record", tmp_path / "page")
    assert done.code == 0
    assert "65.66" in done.out
    assert "commit" in (tmp_path / "page" / "fig8c.md").read_text(encoding="utf-8")
    again = wayfare_command(*words, "--finished", "--json").json
    assert again["figure"] == "fig8c"
    assert Path(again["picture"]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("small_figures")
def test_another_scheme_and_other_settings_make_a_figure_of_their_own(wayfare_command: Type, tmp_path: Path) -> None:
    words = ["paper", "fig8c", "--quick", "--jobs", "1", "--out", tmp_path / "runs"]
    changed = ["--also", "mads-rd", "--set", "radio.bandwidth_hz=2e4"]
    done = wayfare_command(*words, *changed, "--record", tmp_path / "page", "--json").json
    assert done["rows"][-1]["scheme"] == "mads-rd"
    assert "--quick --also mads-rd --set radio.bandwidth_hz=2e4" in (tmp_path / "page" / "fig8c.md").read_text("utf-8")
    # The paper's own figure is another study, and has none of these runs.
    assert wayfare_command(*words, "--finished").code == 2
    assert wayfare_command(*words, *changed, "--finished").code == 0
    unknown = wayfare_command(*words, "--also", "nobody")
    assert unknown.code == 2
    assert "nobody" in unknown.err
    wrong = wayfare_command(*words, "--set", "radio.width=1")
    assert wrong.code == 2
    assert "radio.width" in wrong.err
    nothing = wayfare_command("paper", "fig4", "--also", "mads-rd")
    assert nothing.code == 2
    assert "--also" in nothing.err


def test_more_seeds_make_a_study_of_their_own_that_shares_its_runs(wayfare_command: Type, tmp_path: Path) -> None:
    words = ["paper", "fig5", "--quick", "--jobs", "1", "--out", tmp_path / "runs", "--set", "rounds=4"]
    words += ["--set", "fleet.devices=3", "--set", "learning.hidden=[8]"]
    one = wayfare_command(*words, "--json").json
    two = wayfare_command(*words, "--seeds", "2", "--also", "afl", "--record", tmp_path / "page", "--json").json
    assert all(row["seeds"] == [0] for row in one["rows"])
    assert all(row["seeds"] == [0, 1] for row in two["rows"])
    assert "--seeds 2" in (tmp_path / "page" / "fig5.md").read_text("utf-8")
    assert one["picture"] != two["picture"]
    # 6 speeds, 2 schemes, 2 seeds: the first seed of one scheme was there.
    assert len(list((tmp_path / "runs" / "paper" / "runs").iterdir())) == 24
    refused = wayfare_command("paper", "fig4", "--seeds", "2")
    assert refused.code == 2
    assert "--seeds" in refused.err


def test_a_figure_without_training_has_a_page_too(wayfare_command: Type, tmp_path: Path) -> None:
    done = wayfare_command("paper", "fig4", "--quick", "--out", tmp_path / "runs", "--record", tmp_path / "page")
    assert done.code == 0
    assert sorted(file.name for file in (tmp_path / "page").iterdir()) == ["fig4.csv", "fig4.md", "fig4.png"]
    assert "| 20 |" in (tmp_path / "page" / "fig4.md").read_text(encoding="utf-8")


def test_figures_are_listed_and_others_refused(wayfare_command: Type) -> None:
    assert "fig8c" in wayfare_command("paper", "list").out
    assert len(wayfare_command("paper", "list", "--json").json["figures"]) == 12
    refused = wayfare_command("paper", "fig12")
    assert refused.code == 2
    assert "fig12" in refused.err


def test_data_that_are_missing_are_told_once(
    wayfare_command: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "none"))
    for words in (["paper", "fig8b"], ["sweep", "beyond-cifar10"]):
        told = wayfare_command(*words, "--device", "cpu", "--jobs", "1", "--out", tmp_path / "runs")
        assert told.code == (2 if words[0] == "paper" else 1)
        assert told.err.count("error: ") == 1
        assert told.err.rpartition("error: ")[2].count("fetch it with `wayfare data fetch cifar10`") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fig6", "--set", "control.weight=auto"], "control.weight = 'auto': cannot be set: fig6 sets it"),
        (["fig4", "--set", "rounds=3"], "rounds = '3': cannot be set: fig4 sets it"),
        (["fig4", "--jobs", "-3"], "--jobs = -3"),
        (["fig8b", "--finished", "--device", "foo"], "--device = 'foo'"),
        (["fig4", "--precision", "fp7"], "--precision = 'fp7'"),
        (["fig8b", "--picture", "figure.doc"], "--picture = 'figure.doc': must end in one of .png"),
    ],
)
def test_what_is_wrong_is_said_before_any_run(
    words: list[str], message: str, wayfare_command: Type, tmp_path: Path
) -> None:
    refused = wayfare_command("paper", *words, "--quick", "--out", tmp_path)
    assert refused.code == 2
    assert message in refused.err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small_figures")
def test_a_quick_figure_on_record_says_what_it_is_and_gives_a_command_to_paste(
    wayfare_command: Type, tmp_path: Path
) -> None:
    words = ["fig8c", "--quick", "--set", "fleet.devices= 3"]
    wayfare_command("paper", *words, "--jobs", "1", "--out", tmp_path / "runs", "--record", tmp_path / "page")
    page = (tmp_path / "page" / "fig8c.md").read_text(encoding="utf-8")
    assert "**Quick: fashion-small instead of the paper's task.**" in page
    assert "| | paper | here, quick: fashion-small instead of the paper's task |" in page
    assert "--set 'fleet.devices= 3'" in page
