"""Every input loads or raises one of our errors."""

import gzip
import io
import lzma
import tarfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wayfare.errors import InputError
from wayfare.mobility.base import Meetings, Motion
from wayfare.mobility.traces import FORMATS, read_recording, select
from wayfare.mobility.traces.saved import save_meetings

QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

number = st.one_of(
    st.integers(-3, 400).map(str),
    st.floats(-1e3, 1e3).map(repr),
    st.sampled_from(["nan", "inf", "-inf", "1e308", "5e-324", "1e-7", "", "x", "0x10", "1_0", "٣", "1e12", "-1e9"]),
)
name = st.sampled_from(["a", "b", "c10", "c9", "", "server", "é", "x" * 300, '"'])
junk = st.sampled_from(
    ["", "#", "# wayfare contact plan: devices=2 server=9 duration_s=50", "<", ",,,", "\x00", "&amp;"]
)


def lines_of(line):
    return st.lists(st.one_of(line, line, line, junk), max_size=25).map("\n".join)


conn = st.builds("{} CONN {} {} {}".format, number, name, name, st.sampled_from(["up", "down", "UP", "sideways"]))
contact = st.builds("{},{},{},{}".format, number, number, name, name)
distant = st.builds("{},{},{},{},{}".format, number, number, name, name, number)
fix = st.builds("{},{},{},{}".format, number, name, number, number)
cab = st.builds("{} {} 0 {}".format, number, number, number)
place = st.builds("$node_({}) set {}_ {}".format, name, st.sampled_from("XYZ"), number)
order = st.one_of(
    st.builds('$ns_ at {} "$node_({}) setdest {} {} {}"'.format, number, name, number, number, number),
    st.builds('$ns_ at {} "$node_({}) switch {}"'.format, number, name, st.sampled_from(["ON", "OFF", "maybe"])),
)
vehicle = st.builds('<vehicle id="{}" x="{}" y="{}"/>'.format, name, number, number)
timestep = st.builds('<timestep time="{}">{}</timestep>'.format, number, st.lists(vehicle, max_size=4).map("".join))

TEXTS = {
    "one": lines_of(conn),
    "contacts": lines_of(contact).map("start_s,end_s,a,b\n{}".format),
    "contacts with distance": lines_of(distant).map("start_s,end_s,a,b,distance_m\n{}".format),
    "csv in metres": lines_of(fix).map("time,id,x,y\n{}".format),
    "csv in degrees": lines_of(fix).map("time,id,lat,lon\n{}".format),
    "gps": lines_of(cab),
    "ns2": st.builds("{}\n{}".format, lines_of(place), lines_of(order)),
    "sumo": lines_of(timestep).map("<fcd-export>{}</fcd-export>".format),
}


def loads_or_says_why(file, **options):
    try:
        recording = read_recording(file, **options)
        for server in (None, recording.names[0]):
            select(recording, devices=None, server=server, range_m=100.0)
    except InputError as error:
        message = str(error)
    else:
        _is_sound(recording)
        return
    assert message
    assert "\n" not in message


def _is_sound(recording):
    content = recording.content
    assert recording.duration_s > 0
    for column in (
        content.start_s,
        content.end_s,
        *((content.x_m, content.vx_mps) if isinstance(content, Motion) else ()),
    ):
        assert np.isfinite(column).all()
    assert (content.end_s > content.start_s).all()
    assert (content.start_s >= 0).all()
    assert (content.end_s <= recording.duration_s).all()


@pytest.mark.parametrize("kind", TEXTS)
@QUICK
@given(data=st.data(), lenient=st.booleans())
def test_text_of_every_format_loads_or_gives_one_of_our_errors(tmp_path, kind, data, lenient):
    file = tmp_path / "trace"
    file.write_bytes(data.draw(TEXTS[kind]).encode())
    loads_or_says_why(file, lenient=lenient)


@QUICK
@given(content=st.binary(max_size=300), kind=st.sampled_from(("auto", *FORMATS)), lenient=st.booleans())
def test_any_bytes_as_any_format_load_or_give_one_of_our_errors(tmp_path, content, kind, lenient):
    file = tmp_path / "trace"
    file.write_bytes(content)
    loads_or_says_why(file, format=kind, lenient=lenient)


def whole_files():
    steps = "".join(f"<timestep time='{t}'><vehicle id='a' x='{t}' y='0'/></timestep>" for t in range(30))
    fcd = f"<fcd-export>{steps}</fcd-export>".encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        text = b"".join(b"37.7 -122.4 0 %d\n" % (1000 + 60 * t) for t in range(30))
        member = tarfile.TarInfo("new_cab.txt")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    saved = io.BytesIO()
    rows = np.arange(20)
    np.savez(
        saved,
        kind=np.array("wayfare contact plan"),
        version=np.array(1),
        devices=np.array(20),
        duration_s=np.array(50.0),
        device=rows,
        peer=rows * 0 - 1,
        start_s=rows * 1.0,
        end_s=rows + 5.0,
        distance_m=rows * 1.0,
    )
    plain = (fcd, packed.getvalue(), saved.getvalue())
    return [*plain, gzip.compress(fcd), lzma.compress(packed.getvalue())]


@pytest.mark.parametrize("content", whole_files(), ids=["fcd", "tar", "plan", "fcd.gz", "tar.xz"])
@QUICK
@given(data=st.data(), lenient=st.booleans())
def test_a_file_cut_or_altered_anywhere_loads_or_gives_one_of_our_errors(tmp_path, content, data, lenient):
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    file = tmp_path / "trace"
    file.write_bytes(bytes(damaged))
    loads_or_says_why(file, lenient=lenient)


def test_the_whole_files_load(tmp_path):
    for content in whole_files():
        file = tmp_path / "trace"
        file.write_bytes(content)
        assert read_recording(file).names


def test_saving_where_nothing_can_be_written_is_one_of_our_errors(tmp_path):
    one = np.array([0])
    meetings = Meetings(devices=1, device=one, peer=one - 1, start_s=one * 1.0, end_s=one + 1.0, distance_m=one * 1.0)
    with pytest.raises(InputError, match="cannot be written"):
        save_meetings(tmp_path / "no" / "folder" / "plan.npz", meetings, 5.0)
