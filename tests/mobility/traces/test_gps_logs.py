import io
import lzma
import tarfile

import numpy as np
import pytest

from wayfare.errors import TraceError
from wayfare.mobility.traces import read_recording
from wayfare.mobility.traces.recording import outliers, project

T0 = 1_211_000_000


def fixes(*rows):
    return "".join(f"{latitude} {longitude} 0 {T0 + time}\n" for latitude, longitude, time in rows)


CABS = {
    "new_b.txt": fixes((37.70, -122.40, 120), (37.71, -122.40, 60), (37.70, -122.40, 0)),
    "new_a.txt": fixes((37.70, -122.40, 0), (37.70, -122.41, 60)),
}


def write_folder(tmp_path):
    folder = tmp_path / "cabs"
    folder.mkdir()
    for name, text in CABS.items():
        (folder / name).write_text(text)
    (folder / "README").write_text("not a cab")
    return folder


def write_archive(tmp_path):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in {**CABS, "README": "not a cab"}.items():
            member = tarfile.TarInfo(f"cabs/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    file = tmp_path / "cabs.tar.xz"
    file.write_bytes(lzma.compress(packed.getvalue()))
    return file


@pytest.mark.parametrize("write", [write_folder, write_archive])
def test_cabs_of_a_folder_or_archive_run_forwards_or_backwards_in_time(tmp_path, write):
    recording = read_recording(write(tmp_path))
    assert (recording.format, recording.names, recording.duration_s) == ("gps", ("a", "b"), 120.0)
    motion = recording.content
    north_m = 6_371_008.8 * np.radians(0.01)
    b = motion.positions_m(1, np.array([0.0, 60.0, 120.0]))
    assert b[:, 1] - b[0, 1] == pytest.approx([0, north_m, 0])
    a = motion.positions_m(0, np.array([0.0, 60.0, 61.0]))
    assert a[1, 0] - a[0, 0] == pytest.approx(-north_m * np.cos(np.radians(37.70)), rel=1e-4)
    assert np.isnan(a[2, 0])


def test_a_damaged_archive_is_an_error_and_lenient_keeps_the_whole_cabs(tmp_path):
    file = write_archive(tmp_path)
    plain = lzma.decompress(file.read_bytes())
    file.write_bytes(plain[:1300])
    with pytest.raises(TraceError, match="damaged or truncated"):
        read_recording(file)
    recording = read_recording(file, lenient=True)
    assert recording.names == ("b",)
    assert recording.skipped >= 1


def test_the_file_and_the_line_of_a_bad_fix_are_named(tmp_path):
    folder = write_folder(tmp_path)
    (folder / "new_c.txt").write_text(fixes((37, -122, 0)) + "37.7 -190 0 5\n" + fixes((37, -122, 60)))
    with pytest.raises(TraceError, match=r"new_c\.txt, line 2: longitude = -190"):
        read_recording(folder)
    recording = read_recording(folder, lenient=True)
    assert recording.skipped == 1
    assert "new_c.txt, line 2" in recording.first_skipped


def test_a_cab_whose_time_turns_round_or_stands_still_is_a_bad_line(tmp_path):
    folder = write_folder(tmp_path)
    (folder / "new_c.txt").write_text(fixes((37, -122, 0), (37, -122, 60), (37, -122, 30)))
    with pytest.raises(TraceError, match=r"new_c\.txt, line 3: time changes direction"):
        read_recording(folder)
    (folder / "new_c.txt").write_text(fixes((37, -122, 0), (37, -122, 60), (37, -122, 60)))
    with pytest.raises(TraceError, match=r"new_c\.txt, line 3: a second fix"):
        read_recording(folder)


def write_csv(tmp_path, text):
    file = tmp_path / "fixes.csv"
    file.write_text(text)
    return file


def test_csv_in_metres_with_a_gap_leaves_the_node_absent(tmp_path):
    file = write_csv(tmp_path, "time,id,x,y\n0,a,0,0\n0,b,5,5\n100,a,100,0\n500,a,200,0\n510,a,200,20\n")
    recording = read_recording(file, max_gap_s=200)
    assert recording.format == "csv-motion"
    places = recording.content.positions_m(0, np.array([50.0, 300.0, 505.0]))
    assert places[0].tolist() == [50, 0]
    assert np.isnan(places[1, 0])
    assert places[2] == pytest.approx([200, 10])
    assert recording.names == ("a", "b")


def test_csv_in_degrees_has_aliases_and_is_projected_around_its_middle(tmp_path):
    file = write_csv(tmp_path, "timestamp,id,Latitude,lng\n0,a,47.0,8.0\n60,a,47.001,8.0\n120,a,47.002,8.0\n")
    motion = read_recording(file).content
    assert motion.positions_m(0, np.array([60.0]))[0] == pytest.approx([0, 0], abs=1e-9)
    assert motion.vy_mps == pytest.approx([111.195 / 60] * 2, rel=1e-3)


def test_a_fleet_across_the_date_line_stays_together():
    x_m, _, _ = project(np.array([179.999, -179.999, 180.0]), np.zeros(3))
    assert np.ptp(x_m) == pytest.approx(222.39, abs=0.01)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("5,a,1,1", "runs backwards"),
        ("10,a,1,1", "runs backwards"),
        ("20,a,nan,1", "x = nan"),
        ("20,a,1", "3 cells under a header of 4"),
        ("20,,1,1", "has no name"),
        ("later,a,1,1", "time = 'later'"),
    ],
)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path, line, reason):
    file = write_csv(tmp_path, f"time,id,x,y\n0,a,0,0\n10,a,1,0\n{line}\n30,a,2,0\n")
    with pytest.raises(TraceError) as caught:
        read_recording(file)
    assert caught.value.line == 4
    assert reason in caught.value.reason
    assert read_recording(file, lenient=True).skipped == 1


def test_a_fix_that_could_only_be_reached_too_fast_is_left_out_with_a_note(tmp_path):
    rows = [(t, 10 * t if t != 50 else 90_000) for t in range(0, 100, 10)]
    file = write_csv(tmp_path, "time,id,x,y\n" + "".join(f"{t},a,{x},0\n" for t, x in rows))
    recording = read_recording(file, max_speed_mps=30)
    assert recording.notes == ("1 of 10 fixes skipped: faster than 30 m/s",)
    assert recording.content.positions_m(0, np.array([50.0]))[0] == pytest.approx([500, 0])


def test_a_jump_that_lasts_cuts_the_way_but_keeps_both_sides():
    time_s = np.arange(6.0)
    x_m = np.array([0.0, 1.0, 2.0, 1e6, 1e6 + 1, 1e6 + 2])
    assert not outliers(np.zeros(6, dtype=np.int64), time_s, x_m, np.zeros(6), 30.0).any()


def test_nothing_that_moves_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="nothing moves"):
        read_recording(write_csv(tmp_path, "time,id,x,y\n0,a,0,0\n900,a,1,0\n"), max_gap_s=300)
