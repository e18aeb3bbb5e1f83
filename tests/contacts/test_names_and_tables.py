"""Vehicles keep their names in files, tables, records and pages; contacts leave and come back as a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import wayfare
from wayfare.cli.contacts import contacts_app
from wayfare.contacts import ContactPlan, contact_frame, contact_rows, draw_plan, write_contacts
from wayfare.contacts.export import export_one
from wayfare.contacts.plan import merge
from wayfare.contacts.source import plan_from_source
from wayfare.contacts.store import load_plan, save_plan
from wayfare.errors import InputError
from wayfare.records import read_run, run_json
from wayfare.report.holdings import holdings_of, holdings_table
from wayfare.report.page import _holdings
from wayfare.scenario import Scenario, load

# Names with a comma, a quote, a space and a number sign; "idle" never meets the depot.
LIST = (
    "start_s,end_s,a,b\n"
    '10.1,20.25,depot,bus_12\n30,35,depot,"bus 2"\n40,47,depot,"a,""b"" #1"\n41,42,bus_12,"bus 2"\n60,61,idle,"bus 2"\n'
)
NAMES = ('a,"b" #1', "bus 2", "bus_12", "idle")


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "town.csv").write_text(LIST)
    return str(tmp_path / "town.csv")


@pytest.fixture
def plan(source: str) -> ContactPlan:
    return plan_from_source(source, seed=3, server="depot").plan


def scenario_on(source: str) -> Scenario:
    trace = ("mobility.model=trace", f"mobility.file={source}", "mobility.server=depot")
    return load("fashion-small", ["rounds=4", "fleet.devices=3", "learning.hidden=[4]", *trace])


def assert_same(one: ContactPlan, other: ContactPlan, *, distances: bool = True) -> None:
    assert (one.devices, one.duration_s, one.names) == (other.devices, other.duration_s, other.names)
    for name in ("device", "peer", "start_s", "end_s", *(("distance_m",) if distances else ())):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_a_plan_of_a_trace_knows_the_names(plan: ContactPlan) -> None:
    assert plan.names == (*NAMES, "depot")
    assert plan.between(0, 30).names == plan.names
    assert merge([plan, plan]).names == plan.names
    assert plan.repeated(200).names == plan.names


def test_a_drawn_plan_has_numbers_only() -> None:
    drawn = draw_plan(load("fashion-small", ["rounds=50"]), 0)
    assert drawn.names == ()
    first = contact_rows(drawn)[0]
    assert (first["device"], first["name"], first["peer"]) == (0, "0", "server")


def test_saved_plans_keep_names(plan: ContactPlan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.npz")
    assert_same(load_plan(tmp_path / "plan.npz"), plan)
    back = plan_from_source(str(tmp_path / "plan.npz"), seed=0)
    assert (back.devices, back.server) == (NAMES, "depot")
    assert_same(back.plan, plan)


def test_saved_names_that_do_not_fit_are_refused(plan: ContactPlan, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.npz")
    with np.load(tmp_path / "plan.npz") as stored:
        arrays = dict(stored)
    for names, rule in (
        (["x"], "5 different names"),
        (["x"] * 5, "5 different names"),
        ([""] * 5, "5 different names"),
    ):
        np.savez(tmp_path / "bad.npz", **{**arrays, "names": np.array(names)})
        with pytest.raises(InputError, match=rule):
            load_plan(tmp_path / "bad.npz")


def test_the_events_of_the_one_have_names_without_spaces(plan: ContactPlan, tmp_path: Path) -> None:
    export_one(plan, tmp_path / "plan.one")
    assert "\tdepot\tup" in (tmp_path / "plan.one").read_text()
    back = plan_from_source(str(tmp_path / "plan.one"), seed=0)
    assert (back.devices, back.server) == (('a,"b"_#1', "bus_2", "bus_12", "idle"), "depot")
    assert len(back.plan) == len(plan)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_comes_back_with_identical_contacts(plan: ContactPlan, tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / f"contacts.{kind}"
    write_contacts(plan, file)
    back = plan_from_source(str(file), seed=99)
    assert (back.devices, back.server) == (NAMES, "depot")
    assert_same(back.plan, plan)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_drawn_plan_comes_back_too(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    drawn = draw_plan(load("fashion-small", ["rounds=50", "fleet.devices=4"]), 0, devices_meet=True)
    write_contacts(drawn, tmp_path / f"drawn.{kind}")
    back = plan_from_source(str(tmp_path / f"drawn.{kind}"), seed=0).plan
    for name in ("device", "peer", "start_s", "end_s", "distance_m"):
        assert np.array_equal(getattr(back, name), getattr(drawn, name)), name


def test_a_table_has_a_row_for_each_contact(plan: ContactPlan, tmp_path: Path) -> None:
    write_contacts(plan, tmp_path / "contacts.csv")
    lines = [line for line in (tmp_path / "contacts.csv").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "device,name,peer,start_s,end_s,distance_m"
    assert len(lines) == 1 + len(plan)
    rows = contact_rows(plan)
    assert [(row["device"], row["name"], row["peer"], row["end_s"]) for row in rows if row["name"] == "bus_12"] == [
        (2, "bus_12", "depot", 20.25 - 10.1)
    ]
    assert list(rows[0]) == ["device", "name", "peer", "start_s", "end_s", "distance_m"]


def test_a_table_is_a_data_frame(plan: ContactPlan) -> None:
    pytest.importorskip("pandas")
    frame = contact_frame(plan)
    assert list(frame.columns) == ["device", "name", "peer", "start_s", "end_s", "distance_m"]
    assert set(frame["name"]) == {'a,"b" #1', "bus 2", "bus_12"}


def test_a_table_of_an_unknown_kind_is_refused(plan: ContactPlan, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"contacts\.xlsx: must end in \.csv or \.parquet"):
        write_contacts(plan, tmp_path / "contacts.xlsx")


def test_a_damaged_parquet_file_is_one_of_our_errors(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"x" * 50)
    with pytest.raises(InputError, match=r"bad\.parquet"):
        plan_from_source(str(tmp_path / "bad.parquet"), seed=0)


def test_the_command_writes_the_table(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = CliRunner().invoke(contacts_app, [source, "--out", str(out), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["written"] == [str(out)]
    assert "bus_12" in out.read_text()


def test_records_tables_and_pages_call_vehicles_by_name(source: str, tmp_path: Path) -> None:
    scenario = scenario_on(source)
    record = read_run(wayfare.run(scenario, "mads", out=tmp_path / "runs").folder)
    assert record.trace is not None
    assert record.trace.device_names == ('a,"b" #1', "bus 2", "bus_12")
    assert run_json(record)["trace"]["device_names"][2] == "bus_12"
    page = _holdings([record])
    assert page is not None
    assert page["names"] == ['a,"b" #1', "bus 2", "bus_12"]
    held = holdings_of(scenario, 0)
    assert held.devices == ('a,"b" #1', "bus 2", "bus_12")
    assert list(holdings_table(held).renderables[1].columns[0].cells)[2] == "bus_12"  # type: ignore[union-attr]
