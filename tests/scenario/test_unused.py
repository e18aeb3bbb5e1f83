"""A setting that has no effect with the others is rejected where the user sets it, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from wayfare.errors import ScenarioError
from wayfare.scenario import load, preset_names
from wayfare.studies.study import load_study, plan_of

HEAD = "with learning.trained = head"


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("learning.trained_blocks=4", f"has no effect {HEAD}; it needs norms, adapters or last-block"),
        ("learning.adapter_rank=4", f"has no effect {HEAD}; it needs adapters"),
        ("learning.adapter_alpha=4.0", f"has no effect {HEAD}; it needs adapters"),
        ("learning.normalisation=group", "has no effect with learning.backbone = efficientnet-lite0; it needs none"),
        ("learning.hidden=[32]", "has no effect with learning.network = auto on top of a backbone; it needs mlp"),
    ],
)
def test_a_setting_of_another_way_of_training_is_rejected(setting: str, rule: str) -> None:
    field, _, value = setting.partition("=")
    with pytest.raises(ScenarioError) as raised:
        load("pretrained-cifar10", [setting])
    assert (raised.value.field, str(raised.value.value), raised.value.rule) == (field, value, rule)


def test_a_size_of_images_without_a_backbone_is_rejected() -> None:
    with pytest.raises(ScenarioError, match=r"learning.backbone_pixels = 96: has no effect with learning.backbone = n"):
        load("fashion-small", ["learning.backbone_pixels=96"])


@pytest.mark.parametrize("trained", ["norms", "adapters", "last-block"])
def test_a_setting_that_another_setting_needs_is_taken_in_any_order(trained: str) -> None:
    overrides = ["learning.trained_blocks=4", f"learning.trained={trained}"]
    assert load("pretrained-cifar10", overrides).learning.trained_blocks == 4
    assert load("pretrained-cifar10", overrides[::-1]).learning.trained_blocks == 4


def test_everything_has_no_number_of_blocks() -> None:
    with pytest.raises(ScenarioError, match=r"with learning.trained = everything; it needs norms"):
        load("pretrained-cifar10", ["learning.trained=everything", "learning.trained_blocks=4"])


def test_a_file_may_keep_settings_for_what_the_command_line_chooses(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "pretrained-cifar10"\n[learning]\ntrained_blocks = 11\n', encoding="utf-8")
    assert load(file, ["learning.trained=adapters"]).learning.trained_blocks == 11
    with pytest.raises(ScenarioError, match=rf"trained_blocks = 11: has no effect {HEAD}.*mine.toml"):
        load(file)
    file.write_text("[learning]\nadapter_rank = 4\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=rf"adapter_rank = 4: has no effect {HEAD}"):
        load(file, ["rounds=40"])
    # Whoever names both, such as the record of a run, knows.
    file.write_text('extends = "pretrained-cifar10"\n[learning]\ntrained = "head"\ntrained_blocks = 11\n')
    assert load(file).learning.trained == "head"
    derived = tmp_path / "derived.toml"
    file.write_text('extends = "pretrained-cifar10"\n[learning]\ntrained = "adapters"\ntrained_blocks = 11\n')
    derived.write_text('extends = "mine.toml"\n[learning]\ntrained = "head"\n', encoding="utf-8")
    assert load(derived).learning.trained_blocks == 11
    assert load(file, ["learning.trained=head"]).learning.trained_blocks == 11


def test_a_study_may_set_what_one_of_its_points_needs() -> None:
    study = {"name": "some", "scenario": "pretrained-cifar10", "schemes": ["mads"]}
    blocks = {"learning": {"trained_blocks": 4}}
    plan = plan_of({**study, "set": blocks, "grid": {"learning": {"trained": ["head", "norms"]}}})
    assert [point.scenario.learning.trained_blocks for point in plan.points] == [4, 4]
    for settings in ({"set": blocks}, {"grid": {"learning": {"trained_blocks": [4, 7]}}}):
        with pytest.raises(ScenarioError, match=f"learning.trained_blocks = .*: has no effect {HEAD}"):
            plan_of({**study, **settings})


def test_presets_and_studies_load() -> None:
    for name in preset_names():
        load(name)
    assert load_study("pretrained-cifar10-trained").points[-1].scenario.learning.trained == "everything"
