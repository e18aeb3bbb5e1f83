import pytest

from wayfare.errors import TraceError
from wayfare.mobility.traces import read_recording


def write(tmp_path, text):
    file = tmp_path / "contacts.one"
    file.write_text(text)
    return file


def rows(recording):
    meetings = recording.content
    columns = (meetings.device, meetings.peer, meetings.start_s, meetings.end_s)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_contacts_go_from_up_to_down_and_time_begins_at_0(tmp_path):
    recording = read_recording(
        write(tmp_path, "10 CONN 2 10 up\n12 CONN 2 1 up\n15 CONN 2 10 down\n20 CONN 2 1 down\n")
    )
    assert recording.names == ("1", "2", "10")
    assert rows(recording) == [(0, 1, 2.0, 10.0), (1, 2, 0.0, 5.0)]
    assert (recording.format, recording.duration_s) == ("one", 10.0)


def test_a_pair_is_in_contact_while_one_of_the_two_sees_the_other(tmp_path):
    text = "0 CONN a b up\n2 CONN b a up\n3 CONN a b down\n7 CONN b a down\n9 CONN a b up\n10 CONN a b down\n"
    assert rows(read_recording(write(tmp_path, text))) == [(0, 1, 0.0, 7.0), (0, 1, 9.0, 10.0)]


def test_a_pair_with_two_interfaces_is_in_contact_while_one_of_them_is_up(tmp_path):
    text = "0 CONN a b up wifi\n2 CONN a b UP bt\n3 CONN a b down wifi\n7 CONN a b down bt\n"
    assert rows(read_recording(write(tmp_path, text))) == [(0, 1, 0.0, 7.0)]


def test_a_contact_still_up_lasts_until_the_end(tmp_path):
    text = "0 CONN a b up\n5 CONN a c up\n8 CONN a c down\n"
    assert rows(read_recording(write(tmp_path, text))) == [(0, 1, 0.0, 8.0), (0, 2, 5.0, 8.0)]


def test_contacts_without_length_are_left_out_with_a_note(tmp_path):
    recording = read_recording(write(tmp_path, "0 CONN a b up\n0 CONN a b down\n1 CONN a c up\n2 CONN a c down\n"))
    assert rows(recording) == [(0, 2, 1.0, 2.0)]
    assert recording.notes == ("1 of 2 contacts skipped: length 0",)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("3 CONN a b down", "down without up"),
        ("1 CONN a c up", "time runs backwards"),
        ("3 CONN a c up", "already up since line 2"),
        ("3 CONN b b up", "in contact with itself"),
        ("nan CONN a b up", "time = nan"),
        ("3 CONN a b sideways", "neither up nor down"),
        ("3 MSG a b up", "not a connectivity event"),
        ("3 CONN a", "not a connectivity event"),
        ("3 CONN a b \xff", "neither up nor down"),
    ],
)
def test_a_bad_line_is_named_or_skipped_and_counted(tmp_path, line, reason):
    file = write(tmp_path, f"1 CONN x y up\n2 CONN a c up\n{line}\n5 CONN a c down\n6 CONN x y down\n")
    with pytest.raises(TraceError) as caught:
        read_recording(file)
    assert caught.value.line == 3
    assert reason in caught.value.reason
    recording = read_recording(file, lenient=True)
    assert recording.skipped == 1
    assert len(rows(recording)) == 2


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path):
    file = tmp_path / "contacts.one"
    file.write_bytes(b"1 CONN x y up\n\xff\xfe\n6 CONN x y down\n")
    with pytest.raises(TraceError, match="line 2: not UTF-8 text"):
        read_recording(file)
