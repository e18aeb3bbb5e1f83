import logging

import numpy as np
import pytest

from wayfare.contacts import draw_plan
from wayfare.errors import ScenarioError, TraceError
from wayfare.mobility.base import SERVER, Meetings, Motion
from wayfare.mobility.traces import Trace, read_recording, select
from wayfare.mobility.traces.box import clip_motion
from wayfare.mobility.traces.selection import _contacts
from wayfare.scenario import load
from wayfare.scenario.mobility import TraceMobility

LIST = """start_s,end_s,a,b
0,10,hub,x
20,30,hub,x
0,5,hub,y
40,50,y,z
60,70,hub,z
80,90,hub,z
"""


@pytest.fixture
def contact_list(tmp_path):
    file = tmp_path / "contacts.csv"
    file.write_text(LIST)
    return str(file)


@pytest.fixture
def motion_list(tmp_path):
    """A server that stands, a car that drives by twice, one that drives by once, one far away; names unsorted."""
    rows = ["time,id,x,y"]
    for t in range(0, 201, 10):
        rows += [f"{t},tower,0,0", f"{t},z-twice,{400 - abs(t % 100 - 50) * 16},5", f"{t},far,{t},9000"]
        rows.append(f"{t},once,{-1000 + 10 * t},-5")
    file = tmp_path / "fixes.csv"
    file.write_text("\n".join(rows))
    return str(file)


def test_the_node_with_most_contacts_is_the_server_and_the_devices_keep_the_order_of_names(contact_list):
    chosen = Trace(TraceMobility(file=contact_list)).selection()
    assert (chosen.server, chosen.devices) == ("hub", ("x", "y", "z"))
    assert chosen.content.device.tolist() == [0, 0, 1, 1, 2, 2]
    assert chosen.content.peer.tolist() == [SERVER, SERVER, SERVER, 2, SERVER, SERVER]
    assert chosen.content.start_s.tolist() == [0, 20, 0, 40, 60, 80]


def test_fewer_devices_are_those_with_most_contacts_with_the_server(contact_list):
    chosen = Trace(TraceMobility(file=contact_list)).selection(2)
    assert chosen.devices == ("x", "z")
    assert chosen.content.device.tolist() == [0, 0, 1, 1]
    # One of x and z, which meet the server equally often: the first by name.
    assert Trace(TraceMobility(file=contact_list)).selection(1).devices == ("x",)


def test_a_server_can_be_named_and_must_exist(contact_list):
    chosen = Trace(TraceMobility(file=contact_list, server="z")).selection()
    assert (chosen.server, chosen.devices) == ("z", ("hub", "x", "y"))
    with pytest.raises(ScenarioError, match=r"mobility\.server = 'q': no node of the trace has this name"):
        Trace(TraceMobility(file=contact_list, server="q")).selection()


def test_too_many_devices_name_field_value_and_rule(contact_list):
    with pytest.raises(ScenarioError, match=r"fleet\.devices = 20: the trace has only 3 devices besides the server"):
        Trace(TraceMobility(file=contact_list)).draw(20, 50.0, seed=0)


def test_contacts_of_motion_are_counted_within_range(motion_list):
    drawn = select(read_recording(motion_list, max_gap_s=60, max_speed_mps=70), devices=None, server=None, range_m=50.0)
    assert drawn.server == "tower"
    two = select(read_recording(motion_list, max_gap_s=60, max_speed_mps=70), devices=1, server="tower", range_m=50.0)
    assert two.devices == ("z-twice",)
    assert isinstance(two.content, Motion)
    assert two.content.nodes == 2
    assert np.all(two.content.x_m[two.content.legs_of(1)] == 0)


def test_a_run_is_cut_out_of_the_trace_from_its_start_on(contact_list):
    drawn = Trace(TraceMobility(file=contact_list, start_s=25.0, server="hub")).draw(3, 40.0, seed=0)
    assert isinstance(drawn, Meetings)
    assert list(zip(drawn.start_s.tolist(), drawn.end_s.tolist(), strict=True)) == [(0, 5), (15, 25), (35, 40)]


def test_motion_is_cut_inside_a_leg(motion_list):
    whole = Trace(TraceMobility(file=motion_list)).draw(3, 200.0, seed=0)
    part = Trace(TraceMobility(file=motion_list, start_s=13.0, server="tower")).draw(3, 50.0, seed=0)
    instants_s = np.linspace(0.1, 49.9, 7)
    for node in range(4):
        assert part.positions_m(node, instants_s) == pytest.approx(whole.positions_m(node, instants_s + 13.0))


def test_a_trace_too_short_is_refused_or_played_again(contact_list):
    with pytest.raises(ScenarioError, match=r"lasts 1000 s but the trace only 90 s; set mobility\.repeat=true"):
        Trace(TraceMobility(file=contact_list)).draw(3, 1000.0, seed=0)
    drawn = Trace(TraceMobility(file=contact_list, repeat=True)).draw(3, 205.0, seed=0)
    mine = drawn.start_s[(drawn.device == 0) & (drawn.peer == SERVER)]
    assert mine.tolist() == [0, 20, 90, 110, 180, 200]
    assert drawn.end_s.max() == 205.0
    with pytest.raises(ScenarioError, match=r"mobility\.start_s = 95"):
        Trace(TraceMobility(file=contact_list, start_s=95.0)).draw(3, 1.0, seed=0)


def test_motion_played_again_is_where_it_was_a_period_before(motion_list):
    drawn = Trace(TraceMobility(file=motion_list, repeat=True)).draw(3, 1000.0, seed=0)
    assert np.all(np.diff(drawn.node) >= 0)
    instants_s = np.linspace(1, 199, 23)
    for node in range(4):
        later = drawn.positions_m(node, instants_s + 600.0)
        assert later == pytest.approx(drawn.positions_m(node, instants_s))


def test_the_seed_changes_nothing(contact_list):
    one, other = (Trace(TraceMobility(file=contact_list)).draw(3, 90.0, seed=seed) for seed in (0, 7))
    assert one.start_s.tolist() == other.start_s.tolist()


def test_skipped_lines_are_reported_and_a_changed_file_is_read_again(tmp_path, caplog):
    file = tmp_path / "contacts.csv"
    file.write_text(LIST + "rubbish\n")
    with pytest.raises(TraceError, match="line 8"):
        Trace(TraceMobility(file=str(file))).draw(3, 90.0, seed=0)
    with caplog.at_level(logging.WARNING):
        Trace(TraceMobility(file=str(file), lenient=True)).draw(3, 90.0, seed=0)
    assert "1 lines skipped" in caplog.text
    file.write_text(LIST)
    assert Trace(TraceMobility(file=str(file))).recording().skipped == 0


def test_a_missing_file_is_one_of_our_errors():
    with pytest.raises(TraceError, match="cannot be opened"):
        Trace(TraceMobility(file="nowhere.csv")).draw(3, 90.0, seed=0)


def test_a_box_cuts_legs_at_its_border():
    motion = Motion(
        nodes=2,
        node=np.array([0, 1]),
        start_s=np.zeros(2),
        end_s=np.full(2, 10.0),
        x_m=np.array([-5.0, 50.0]),
        y_m=np.array([0.0, 50.0]),
        vx_mps=np.array([2.0, 0.0]),
        vy_mps=np.array([1.0, 0.0]),
    )
    cut = clip_motion(motion, (0.0, 0.0, 10.0, 4.0))
    assert cut.node.tolist() == [0]
    assert (cut.start_s[0], cut.end_s[0]) == (2.5, 4.0)
    assert (cut.x_m[0], cut.y_m[0]) == (0.0, 2.5)


def test_a_box_is_for_motion_only(contact_list, motion_list):
    with pytest.raises(TraceError, match="no positions"):
        read_recording(contact_list, box_m=(0, 0, 1, 1))
    with pytest.raises(TraceError, match="ever inside the box"):
        read_recording(motion_list, box_m=(1e6, 1e6, 2e6, 2e6))
    boxed = read_recording(motion_list, box_m=(-100, -100, 100, 100))
    assert len(boxed.content.node) < len(read_recording(motion_list).content.node)


@pytest.mark.parametrize("range_m", [30.0, 150.0, 5000.0])
def test_contacts_counted_for_the_choice_are_those_of_all_pairs_at_every_instant(range_m, monkeypatch):
    monkeypatch.setattr("wayfare.mobility.traces.selection._BLOCK", 64)
    rng = np.random.default_rng(4)
    nodes, instants = 9, 200
    # Random walks of one leg a second, with random absences.
    place = np.cumsum(rng.normal(0, 20, (nodes, instants + 1, 2)), axis=1) + rng.uniform(-100, 100, (nodes, 1, 2))
    there = rng.random((nodes, instants)) < 0.8
    node, start = np.nonzero(there)
    velocity = np.diff(place, axis=1)[node, start]
    motion = Motion(
        nodes=nodes,
        node=node,
        start_s=start * 1.0,
        end_s=start + 1.0,
        x_m=place[node, start, 0],
        y_m=place[node, start, 1],
        vx_mps=velocity[:, 0],
        vy_mps=velocity[:, 1],
    )
    begin_s, end_s = motion.start_s.min(), motion.end_s.max()
    times_s = np.arange(begin_s, end_s, (end_s - begin_s) / 256)
    counted = np.zeros((nodes, nodes), dtype=int)
    for low, high in _contacts(motion, range_m):
        np.add.at(counted, (low, high), 1)
    for one in range(nodes):
        for other in range(one + 1, nodes):
            # Half-open legs: at the very end of its last leg a node is gone.
            gone = [~there[n, np.minimum(times_s.astype(int), instants - 1)] for n in (one, other)]
            apart_m = np.hypot(*(motion.positions_m(one, times_s) - motion.positions_m(other, times_s)).T)
            near = (apart_m <= range_m) & ~gone[0] & ~gone[1]
            assert counted[one, other] == int(near[0]) + int((near[1:] & ~near[:-1]).sum())


def test_a_contact_over_the_seam_of_a_repeated_list_is_one(tmp_path):
    file = tmp_path / "contacts.csv"
    file.write_text("start_s,end_s,a,b\n0,5,server,x\n40,43,server,x\n43,50,server,x\n95,100,server,x\n")
    settings = ["rounds=20", "fleet.devices=1", "mobility.model=trace", f"mobility.file={file}", "mobility.repeat=true"]
    plan = draw_plan(load("fashion-small", settings), 0)
    spans = list(zip(plan.start_s.tolist(), plan.end_s.tolist(), strict=True))
    assert spans == [(0, 5), (40, 50), (95, 105), (140, 150), (195, 200)]
