import dataclasses

import numpy as np
import pytest

import wayfare
from wayfare.contacts import ContactPlan, draw_plan, opportunities
from wayfare.contacts.export import export_one, write_contacts
from wayfare.contacts.source import plan_from_source
from wayfare.contacts.store import load_plan, save_plan
from wayfare.errors import InputError
from wayfare.mobility import SERVER


@pytest.fixture(scope="module")
def drawn():
    scenario = wayfare.load("fashion-small", ["rounds=100", "fleet.devices=7"])
    return draw_plan(scenario, 3, devices_meet=True)


def assert_same(one: ContactPlan, other: ContactPlan):
    assert (one.devices, one.duration_s) == (other.devices, other.duration_s)
    for name in ("device", "peer", "start_s", "end_s", "distance_m"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_a_saved_plan_comes_back_exactly(drawn, tmp_path):
    save_plan(drawn, tmp_path / "plan.npz")
    assert_same(load_plan(tmp_path / "plan.npz"), drawn)
    assert [file.name for file in tmp_path.iterdir()] == ["plan.npz"]


def test_the_same_plan_is_saved_as_the_same_bytes(drawn, tmp_path):
    for name in ("one", "other"):
        save_plan(drawn, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_saved_plan_is_replayed_whatever_the_seed(drawn, tmp_path):
    file = tmp_path / "plan.npz"
    save_plan(drawn, file)
    overrides = ["rounds=100", "fleet.devices=7", "mobility.model=trace", f"mobility.file={file}"]
    scenario = wayfare.load("fashion-small", overrides)
    for seed in (0, 99):
        assert_same(draw_plan(scenario, seed, devices_meet=True), drawn)
    assert_same(plan_from_source(str(file), seed=5).plan, drawn)
    again = wayfare.load("fashion-small", [*overrides, "rounds=250", "mobility.repeat=true"])
    meets = opportunities(draw_plan(again, 0), 10.0, 250)
    assert len(meets) > 2 * len(opportunities(drawn, 10.0, 100))


def test_csv_brings_a_plan_back_exactly(drawn, tmp_path):
    write_contacts(drawn, tmp_path / "plan.csv")
    back = plan_from_source(str(tmp_path / "plan.csv"), seed=0)
    assert back.server == "server"
    assert_same(back.plan, drawn)


def test_the_events_of_the_one_bring_a_plan_back_but_for_its_distances(drawn, tmp_path):
    export_one(drawn, tmp_path / "plan.one")
    back = plan_from_source(str(tmp_path / "plan.one"), seed=0)
    assert (back.kind, back.server) == ("one", "7")
    assert_same(dataclasses.replace(back.plan, distance_m=drawn.distance_m), drawn)
    times = [float(line.split()[0]) for line in (tmp_path / "plan.one").read_text().splitlines()[1:]]
    assert times == sorted(times)


def test_devices_that_meet_nobody_survive_both_formats(tmp_path):
    one = np.array([1])
    lonely = ContactPlan(
        devices=4,
        duration_s=50.0,
        device=one,
        peer=one * SERVER,
        start_s=one * 7.5,
        end_s=one * 9.0,
        distance_m=one * 3.0,
    )
    for export, name in ((write_contacts, "a.csv"), (export_one, "a.one")):
        export(lonely, tmp_path / name)
        back = plan_from_source(str(tmp_path / name), seed=0).plan
        assert (back.devices, back.duration_s, back.device.tolist(), back.start_s.tolist()) == (4, 50.0, [1], [7.5])


def test_a_plan_without_contacts_is_saved_and_loaded(tmp_path):
    nobody = np.empty(0)
    empty = ContactPlan(
        devices=2,
        duration_s=5.0,
        device=nobody.astype(np.int64),
        peer=nobody.astype(np.int64),
        start_s=nobody,
        end_s=nobody,
        distance_m=nobody,
    )
    save_plan(empty, tmp_path / "plan.npz")
    assert_same(load_plan(tmp_path / "plan.npz"), empty)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"version": np.array(99)}, "version 99"),
        ({"kind": np.array("something else")}, "its kind is"),
        ({"devices": np.array(0)}, "at least 1"),
        ({"duration_s": np.array(np.nan)}, "duration_s must be above 0"),
        ({"duration_s": np.array(1.0)}, "inside the duration"),
        ({"device": np.array([0, 9])}, "device must be below devices"),
        ({"device": np.array([1, 0])}, "must be sorted"),
        ({"device": np.array([0, 0, 0])}, "differ in length"),
        ({"device": np.array([0.0, 1.0])}, "device is float64"),
        ({"peer": np.array([0, -1])}, "peer must be"),
        ({"start_s": np.array([6.0, 1.0])}, "inside the duration"),
        ({"start_s": np.array([np.nan, 1.0])}, "inside the duration"),
        ({"end_s": np.array([[5.0, 5.0]])}, "x 2"),
        ({"distance_m": np.array([-1.0, 5.0])}, "distance_m must be"),
        ({"device": np.array([0, 0]), "start_s": np.array([1.0, 2.0])}, "overlap"),
        ({"kind": np.array({"a": 1}, dtype=object)}, "cannot be read"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused_by_name(tmp_path, change, rule):
    sound = {
        "kind": np.array("wayfare contact plan"),
        "version": np.array(1),
        "devices": np.array(2),
        "duration_s": np.array(10.0),
        "device": np.array([0, 1]),
        "peer": np.array([-1, -1]),
        "start_s": np.array([0.0, 1.0]),
        "end_s": np.array([5.0, 5.0]),
        "distance_m": np.array([1.0, 2.0]),
    }
    file = tmp_path / "plan.npz"
    np.savez(file, **sound)
    assert len(load_plan(file)) == 2
    np.savez(file, **{**sound, **change})
    with pytest.raises(InputError, match=rule):
        load_plan(file)


def test_other_files_and_missing_ones_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    with pytest.raises(InputError, match="not a saved contact plan"):
        load_plan(tmp_path / "other.npz")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="cannot be read as a saved plan"):
        load_plan(tmp_path / "text")
    with pytest.raises(InputError, match="No such file"):
        load_plan(tmp_path / "nowhere")


def test_files_that_cannot_be_written_are_one_of_our_errors(drawn, tmp_path):
    for write in (save_plan, export_one, write_contacts):
        with pytest.raises(InputError, match="cannot be written"):
            write(drawn, tmp_path / "no" / "folder.csv")
