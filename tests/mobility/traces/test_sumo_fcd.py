import gzip
import lzma

import numpy as np
import pytest

from wayfare.errors import TraceError
from wayfare.mobility.base import Motion
from wayfare.mobility.traces import read_recording

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<fcd-export>\n'


def step(time, *vehicles):
    inside = "".join(f'<vehicle id="{name}" x="{x}" y="{y}" speed="1"/>\n' for name, x, y in vehicles)
    return f'<timestep time="{time}">\n{inside}</timestep>\n'


def write(tmp_path, *steps, head=HEAD, tail="</fcd-export>\n"):
    file = tmp_path / "fcd.xml"
    file.write_text(head + "".join(steps) + tail)
    return file


def test_a_vehicle_moves_in_straight_lines_between_time_steps_and_time_begins_at_0(tmp_path):
    file = write(tmp_path, step(100, ("a", 0, 0)), step(101, ("a", 10, 0)), step(103, ("a", 10, 4)))
    recording = read_recording(file)
    assert isinstance(recording.content, Motion)
    assert (recording.format, recording.names, recording.duration_s) == ("sumo-fcd", ("a",), 3.0)
    places = recording.content.positions_m(0, np.array([0.0, 0.5, 1.0, 2.0, 3.0]))
    assert places.tolist() == [[0, 0], [5, 0], [10, 0], [10, 2], [10, 4]]


def test_a_vehicle_that_misses_a_time_step_is_absent_until_it_appears_again(tmp_path):
    steps = [step(t, ("a", 0, 0), *([("b", t, 0)] if t != 2 else [])) for t in range(5)]
    recording = read_recording(write(tmp_path, *steps))
    places = recording.content.positions_m(1, np.array([0.5, 1.5, 2.5, 3.5]))
    assert np.isnan(places[:, 0]).tolist() == [False, True, True, False]


def test_names_are_numbered_with_their_numbers_as_numbers(tmp_path):
    fleet = [(name, 0, 0) for name in ("car10", "car9", "bus", "car1")]
    recording = read_recording(write(tmp_path, step(0, *fleet), step(1, *fleet)))
    assert recording.names == ("bus", "car1", "car9", "car10")


def test_persons_are_nodes_too(tmp_path):
    walk = '<timestep time="{}"><person id="p" x="{}" y="0"/></timestep>'
    recording = read_recording(write(tmp_path, walk.format(0, 0), walk.format(1, 1)))
    assert recording.names == ("p",)


def test_degrees_are_projected_when_sumo_says_that_it_wrote_them(tmp_path):
    head = HEAD.replace("<fcd-export>", '<!-- <fcd-output.geo value="true"/> -->\n<fcd-export>')
    file = write(tmp_path, step(0, ("a", 8.5, 47.0)), step(1, ("a", 8.5, 47.001)), head=head)
    motion = read_recording(file).content
    assert float(motion.vy_mps[0]) == pytest.approx(111.195, abs=0.01)


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_compressed_files_are_read_whatever_they_are_called(tmp_path, suffix, compress):
    plain = write(tmp_path, step(0, ("a", 0, 0)), step(1, ("a", 1, 0)))
    for name in (f"fcd.xml.{suffix}", "no-suffix"):
        packed = tmp_path / name
        packed.write_bytes(compress(plain.read_bytes()))
        assert read_recording(packed).names == ("a",)


@pytest.mark.parametrize(
    ("steps", "line", "reason"),
    [
        ([step(1, ("a", 0, 0)), step(0, ("a", 1, 0))], 6, "time runs backwards"),
        ([step(0, ("a", "nan", 0))], 4, "x = nan"),
        ([step(0, ("a", "1e300", 0))], 4, "x = 1e300"),
        ([step(0, ("a", "east", 0))], 4, "is not a number"),
        ([step(0, ("a", 0, 0), ("a", 1, 0))], 5, "twice in one time step"),
        ([step("noon", ("a", 0, 0))], 3, "time = 'noon'"),
        (['<timestep time="0"><vehicle id="a" x="0"/></timestep>'], 3, "has no y"),
        (["<timestep><vehicle id='a' x='0' y='0'/></timestep>"], 3, "has no time"),
        (["<timestep time='0'></timestop>"], 3, "mismatched tag"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_reason(tmp_path, steps, line, reason):
    file = write(tmp_path, *steps)
    with pytest.raises(TraceError) as caught:
        read_recording(file)
    assert caught.value.line == line
    assert reason in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_truncated_file_is_an_error_and_lenient_keeps_what_was_whole(tmp_path):
    whole = HEAD + step(0, ("a", 0, 0)) + step(1, ("a", 1, 0)) + step(2, ("a", 2, 0))
    file = tmp_path / "cut.xml"
    file.write_text(whole[:-40])
    with pytest.raises(TraceError, match="the XML is truncated"):
        read_recording(file)
    recording = read_recording(file, lenient=True)
    assert recording.skipped == 1
    assert "the XML is truncated" in recording.first_skipped
    assert recording.duration_s == 1.0


def test_a_truncated_archive_is_an_error_and_lenient_keeps_what_was_whole(tmp_path):
    steps = "".join(step(t, *((f"v{i}", i * t, (i * 7919) % 1000 + t * 0.37) for i in range(20))) for t in range(200))
    packed = gzip.compress((HEAD + steps + "</fcd-export>").encode())
    file = tmp_path / "cut.gz"
    file.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match="damaged or truncated"):
        read_recording(file)
    assert read_recording(file, lenient=True).skipped == 1


def test_other_xml_and_entities_are_refused(tmp_path):
    routes = tmp_path / "routes.xml"
    routes.write_text("<routes><vehicle id='a'/></routes>")
    with pytest.raises(TraceError, match="<routes>, not SUMO's <fcd-export>"):
        read_recording(routes)
    bomb = tmp_path / "bomb.xml"
    bomb.write_text('<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><fcd-export>&b;</fcd-export>')
    with pytest.raises(TraceError, match="entities"):
        read_recording(bomb, lenient=True)


def test_megabytes_without_an_element_are_refused_and_not_kept(tmp_path):
    file = tmp_path / "long.xml"
    with file.open("wb") as out:
        out.write(b"<fcd-export a='")
        for _ in range(20):
            out.write(b"x" * (1 << 20))
    with pytest.raises(TraceError, match="no element in"):
        read_recording(file)
