from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import chromium
from tests.studies.small_study import write_study

import wayfare
from wayfare.report.write import write_report
from wayfare.scenario import Scenario

HOSTILE = "<script>window.hacked=1</script>"


class Hostile(wayfare.UploadRule):
    """A scheme whose name would run as a script if it were not escaped."""

    name = HOSTILE

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        return wayfare.send_top_k(encounter, link, link.max_power_watts / 4)


@pytest.fixture(scope="session")
def comparison(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three schemes with two seeds, one of them with a hostile name."""
    out = tmp_path_factory.mktemp("comparison")
    return wayfare.compare(small, ["mads", "afl", Hostile()], seeds=2, jobs=1, out=out).folder


@pytest.fixture(scope="session")
def page(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(comparison, tmp_path_factory.mktemp("page") / "page.html")[0]


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two schemes at two speeds with one seed."""
    folder = tmp_path_factory.mktemp("study")
    wayfare.sweep(wayfare.load_study(write_study(folder, rounds=20, seeds=1)), out=folder, jobs=1)
    return folder / "small"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started
