import pytest

from wayfare.errors import TraceError
from wayfare.mobility.traces import read_recording

HEAD = "start_s,end_s,a,b\n"


def write(tmp_path, text):
    file = tmp_path / "contacts.csv"
    file.write_text(text)
    return file


def test_contacts_come_in_any_order_with_columns_in_any_order(tmp_path):
    recording = read_recording(write(tmp_path, "a,b,start_s,end_s,colour\n7,8,20,30,red\n9,7,10,12,blue\n"))
    meetings = recording.content
    assert recording.names == ("7", "8", "9")
    assert meetings.device.tolist() == [0, 0]
    assert meetings.peer.tolist() == [1, 2]
    assert meetings.start_s.tolist() == [10.0, 0.0]
    assert meetings.distance_m is None
    assert recording.duration_s == 20.0


def test_distances_are_kept(tmp_path):
    recording = read_recording(write(tmp_path, "start_s,end_s,a,b,distance_m\n5,6,x,y,40.5\n1,2,x,y,7\n"))
    assert recording.content.distance_m.tolist() == [7.0, 40.5]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("5,7,x,y", "overlaps the contact of the same pair on line 2"),
        ("5,7,y,x", "overlaps the contact of the same pair on line 2"),
        ("9,8,x,y", "before it starts"),
        ("9,10,x,x", "in contact with itself"),
        ("nan,10,x,y", "start_s = nan"),
        ("9,ten,x,y", "is not a number"),
        ("9,10,x", "3 cells under a header of 4"),
        ("9,10,x,", "has no name"),
        (f"9,10,x,{'y' * 300}", "a name has more than"),
    ],
)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path, line, reason):
    file = write(tmp_path, f"{HEAD}0,6,x,y\n{line}\n20,21,x,y\n")
    with pytest.raises(TraceError) as caught:
        read_recording(file)
    assert caught.value.line == 3
    assert reason in caught.value.reason
    recording = read_recording(file, lenient=True)
    assert recording.skipped == 1
    assert recording.content.start_s.tolist() == [0.0, 20.0]


def test_a_header_that_lacks_a_column_is_refused_even_when_lenient(tmp_path):
    file = write(tmp_path, "start_s,a,b\n1,x,y\n")
    with pytest.raises(TraceError, match="line 1: the header must name"):
        read_recording(file, format="contacts", lenient=True)
