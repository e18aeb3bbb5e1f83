"""Messages of the library in the words of the command line."""

from __future__ import annotations

import pytest

from wayfare.cli.words import error_text, with_options
from wayfare.errors import InputError, RunFolderError, ScenarioError, WayfareError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ScenarioError("device_state", "tape", "must be one of"), "--device-state = 'tape': must be one of"),
        (ScenarioError("override", "rounds", "must be written"), "--set = 'rounds': must be written"),
        (ScenarioError("engine", "x", "name one with `device=cuda`"), "--engine = 'x': name one with --device cuda"),
        (ScenarioError("radio.range_m", -1, "must be above 0"), "radio.range_m = -1: must be above 0"),
        (RunFolderError("run: damaged; restart it with `fresh=True`"), "run: damaged; restart it with --fresh"),
        (RunFolderError("run: `wayfare.resume('a/b')` continues"), "run: `wayfare resume a/b` continues"),
        (InputError("no data; `fetch_images(IMAGE_SETS['x'])`"), "no data; `wayfare data fetch x`"),
        (InputError("device = 'bus-1': is not in this fleet"), "device = 'bus-1': is not in this fleet"),
    ],
)
def test_fields_and_settings_become_options(error: WayfareError, text: str) -> None:
    assert error_text(error) == text


def test_only_settings_in_backquotes_become_options() -> None:
    text = "/data/device=3/fresh=True: type `wayfare data fetch cifar10`"
    assert with_options(text) == text
