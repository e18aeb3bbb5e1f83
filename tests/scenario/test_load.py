from __future__ import annotations

from pathlib import Path

import pytest

import wayfare
from wayfare.errors import InputError, ScenarioError
from wayfare.scenario import load, parse, preset_names
from wayfare.scenario.dump import digest, to_toml


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_is_named_after_its_file(name: str) -> None:
    assert load(name).name == name


def test_the_default_preset_is_the_embedded_one() -> None:
    assert load() == load("fashion-small")


def test_overrides_reach_every_depth_and_keep_their_types() -> None:
    scenario = load("fashion-small", ["rounds=5", "radio.bandwidth_hz=2e6", "learning.partition.concentration=10"])
    assert (scenario.rounds, scenario.radio.bandwidth_hz, scenario.learning.partition.concentration) == (5, 2e6, 10.0)


def test_text_and_lists_need_no_quoting() -> None:
    scenario = load("fashion-small", ["control.variant=printed", "learning.hidden=[8, 4]"])
    assert scenario.control.variant == "printed"
    assert scenario.learning.hidden == (8, 4)


def test_changing_the_mobility_model_drops_the_settings_of_the_other_one() -> None:
    scenario = load("fashion-small", ["mobility.model=exponential", "mobility.contact_s=7"])
    assert scenario.mobility.model == "exponential"
    assert scenario.mobility.contact_s == 7.0


def test_a_file_may_extend_a_preset_and_another_file(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text('extends = "fashion-small"\nname = "slow"\n[mobility]\nspeed_mps = 5\n')
    (tmp_path / "slower.toml").write_text('extends = "slow.toml"\nname = "slower"\n[mobility]\npause_max_s = 30\n')
    scenario = load(tmp_path / "slower.toml")
    assert (scenario.name, scenario.rounds) == ("slower", 1000)
    assert scenario.mobility.model == "waypoint"
    assert (scenario.mobility.speed_mps, scenario.mobility.pause_max_s) == (5.0, 30.0)


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"')
    (tmp_path / "b.toml").write_text('extends = "a.toml"')
    with pytest.raises(ScenarioError, match="extends itself"):
        load(tmp_path / "a.toml")


@pytest.mark.parametrize("name", preset_names())
def test_a_written_scenario_loads_back(name: str, tmp_path: Path) -> None:
    scenario = load(name)
    (tmp_path / "scenario.toml").write_text(to_toml(scenario))
    assert load(tmp_path / "scenario.toml") == scenario


def test_the_digest_stands_for_the_numbers_and_not_for_the_name() -> None:
    scenario = load()
    assert digest(scenario) == digest(scenario.model_copy(update={"name": "other", "schemes": ("mads",)}))
    assert digest(scenario) != digest(load(overrides=["rounds=999"]))


def test_a_scenario_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        wayfare.load().rounds = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("radio.bandwith_hz=1", "radio.bandwith_hz = 1: unknown key; known keys: range_m, bandwidth_hz"),
        ("colour=red", "colour = 'red': unknown key; known keys: name, rounds"),
        ("radio.bandwidth_hz=-1", "radio.bandwidth_hz = -1: input should be greater than 0"),
        ("radio.bandwidth_hz=wide", "radio.bandwidth_hz = 'wide': input should be a valid number"),
        ("radio.bandwidth_hz=nan", "radio.bandwidth_hz"),
        ("radio.bandwidth_hz=true", "radio.bandwidth_hz = True: input should be a valid number"),
        ("fleet.devices=0", "fleet.devices = 0: input should be greater than or equal to 1"),
        ("fleet.devices=2.5", "fleet.devices = 2.5: input should be a valid integer"),
        ("mobility.speed_mps=0", "mobility.speed_mps = 0: input should be greater than 0"),
        ("mobility.model=teleport", "mobility.model = 'teleport': must be one of exponential, waypoint"),
        ("mobility.contact_s=3", "mobility.contact_s = 3: unknown key"),
        ("mobility.model=trace", "mobility.file = None: is required"),
        ("server.kind=fixed", "server = '{...}': kind: its position is set in mobility.server"),
        ("mobility.server.kind=flying", "mobility.server.kind = 'flying': must be one of moving, fixed, route"),
        ("mobility.server={kind='fixed', z_m=1}", "mobility.server.z_m = 1: unknown key; known keys: kind, x_m, y_m"),
        ("mobility.server={kind='fixed', x_m='a'}", "mobility.server.x_m = 'a': input should be a valid number"),
        ("fleet.energy_min_joules=999", "energy_min_joules (999.0) must not exceed energy_max_joules (150.0)"),
        ("learning.hidden=[0]", "learning.hidden.0 = 0: input should be greater than or equal to 1"),
        ("name=../up", "name = '../up': string should match pattern"),
        ("rounds", "override = 'rounds': must be written as section.field=value"),
        ("=3", "override = '=3': must be written as section.field=value"),
        ("rounds.deep=3", "rounds"),
    ],
)
def test_bad_overrides_are_refused_with_field_value_and_rule(override: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refusal:
        load("fashion-small", [override])
    assert message in str(refusal.value)


def test_a_preset_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ScenarioError, match=r"scenario = 'fashion-smal': neither a preset \(.*fashion-small, "):
        load("fashion-smal")


def test_files_that_are_not_toml_or_not_text_or_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("rounds = [")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for source in (tmp_path / "broken.toml", tmp_path / "binary.toml", tmp_path):
        with pytest.raises(InputError, match=str(source)):
            load(source)


def test_values_no_scenario_can_hold_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"mobility\.model = None: is required: one of exponential, waypoint, "):
        parse({"mobility": {"speed_mps": 3}})
    with pytest.raises(InputError):
        parse({"rounds": object()})
    with pytest.raises(ScenarioError):
        load("fashion-small", ["rounds=1979-05-27"])


def test_a_trace_lies_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "trace.toml").write_text('[mobility]\nmodel = "trace"\nfile = "taxis.csv"\n')
    mobility = load(tmp_path / "trace.toml").mobility
    assert mobility.model == "trace"
    assert mobility.file == str(tmp_path / "taxis.csv")


def test_scenes_and_maps_lie_beside_the_file_that_names_them(tmp_path: Path) -> None:
    text = '[learning]\ntask = "argoverse"\n[learning.argoverse]\nfolder = "scenes"\nmap_folder = "maps"\n'
    (tmp_path / "drive.toml").write_text(text)
    more = tmp_path / "below" / "more.toml"
    more.parent.mkdir()
    more.write_text('extends = "../drive.toml"\n[learning.argoverse]\nmap_folder = "/maps"\n')
    section = load(tmp_path / "drive.toml").learning.argoverse
    assert (section.folder, section.map_folder) == (str(tmp_path / "scenes"), str(tmp_path / "maps"))
    # What is said on a command line counts from where the command is started.
    section = load(more, ["learning.argoverse.folder=here"]).learning.argoverse
    assert (section.folder, section.map_folder) == (str(Path.cwd() / "here"), "/maps")
    (tmp_path / "odd.toml").write_text("learning = 3\n")
    with pytest.raises(ScenarioError):
        load(tmp_path / "odd.toml")


def test_a_written_scenario_finds_its_trace_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = load("fashion-small", ["mobility.model=trace", "mobility.file=taxis.csv"])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "scenario.toml").write_text(to_toml(scenario))
    assert load("runs/scenario.toml") == scenario


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_text('extends = "fashion-small"\nrounds = 7\n', encoding="utf-8-sig")
    assert load(tmp_path / "marked.toml").rounds == 7


def test_a_mistake_in_a_file_names_the_file_and_one_on_the_command_line_does_not(tmp_path: Path) -> None:
    file = tmp_path / "typo.toml"
    file.write_text("roundz = 3\n")
    with pytest.raises(ScenarioError, match=r"roundz = 3: unknown key.*\(in .*typo.toml\)"):
        load(file)
    file.write_text("rounds = 3\n")
    with pytest.raises(ScenarioError, match=r"rounds = 0: [^(]*$"):
        load(file, ["rounds=0"])
    file.write_text('extends = "nosuch"\n')
    with pytest.raises(ScenarioError, match=r"extends = '.*nosuch': neither a preset .*\(in .*typo.toml\)"):
        load(file)


@pytest.mark.parametrize("overrides", [{"rounds": 40}, "rounds=40"])
def test_overrides_are_a_list(overrides: object) -> None:
    with pytest.raises(ScenarioError, match=r'overrides = .*must be a list such as \["rounds=40"\]'):
        load("fashion-small", overrides)  # type: ignore[arg-type]
