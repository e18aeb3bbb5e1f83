"""Schemes from files: found, refused, and run again when their code has changed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import wayfare
from wayfare.errors import ScenarioError
from wayfare.methods import make_method
from wayfare.methods.from_file import reject_edited
from wayfare.scenario import Scenario
from wayfare.studies.keys import run_key
from wayfare.studies.single import Execution

PATIENT = """
import wayfare

class Patient(wayfare.UploadRule):
    name = "{name}"

    def decide(self, encounter, link):
        return wayfare.send_top_k(encounter, link, link.max_power_watts)
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a scheme; no two tests share its name, since a module is imported once."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / f"mine_{tmp_path.name.replace('-', '_')}.py"
    file.write_text(PATIENT.format(name="patient"))
    return file


@pytest.mark.parametrize("suffix", ["", ":Patient"])
def test_a_scheme_of_a_file_runs_beside_ours_in_other_processes(
    suffix: str, written: Path, small: Scenario, tmp_path: Path
) -> None:
    done = wayfare.compare(small, ["mads", f"{written}{suffix}"], seeds=1, jobs=2, out=tmp_path / "runs")
    assert [scheme.name for scheme in done.schemes] == ["mads", "patient"]


def test_a_study_knows_it_by_its_name(written: Path, small: Scenario) -> None:
    assert make_method(str(written), small).name == "patient"
    assert make_method("patient", small).name == "patient"


def test_the_code_of_a_file_counts_in_the_key_of_a_run(written: Path, small: Scenario) -> None:
    scheme = make_method(str(written), small)
    before = run_key(small, scheme, 0, Execution())
    assert run_key(small, scheme, 0, Execution()) == before
    written.write_text(PATIENT.format(name="patient") + "# another thought\n")
    assert run_key(small, scheme, 0, Execution()) != before


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        ("def (", ":Patient", "cannot be imported: SyntaxError"),
        ("import nothing_of_the_kind", "", r"cannot be imported: \w+\.py, line 1: ModuleNotFoundError"),
        ("raise SystemExit(5)", ":Patient", r"the file exits when it is imported \(SystemExit: 5\)"),
        (PATIENT.format(name=""), "", r"schemes = 'Patient': your own upload rule needs a `name`"),
        (PATIENT.format(name="patient"), ":Nobody", "has no Nobody; it contains Patient"),
        ("x = 1", "", "name the class, as in .*; the file contains no upload rule"),
        (PATIENT.format(name="mads"), "", "schemes = 'mads': is the name of a method of Wayfare"),
        (PATIENT.format(name="x") + "    def __init__(self, a): ...", "", "invalid values"),
    ],
)
def test_what_cannot_be_used_is_refused(
    content: str, suffix: str, message: str, written: Path, small: Scenario
) -> None:
    written.write_text(content)
    with pytest.raises(ScenarioError, match=message):
        make_method(f"{written}{suffix}", small)


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, small: Scenario) -> None:
    with pytest.raises(ScenarioError, match="does not exist"):
        make_method(f"{tmp_path}/nowhere.py", small)
    (tmp_path / "json.py").write_text(PATIENT.format(name="x"))
    with pytest.raises(ScenarioError, match=r"json.py cannot be imported under this name"):
        make_method(f"{tmp_path}/json.py", small)
    (tmp_path / "wayfare.py").write_text(PATIENT.format(name="x"))
    with pytest.raises(ScenarioError, match="another module is called wayfare"):
        make_method(f"{tmp_path}/wayfare.py", small)
    with pytest.raises(ScenarioError, match=r"or give your own as FILE\.py:CLASS"):
        make_method("patience", small)


@pytest.mark.parametrize("compiles", [True, False])
def test_an_edited_file_is_read_again_and_nothing_of_the_old_one_is_left(
    compiles: bool, written: Path, small: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not compiles)
    written.write_text(PATIENT.format(name="early") + "Old = Patient\n")
    before = make_method(f"{written}:Old", small)
    reject_edited(before)
    assert make_method(f"{written}:Old", small).upload.__class__ is before.upload.__class__
    # Another file of the same size and time: Python itself would take the compiled one for it.
    edited_ns = written.stat().st_mtime_ns
    written.write_text(PATIENT.format(name="later") + "New = Patient\n")
    os.utime(written, ns=(edited_ns, edited_ns))
    with pytest.raises(ScenarioError, match=r"mine_.*\.py was edited after it was loaded"):
        reject_edited(before)
    after = make_method(f"{written}:New", small)
    assert (before.name, after.name) == ("early", "later")
    reject_edited(after)
    with pytest.raises(ScenarioError, match="has no Old; it contains Patient"):
        make_method(f"{written}:Old", small)
    reject_edited(make_method("mads", small))
