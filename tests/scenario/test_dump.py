"""Scenario files that Wayfare writes load back unchanged, with any text in them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wayfare.contacts.source import plan_from_source
from wayfare.scenario import load, parse
from wayfare.scenario.dump import to_toml, toml_value

FILE_NAMES = st.text(min_size=1)
SCALARS = st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
PLAIN_KEYS = st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True)
OTHER_KEYS = st.text(min_size=1).filter(lambda key: "." not in key)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN_KEYS | OTHER_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_every_value_is_read_back(value: Any) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}") == {"value": value}


@given(FILE_NAMES)
def test_a_scenario_on_a_file_of_any_name_loads_back(name: str) -> None:
    spec = {"model": "trace", "file": name}
    scenario = parse({**load("fashion-small").model_dump(mode="json"), "mobility": spec})
    assert parse(tomllib.loads(to_toml(scenario))) == scenario


def test_a_trace_whose_name_has_an_emoji_is_read(tmp_path: Path) -> None:
    file = tmp_path / "bus 🚌.csv"
    file.write_text("start_s,end_s,a,b\n0,10,bus,a\n20,30,bus,b\n")
    assert len(plan_from_source(str(file), seed=0).plan) == 2
