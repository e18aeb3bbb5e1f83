"""A sample of the fuzzed inputs; `scripts/fuzz.py` tries any number."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.inputs import Fuzzer, examples, fuzzers, loads_or_says_why

NAMES = (
    *("scenario file", "scenario text", "override", "trace", "contact plan", "damaged plan", "damaged finished run"),
    *("changed finished run", "damaged unfinished run", "changed unfinished run", "image set", "image files"),
    *("Argoverse sequence", "Argoverse map", "Argoverse road graph"),
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fuzzer]:
    folder = tmp_path_factory.mktemp("examples")
    return fuzzers(examples(folder), folder)


def test_every_fuzzer_is_tried_here(known: dict[str, Fuzzer]) -> None:
    assert set(known) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_any_input_loads_or_gives_one_of_our_errors(name: str, known: dict[str, Fuzzer], tmp_path: Path) -> None:
    fuzzer = known[name]

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def try_(data: st.DataObject) -> None:
        loads_or_says_why(fuzzer, data.draw(fuzzer.given), tmp_path)

    try_()
