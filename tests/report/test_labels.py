"""Names as people read them."""

from __future__ import annotations

from wayfare.methods import scheme_label
from wayfare.methods.registry import TABLE
from wayfare.report.labels import axis_label, named_with_task, value_label


def test_fields_become_words_and_units() -> None:
    assert axis_label("mobility.speed_mps") == "speed (m/s)"
    assert value_label("mobility.contact_s", "4") == "contact 4 s"
    assert value_label("control.weight", "0.001") == "weight 0.001"


def test_a_task_of_a_file_goes_without_its_folder() -> None:
    assert named_with_task("town", "/home/me/mine.py:task") == "town, task mine.py:task"
    assert named_with_task("town", "org/roads") == "town, task org/roads"


def test_schemes_are_called_as_their_authors_call_them() -> None:
    assert scheme_label("afl-spar:paced") == "paced AFL-Spar"
    assert scheme_label("patient") == "patient"
    assert all(scheme_label(name) != name for name in TABLE), "a scheme of ours without a label"
