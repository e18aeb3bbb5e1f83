import numpy as np
import pytest

from wayfare.errors import TraceError
from wayfare.mobility.traces import read_recording


def write(tmp_path, text):
    file = tmp_path / "movement.tcl"
    file.write_text(text)
    return file


def node(number, x, y):
    return f"$node_({number}) set X_ {x}\n$node_({number}) set Y_ {y}\n$node_({number}) set Z_ 0.0\n"


def at(time, number, order):
    return f'$ns_ at {time} "$node_({number}) {order}"\n'


def test_a_node_waits_goes_and_stops_when_it_arrives(tmp_path):
    recording = read_recording(write(tmp_path, node(0, 0, 0) + at(2, 0, "setdest 10 0 5") + at(9, 0, "setdest 10 6 2")))
    assert recording.duration_s == 12.0
    places = recording.content.positions_m(0, np.array([0.0, 1.9, 3.0, 4.0, 8.0, 10.5, 12.0]))
    assert places == pytest.approx(np.array([[0, 0], [0, 0], [5, 0], [10, 0], [10, 0], [10, 3], [10, 6]], dtype=float))


def test_a_later_setdest_turns_a_node_that_is_under_way(tmp_path):
    text = node(0, 0, 0) + at(0, 0, "setdest 100 0 10") + at(5, 0, "setdest 50 30 10")
    motion = read_recording(write(tmp_path, text)).content
    assert motion.positions_m(0, np.array([5.0, 6.0, 8.0])) == pytest.approx(np.array([[50, 0], [50, 10], [50, 30]]))


def test_the_order_of_lines_means_nothing_but_at_one_instant_the_last_one_wins(tmp_path):
    later_first = at(5, 0, "setdest 50 30 10") + at(0, 0, "setdest 100 0 10") + node(0, 0, 0)
    motion = read_recording(write(tmp_path, later_first)).content
    assert motion.positions_m(0, np.array([8.0])) == pytest.approx(np.array([[50, 30]]))
    twice = node(0, 0, 0) + at(1, 0, "setdest 9 0 1") + at(1, 0, "setdest 0 9 1")
    motion = read_recording(write(tmp_path, twice)).content
    assert motion.positions_m(0, np.array([10.0])) == pytest.approx(np.array([[0, 9]]))


def test_a_node_that_is_switched_off_is_absent(tmp_path):
    text = node(0, 0, 0) + at(0, 0, "switch OFF") + at(2, 0, "switch ON") + at(2, 0, "setdest 4 0 1")
    text += at(5, 0, "switch OFF")
    recording = read_recording(write(tmp_path, text))
    places = recording.content.positions_m(0, np.array([1.0, 3.0, 5.0]))
    assert np.isnan(places[:, 0]).tolist() == [True, False, False]
    assert recording.duration_s == 5.0


def test_a_setdest_at_an_impossible_speed_places_a_node(tmp_path):
    text = node(0, 0, 0) + at(0, 0, "setdest 500 500 1000000000.0") + at(1, 0, "setdest 500 510 1")
    motion = read_recording(write(tmp_path, text)).content
    assert motion.positions_m(0, np.array([0.0, 1.0])) == pytest.approx(np.array([[500, 500], [500, 500]]))
    assert motion.vx_mps.max() == 0


def test_comments_and_distances_for_god_are_passed_over(tmp_path):
    text = "# nodes: 1\n$god_ set-dist 0 1 2\n" + node(0, 0, 0) + '$ns_ at 3 "$god_ set-dist 0 1 1"\n'
    assert read_recording(write(tmp_path, text + at(0, 0, "setdest 1 1 1"))).names == ("0",)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (at(1, 0, "setdest nan 0 1"), "x = nan"),
        (at(1, 0, "setdest 0 0 -1"), "negative"),
        (at(-1, 0, "setdest 0 0 1"), "before the start"),
        (at("inf", 0, "setdest 0 0 1"), "time = inf"),
        (at(1, 0, "fly 0 0 1"), "neither setdest"),
        (at(1, 7, "setdest 0 0 1"), "no initial X_ and Y_"),
        ("0 CONN 1 2 up\n", "not a line of an ns-2 movement file"),
    ],
)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path, line, reason):
    file = write(tmp_path, node(0, 0, 0) + line + at(5, 0, "setdest 9 9 1"))
    with pytest.raises(TraceError) as caught:
        read_recording(file)
    assert caught.value.line == 4
    assert reason in caught.value.reason
    assert read_recording(file, lenient=True).skipped == 1
