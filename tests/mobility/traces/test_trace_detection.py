import numpy as np
import pytest

from wayfare.errors import TraceError
from wayfare.mobility.base import Meetings
from wayfare.mobility.traces import FORMATS, detect, read_recording
from wayfare.mobility.traces.saved import save_meetings

SAMPLES = {
    "sumo-fcd": "\n <fcd-export><timestep time='0'><vehicle id='a' x='0' y='0'/></timestep>"
    "<timestep time='1'><vehicle id='a' x='1' y='0'/></timestep></fcd-export>",
    "ns2": '# a movement file\n$node_(0) set X_ 1\n$node_(0) set Y_ 1\n$ns_ at 1 "$node_(0) setdest 5 5 1"\n',
    "one": "# events\n0\tCONN\t1\t2\tup\n5 CONN 1 2 down\n",
    "gps": "37.7 -122.4 0 1211000000\n37.7 -122.5 1 1211000600\n37.7 -122.5 1 1211000660\n",
    "csv-motion": "time,id,lat,lon\n0,a,1,2\n1,a,1,2\n",
    "contacts": "start_s, end_s, a, b\n0,1,x,y\n",
}


def write(tmp_path, kind):
    file = tmp_path / "some.file"
    if kind == "plan":
        one = np.array([0])
        meetings = Meetings(
            devices=1,
            device=one,
            peer=one - 1,
            start_s=one * 1.0,
            end_s=one + 1.0,
            distance_m=one * 1.0,
        )
        save_meetings(file, meetings, 5.0)
    else:
        file.write_text(SAMPLES[kind])
    return file


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_known_by_what_it_holds(tmp_path, kind):
    file = write(tmp_path, kind)
    assert detect(file) == kind
    assert read_recording(file).format == kind
    assert read_recording(file, format=kind).format == kind


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("read_as", FORMATS)
def test_a_file_of_another_format_is_refused(tmp_path, kind, read_as, lenient):
    if kind == read_as:
        return
    with pytest.raises(TraceError):
        read_recording(write(tmp_path, kind), format=read_as, lenient=lenient)


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize(
    "content", [b"", b"\n\n  \n", b"\x1f\x8b", b"\xfd7zXZ\x00", b"PK\x03\x04", b"hello\n", b"\x00" * 900]
)
def test_empty_and_strange_files_are_refused(tmp_path, content, lenient):
    file = tmp_path / "strange"
    file.write_bytes(content)
    for kind in ("auto", *FORMATS):
        with pytest.raises(TraceError):
            read_recording(file, format=kind, lenient=lenient)


def test_a_missing_file_an_empty_folder_and_an_unknown_format_are_refused(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read_recording(tmp_path / "nowhere")
    with pytest.raises(TraceError, match=r"no new_<cab>\.txt"):
        read_recording(tmp_path)
    with pytest.raises(TraceError, match="unknown format"):
        read_recording(write(tmp_path, "one"), format="gpx")
    with pytest.raises(TraceError, match="no such file"):
        read_recording("nul\0byte")


def test_a_line_without_end_is_refused_and_not_kept(tmp_path):
    file = tmp_path / "endless.csv"
    file.write_bytes(b"start_s,end_s,a,b\n" + b"1" * 10_000_000)
    with pytest.raises(TraceError, match=r"line 2: the line has more than 65,536 bytes"):
        read_recording(file, lenient=True)
