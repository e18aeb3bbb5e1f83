"""Contacts that are too short are dropped; long ones become several exchanges. All lists here are made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import wayfare
from wayfare.contacts import draw_plan, opportunities, trace_use
from wayfare.contacts.source import plan_from_source
from wayfare.errors import ScenarioError
from wayfare.records import read_run
from wayfare.report.caveats import trace_text
from wayfare.scenario import Scenario, load

# Lengths in s: x 4 and 30, y 5 and 100; x meets y for 3 s.
LIST = "start_s,end_s,a,b\n0,4,server,x\n20,50,server,x\n10,15,server,y\n60,160,server,y\n170,173,x,y\n0,200,z,w\n"

OnList = Callable[..., Scenario]


@pytest.fixture
def on_list(tmp_path: Path) -> OnList:
    (tmp_path / "list.csv").write_text(LIST)

    def scenario(*settings: str, text: str = LIST) -> Scenario:
        (tmp_path / "list.csv").write_text(text)
        trace = ["mobility.model=trace", f"mobility.file={tmp_path / 'list.csv'}"]
        small = ["rounds=20", "fleet.devices=2", "learning.hidden=[4]", "radio.bandwidth_hz=1e4"]
        return load("fashion-small", [*small, *trace, *settings])

    return scenario


def spans(scenario: Scenario) -> list[tuple[int, float, float]]:
    plan = draw_plan(scenario, 0)
    return list(zip(plan.device.tolist(), plan.start_s.tolist(), plan.end_s.tolist(), strict=True))


def test_shorter_contacts_are_dropped_and_those_of_the_very_length_stay(on_list: OnList) -> None:
    assert spans(on_list("contacts.min_contact_s=5")) == [(0, 20, 50), (1, 10, 15), (1, 60, 160)]


def test_contacts_of_devices_with_each_other_are_dropped_too(on_list: OnList) -> None:
    lengths = [len(draw_plan(on_list(f"contacts.min_contact_s={s}"), 0, devices_meet=True)) for s in (0, 3, 3.5)]
    assert lengths == [5, 5, 4]


def test_dropping_changes_nothing_about_the_others() -> None:
    every, some = (draw_plan(load("fashion-small", [f"contacts.min_contact_s={s}"]), 3) for s in (0, 5))
    kept = every.take(every.end_s - every.start_s >= 5)
    assert 0 < len(kept) < len(every)
    for column in ("device", "start_s", "end_s", "distance_m"):
        assert np.array_equal(getattr(kept, column), getattr(some, column))


def test_the_note_counts_contacts_that_were_too_short(on_list: OnList) -> None:
    use = trace_use(on_list("contacts.min_contact_s=5"))
    assert use is not None
    assert (use.contacts_used, use.contacts_dropped, use.contacts_too_short) == (3, 1, 1)
    assert "3 contacts used, 1 dropped (0 of other nodes or times, 1 shorter than 5 s)" in trace_text(use)
    plain = trace_use(on_list())
    assert plain is not None
    assert "4 contacts used, 0 dropped (other nodes or times)" in trace_text(plain)


def test_the_note_counts_short_contacts_of_moving_nodes(tmp_path: Path) -> None:
    rows = [f"{t},{name},{x},0" for t in range(0, 101, 10) for name, x in (("car", 10 * t), ("cart", 5 * t))]
    (tmp_path / "motion.csv").write_text("\n".join(["time,id,x,y", *rows]))
    unit = ("mobility.server.kind=fixed", "mobility.server.x_m=450", "mobility.server.y_m=0")
    scenario = load(
        "fashion-small",
        [
            *("rounds=10", "fleet.devices=2", "contacts.min_contact_s=25", "mobility.model=trace"),
            *(f"mobility.file={tmp_path / 'motion.csv'}", *unit),
        ],
    )
    # The car is in range from 35 to 55 s, the cart from 70 s to the end.
    assert spans(scenario) == [(1, 70.0, 100.0)]
    use = trace_use(scenario)
    assert use is not None
    assert (use.contacts_used, use.contacts_dropped, use.contacts_too_short) == (1, 1, 1)


def test_a_look_at_contacts_says_how_many_were_too_short(on_list: OnList, tmp_path: Path) -> None:
    on_list()
    found = plan_from_source(str(tmp_path / "list.csv"), seed=0, overrides=["contacts.min_contact_s=5"])
    assert "1 contact with the server dropped: shorter than 5 s" in found.notes
    drawn = plan_from_source("fashion-small", seed=0, overrides=["contacts.min_contact_s=1e6"])
    assert len(drawn.plan) == 0
    assert drawn.notes[0].endswith("dropped: shorter than 1e+06 s")


def test_a_long_contact_is_split_into_exchanges(on_list: OnList) -> None:
    assert spans(on_list("contacts.max_exchange_s=40")) == [
        *((0, 0, 4), (0, 20, 50), (1, 10, 15)),
        *((1, 60, 100), (1, 100, 140), (1, 140, 160)),
    ]


def test_half_an_hour_is_thirty_exchanges_of_a_minute(on_list: OnList) -> None:
    text = "start_s,end_s,a,b\n5,1805,server,x\n0,1,server,y\n1809,1811,server,y\n"
    scenario = on_list("contacts.max_exchange_s=60", "rounds=181", text=text)
    meets = opportunities(draw_plan(scenario, 0), 10.0, 181)
    mine = meets.device == 0
    assert meets.round[mine].tolist() == list(range(1, 181, 6))
    assert np.allclose(meets.contact_s[mine], 60.0)


def test_a_remainder_of_rounding_is_no_exchange(on_list: OnList) -> None:
    # 0.3 + 60 - 0.3 is a little more than 60.
    text = "start_s,end_s,a,b\n0,0.1,server,y\n0.3,60.300000000000004,server,x\n"
    assert len(spans(on_list("contacts.max_exchange_s=20", "rounds=6", text=text))) == 4


def test_each_exchange_of_moving_nodes_has_the_distance_in_its_middle(tmp_path: Path) -> None:
    rows = [f"{t},car,{5 * t - 250},0" for t in range(0, 101, 10)]
    (tmp_path / "motion.csv").write_text("\n".join(["time,id,x,y", *rows]))
    unit = ("mobility.server.kind=fixed", "mobility.server.x_m=0", "mobility.server.y_m=0")
    trace = ("mobility.model=trace", f"mobility.file={tmp_path / 'motion.csv'}", *unit)
    plan = draw_plan(load("fashion-small", ["rounds=10", "fleet.devices=1", "contacts.max_exchange_s=10", *trace]), 0)
    assert plan.start_s == pytest.approx([30, 40, 50, 60])
    assert plan.distance_m == pytest.approx([75, 25, 25, 75])


def test_exchanges_of_a_list_keep_the_distance_of_their_contact(on_list: OnList) -> None:
    text = "start_s,end_s,a,b,distance_m\n0,100,server,x,42\n0,1,server,y,7\n"
    assert draw_plan(on_list("contacts.max_exchange_s=50", "rounds=10", text=text), 0).distance_m.tolist() == [
        42,
        42,
        7,
    ]


def test_budget_queue_and_staleness_treat_each_exchange_as_a_contact(on_list: OnList, tmp_path: Path) -> None:
    head, y = "start_s,end_s,a,b,distance_m\n", "0,1,server,y,50\n"
    text = f"{head}0,100,server,x,50\n{y}"
    # A list whose contacts touch would be one contact.
    by_hand = f"{head}0,39.999,server,x,50\n40,79.999,server,x,50\n80,100,server,x,50\n{y}"
    settings = ("rounds=10", "fleet.energy_total_joules=4", "radio.bandwidth_hz=20")
    scenario = on_list("contacts.max_exchange_s=40", *settings, text=text)
    split = read_run(wayfare.run(scenario, "mads", out=tmp_path / "split").folder).contacts
    made = read_run(wayfare.run(on_list(*settings, text=by_hand), "mads", out=tmp_path / "hand").folder).contacts
    for column in ("round", "device", "staleness_rounds"):
        assert split[column].tolist() == made[column].tolist()
    mine = split["device"] == 0
    assert split["round"][mine].tolist() == [1, 5, 9]
    assert split["staleness_rounds"][mine].tolist() == [1, 4, 4]
    assert (split["backlog_joules"][mine][1:] > 0).all()
    for column in ("contact_s", "energy_joules", "backlog_joules", "bits"):
        assert split[column][mine] == pytest.approx(made[column][mine], rel=1e-2)


def test_statistics_and_saved_contacts_are_those_of_whole_contacts(on_list: OnList, tmp_path: Path) -> None:
    on_list()
    found = plan_from_source(str(tmp_path / "list.csv"), seed=0, overrides=["contacts.max_exchange_s=40"])
    served, exchanges = found.plan.with_server(), found.exchanges.with_server()
    assert (len(served), len(exchanges)) == (4, 6)
    assert (served.end_s - served.start_s).max() == 100


def test_the_note_names_the_longest_exchange(on_list: OnList) -> None:
    use = trace_use(on_list("contacts.max_exchange_s=40"))
    assert use is not None
    assert use.contacts_used == 4
    assert "4 contacts used in exchanges of at most 40 s" in trace_text(use)


def test_an_exchange_shorter_than_a_round_is_refused(on_list: OnList) -> None:
    message = r"contacts\.max_exchange_s \(5\.0\) must be at least round_s \(10\.0\)"
    with pytest.raises(ScenarioError, match=message):
        on_list("contacts.max_exchange_s=5")
    with pytest.raises(ScenarioError, match=r"contacts\.min_contact_s = -1"):
        on_list("contacts.min_contact_s=-1")
