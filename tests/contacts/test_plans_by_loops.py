"""Plans of random contacts against loops over single contacts."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from tests.contacts.plans import plan_of

import wayfare
from wayfare import mobility
from wayfare.contacts import ContactPlan, draw, draw_plan, opportunities
from wayfare.contacts.exchanges import split_into_exchanges
from wayfare.contacts.plan import peer_opportunities
from wayfare.contacts.statistics import plan_statistics
from wayfare.mobility import SERVER, Meetings, Motion
from wayfare.streams import Stream, generator

DEVICES = 4


def drawn(seed: int, contacts: int = 30) -> ContactPlan:
    """Contacts on whole seconds, of devices with the server and with each other, which may overlap."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(contacts):
        device, peer = sorted(rng.choice(DEVICES + 1, 2, replace=False).tolist())
        start_s = int(rng.integers(0, 90))
        end_s = min(start_s + int(rng.integers(1, 30)), 100)
        rows.append((device, SERVER if peer == DEVICES else peer, start_s, end_s, float(rng.random())))
    return plan_of(*sorted(rows, key=lambda row: (row[0], row[2])), devices=DEVICES)


def rows_of(plan: ContactPlan) -> list[tuple[int, int, float, float, float]]:
    columns = (plan.device, plan.peer, plan.start_s, plan.end_s, plan.distance_m)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("longest_s", [1.0, 7.0, 10.0, 28.0])
def test_exchanges_are_contacts_cut_at_every_so_many_seconds(seed: int, longest_s: float) -> None:
    plan = drawn(seed)
    expected = []
    for device, peer, start_s, end_s, distance_m in rows_of(plan):
        while end_s - start_s > longest_s:
            expected.append((device, peer, start_s, start_s + longest_s, distance_m))
            start_s += longest_s
        expected.append((device, peer, start_s, end_s, distance_m))
    found = split_into_exchanges(plan, longest_s)
    assert sorted(rows_of(found)) == sorted(expected)
    assert [(device, start_s) for device, _, start_s, *_ in rows_of(found)] == sorted(
        (device, start_s) for device, _, start_s, *_ in expected
    )


def test_plans_without_long_contacts_stay_as_they_are() -> None:
    plan = drawn(0)
    assert split_into_exchanges(plan, None) is plan
    assert split_into_exchanges(plan, 29.0) is plan


@pytest.fixture(scope="module")
def motion() -> Motion:
    scenario = wayfare.load("fashion-small", ["mobility.width_m=300", "mobility.height_m=300"])
    moving = mobility.from_spec(scenario.mobility, 100.0).draw(DEVICES, 100.0, 0)
    assert isinstance(moving, Motion)
    return moving


def test_only_contacts_that_are_split_have_the_distance_in_the_middle_of_an_exchange(motion: Motion) -> None:
    plan = drawn(1)
    lengths = {(device, peer, end_s): end_s - start_s for device, peer, start_s, end_s, _ in rows_of(plan)}
    split = 0
    for device, peer, start_s, end_s, distance_m in rows_of(split_into_exchanges(plan, 10.0, motion)):
        middle_s = np.array([(start_s + end_s) / 2])
        other = DEVICES if peer == SERVER else peer
        apart_m = motion.positions_m(device, middle_s)[0] - motion.positions_m(other, middle_s)[0]
        if lengths.get((device, peer, end_s), 99.0) <= 10.0 and distance_m in plan.distance_m:
            continue
        split += 1
        assert distance_m == pytest.approx(math.hypot(*apart_m))
    assert split > 20


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rounds", [4, 10, 20])
def test_opportunities_gather_the_contacts_that_start_in_a_round(seed: int, rounds: int) -> None:
    plan = drawn(seed, 60)
    groups: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for device, peer, start_s, end_s, distance_m in rows_of(plan):
        round_ = int(start_s // 6) + 1
        if round_ <= rounds:
            groups[round_, device, peer].append((end_s - start_s, distance_m))
    for found, is_peer in ((opportunities(plan, 6.0, rounds), False), (peer_opportunities(plan, 6.0, rounds), True)):
        keys = sorted(key for key in groups if (key[2] != SERVER) == is_peer)
        assert [(r, n) for r, n, _ in keys] == list(zip(found.round.tolist(), found.device.tolist(), strict=True))
        assert found.contact_s == pytest.approx([sum(length for length, _ in groups[key]) for key in keys])
        # Where two are the longest, either may stand for the group.
        for key, distance_m in zip(keys, found.distance_m.tolist(), strict=True):
            longest_s = max(length for length, _ in groups[key])
            assert distance_m in [distance for length, distance in groups[key] if length == longest_s]


@pytest.mark.parametrize("seed", range(3))
def test_overlaps_are_counted_second_by_second(seed: int) -> None:
    plan = drawn(seed).with_server()
    number = [sum(start_s <= second < end_s for _, _, start_s, end_s, _ in rows_of(plan)) for second in range(100)]
    found = plan_statistics(plan)
    busy = [n for n in number if n]
    assert found.mean_devices_in_contact == pytest.approx(sum(busy) / len(busy))
    assert found.overlapping_contact_time_share == pytest.approx(sum(n for n in busy if n > 1) / sum(busy))
    assert found.time_in_contact_share == pytest.approx(sum(number) / (DEVICES * 100))
    begun = sum(start_s > 0 for _, _, start_s, *_ in rows_of(plan))
    assert found.mean_wait_s == pytest.approx((DEVICES * 100 - sum(number)) / begun)


@pytest.mark.parametrize("seed", range(3))
def test_a_listed_contact_without_a_distance_lies_in_the_disc(seed: int) -> None:
    """The nth contact of a pair: w of the device, and for two devices the sum of both modulo 1."""
    plan = drawn(seed)
    meetings = Meetings(
        devices=DEVICES, device=plan.device, peer=plan.peer, start_s=plan.start_s, end_s=plan.end_s, distance_m=None
    )
    chance = [generator(5, Stream.CONTACT_DISTANCE, device).random(60) for device in range(DEVICES)]
    number: dict[tuple[int, int], int] = defaultdict(int)
    expected = {}
    for device, peer, start_s, end_s, _ in sorted(rows_of(plan), key=lambda row: row[:3]):
        w = chance[device][number[device, peer]]
        if peer != SERVER:
            w = (w + chance[peer][number[device, peer]]) % 1.0
        number[device, peer] += 1
        expected[device, peer, start_s, end_s] = 80.0 * math.sqrt(w)
    # Contacts that overlap become one, with the distance of the longest; here only those that do not.
    found = draw.plan_from_meetings(meetings, 80.0, 100.0, 5)
    seen = 0
    for device, peer, start_s, end_s, distance_m in rows_of(found):
        if (device, peer, start_s, end_s) in expected:
            seen += 1
            assert distance_m == pytest.approx(expected[device, peer, start_s, end_s])
    assert seen > 10
    assert (np.diff(found.start_s)[np.diff(found.device) == 0] >= 0).all()


def test_the_size_of_the_parts_of_a_plan_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = wayfare.load("fashion-small", ["rounds=40", "mobility.width_m=500", "mobility.height_m=500"])
    expected = draw_plan(scenario, 0, devices_meet=True)
    monkeypatch.setattr(draw, "_LARGE", 7)
    assert rows_of(draw_plan(scenario, 0, devices_meet=True)) == rows_of(expected)
    assert len(expected) > 100


def test_distances_do_not_depend_on_how_many_contacts_there_are() -> None:
    """Chance grows with the contacts of a pair; what was drawn before stays."""
    scenario = wayfare.load("fashion-small", ["rounds=40", "mobility.width_m=300", "mobility.height_m=300"])
    longer = draw_plan(scenario.model_copy(update={"rounds": 120}), 0)
    shorter = draw_plan(scenario, 0)
    whole = [row for row in rows_of(shorter) if row[3] < shorter.duration_s]
    assert set(whole) <= set(rows_of(longer))
    assert len(whole) > 20


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(0, SERVER, 0, 5), (0, SERVER, 5, 9)], [(0, SERVER, 0, 9)]),
        ([(0, SERVER, 0, 5), (0, SERVER, 6, 9)], [(0, SERVER, 0, 5), (0, SERVER, 6, 9)]),
        ([(0, 1, 0, 5), (0, 1, 3, 9), (0, SERVER, 2, 4)], [(0, 1, 0, 9), (0, SERVER, 2, 4)]),
        ([(0, 1, 0, 5), (0, 2, 3, 9), (1, 2, 3, 9)], [(0, 1, 0, 5), (0, 2, 3, 9), (1, 2, 3, 9)]),
    ],
)
def test_listed_contacts_of_a_pair_that_overlap_or_touch_are_one(
    rows: list[tuple[int, int, float, float]], expected: list[tuple[int, int, float, float]]
) -> None:
    plan = plan_of(*((*row, 7.0) for row in rows))
    meetings = Meetings(
        devices=3,
        device=plan.device,
        peer=plan.peer,
        start_s=plan.start_s,
        end_s=plan.end_s,
        distance_m=plan.distance_m,
    )
    found = draw.plan_from_meetings(meetings, 80.0, 100.0, 5)
    assert [row[:4] for row in rows_of(found)] == expected
    assert set(found.distance_m.tolist()) == {7.0}
