from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import wayfare
from tests.cli.conftest import Finished
from tests.conftest import SMALL

Type = Callable[..., Finished]
SETTINGS = [word for override in SMALL for word in ("--set", override)]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pages that a browser was asked to show."""
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(shown.append(address)) or True)
    return shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison; tests of this file may run in different processes, so that none leaves it to another."""
    folder = tmp_path_factory.mktemp("runs")
    wayfare.compare(wayfare.load("fashion-small", SMALL), ["mads", "afl"], seeds=2, jobs=1, out=folder)
    return folder


def test_compare_opens_its_page(wayfare_command: Type, tmp_path: Path, opened: list[str]) -> None:
    words = ["--schemes", "mads,afl", "--seeds", 2, "--jobs", 1, "--out", tmp_path, "--open"]
    done = wayfare_command("compare", *SETTINGS, *words)
    assert done.code == 0
    assert "View: wayfare report" in done.out
    (comparison,) = tmp_path.iterdir()
    assert opened == [(comparison / "report" / "index.html").resolve().as_uri()]


def test_report_writes_the_page_where_it_is_told(wayfare_command: Type, folder: Path, tmp_path: Path) -> None:
    (comparison,) = folder.iterdir()
    page = tmp_path / "new" / "page.html"
    done = wayfare_command("report", comparison, "--out", page, "--seed", 1, "--json")
    assert done.json == {"page": str(page), "files": [str(page)]}
    text = page.read_text(encoding="utf-8")
    assert '"replay":{"seed":1,' in text
    assert "<title>fashion-small: Wayfare report</title>" in text


def test_report_of_one_run_warns_of_one_seed(wayfare_command: Type, folder: Path, tmp_path: Path) -> None:
    (comparison,) = folder.iterdir()
    (run,) = comparison.glob("runs/mads-seed0-*")
    assert wayfare_command("report", run, "--out", tmp_path, "--figures", "svg").code == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "One seed is one world" in page
    assert (tmp_path / "accuracy-rounds.svg").exists()


def test_where_there_is_no_browser_the_place_of_the_page_is_told(
    wayfare_command: Type, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    (comparison,) = folder.iterdir()
    done = wayfare_command("report", comparison, "--open")
    assert done.code == 0
    assert f"Found no browser; open {(comparison / 'report' / 'index.html').resolve()}" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--figures", "bmp"], "--figures = 'bmp': must be one of pdf, svg, png"),
        (["--seed", "99"], "--seed = 99: no run has this seed; must be one of 0, 1"),
        (["--out", "/proc/nowhere"], "/proc/nowhere: cannot write here"),
        (["--out", "/proc/nowhere/page.html"], "/proc/nowhere: cannot write here"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: list[str], message: str, wayfare_command: Type, folder: Path
) -> None:
    (comparison,) = folder.iterdir()
    done = wayfare_command("report", comparison, *words)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert done.out == ""


def test_without_plotly_the_page_says_how_to_get_it(
    wayfare_command: Type, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    (comparison,) = folder.iterdir()
    done = wayfare_command("report", comparison)
    assert done.code == 2
    assert "pip install 'wayfare[report]'" in done.err
