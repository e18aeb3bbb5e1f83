"""Shared fixtures of studies."""

from __future__ import annotations

import pytest

import wayfare
from wayfare.records import RunRecord
from wayfare.scenario import Scenario


@pytest.fixture(scope="module")
def whole(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """An undisturbed run."""
    return wayfare.run(small, "mads", seed=1, out=tmp_path_factory.mktemp("whole"))
