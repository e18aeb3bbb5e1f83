"""The world of one seed for the map of a page: motion, contacts, and the uploads of each scheme.

Records contain no positions. The world is drawn again from its scenario and seed, or read again from its trace, and
verified against the recorded contacts.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare import mobility
from wayfare.arrays import Floats, Ints
from wayfare.contacts import ContactPlan, device_names, opportunities, plan_from_drawn
from wayfare.errors import WayfareError
from wayfare.mobility import Motion
from wayfare.records import RunRecord
from wayfare.report.digest import CURVE_POINTS, numbers, thinned
from wayfare.scenario import Scenario
from wayfare.scenario.mobility import SpatialMobility

# Limits of a page; the map shows the beginning of a larger world.
_MOST_KNOTS = 400_000
_MOST_OUTCOMES = 600_000
# A deviation below this share of the area is invisible, so such a knot can be dropped.
_INVISIBLE = 1 / 4000
# Coordinates are 16-bit numbers; _ABSENT marks a node that is absent from then on.
_GRID = 65_534
_ABSENT = 65_535
# The outcome of an exchange that did not complete.
_FAILED = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Knots:
    """Motion as knots with straight lines between them, sorted by node and time; NaN: absent from then on."""

    node: Ints
    time_s: Floats
    x_m: Floats
    y_m: Floats

    def take(self, rows: np.ndarray) -> Knots:
        return Knots(node=self.node[rows], time_s=self.time_s[rows], x_m=self.x_m[rows], y_m=self.y_m[rows])


def replay_json(records: Sequence[RunRecord], room: float = 1.0) -> dict[str, Any]:
    """The common world of runs with one scenario and seed, or the reason why it cannot be shown.

    ``room`` is the share of a page's limits that the map may use.
    """
    try:
        return _replay(records, room)
    except WayfareError as error:
        return {"unavailable": str(error)}


def _replay(records: Sequence[RunRecord], room: float) -> dict[str, Any]:
    scenario, seed = records[0].scenario, records[0].seed
    drawn = mobility.from_spec(scenario.mobility, scenario.radio.range_m).draw(
        scenario.fleet.devices, scenario.duration_s, seed
    )
    plan, knots = plan_from_drawn(drawn, scenario, seed), knots_of(drawn) if isinstance(drawn, Motion) else None
    plan = plan.take(np.argsort(plan.start_s, kind="stable"))
    meets = opportunities(plan, scenario.round_s, scenario.rounds)
    keys = meets.round * scenario.fleet.devices + meets.device
    for record in records:
        if not np.array_equal(_keys(record), keys):
            return {"unavailable": "the world differs from the recorded one; has its trace changed?"}
    knots, until_s = _within_limits(knots, plan, len(records), scenario, room)
    plan = plan.take(plan.start_s < until_s)
    rounds = np.floor(plan.start_s / scenario.round_s).astype(np.int64) + 1
    counted = rounds <= scenario.rounds
    plan, rounds = plan.take(counted), rounds[counted]
    outcome = np.searchsorted(keys, rounds * scenario.fleet.devices + plan.device)
    outcomes = int(outcome.max(initial=-1)) + 1
    most_bits = max((float(record.contacts["bits"].max(initial=0.0)) for record in records), default=0.0)
    return {
        "seed": seed,
        "devices": scenario.fleet.devices,
        "names": list(device_names(scenario)) or None,
        "duration_s": scenario.duration_s,
        "until_s": until_s,
        "round_s": scenario.round_s,
        "range_m": scenario.radio.range_m,
        "stale_rounds": _stale_rounds(records),
        "motion": None if knots is None else _motion_json(knots, scenario),
        "contacts": {
            "start_s": _packed(plan.start_s, "<f4"),
            "end_s": _packed(plan.end_s, "<f4"),
            "device": _packed(plan.device, "<u2"),
            "outcome": _packed(outcome, "<u4"),
        },
        "most_bits": most_bits,
        "schemes": [_scheme_json(record, outcomes, most_bits) for record in records],
    }


def knots_of(motion: Motion) -> Knots:
    """The knots of a motion: the start of every leg, and its end if the next leg does not start there."""
    x_end = motion.x_m + motion.vx_mps * (motion.end_s - motion.start_s)
    y_end = motion.y_m + motion.vy_mps * (motion.end_s - motion.start_s)
    follows = np.append(motion.node[1:] == motion.node[:-1], False)
    gap = ~follows | (np.append(motion.start_s[1:], 0.0) > motion.end_s + 1e-6)
    jump = gap | (
        np.abs(np.append(motion.x_m[1:], 0.0) - x_end) + np.abs(np.append(motion.y_m[1:], 0.0) - y_end) > 1e-3
    )
    absent = np.full(len(x_end), np.nan)
    wanted = np.column_stack([np.ones(len(gap), dtype=np.bool_), jump, gap]).ravel()
    return Knots(
        node=np.repeat(motion.node, 3)[wanted],
        time_s=np.column_stack([motion.start_s, motion.end_s, motion.end_s]).ravel()[wanted],
        x_m=np.column_stack([motion.x_m, x_end, absent]).ravel()[wanted],
        y_m=np.column_stack([motion.y_m, y_end, absent]).ravel()[wanted],
    )


def straightened(knots: Knots, most: int, tolerance_m: float) -> Knots:
    """Drop knots that lie on the straight line between their neighbours, until at most `most` are left."""
    idle, odd = 0, True
    while len(knots.node) > most and idle < 2:
        # Never drop two neighbours at once, because each check uses the other: every second knot, then the rest.
        middle = np.arange(1 if odd else 2, len(knots.node) - 1, 2)
        before, after = middle - 1, middle + 1
        span_s = knots.time_s[after] - knots.time_s[before]
        same = (knots.node[before] == knots.node[after]) & (span_s > 0)
        share = (knots.time_s[middle] - knots.time_s[before]) / np.where(same, span_s, 1.0)
        x_m = knots.x_m[before] + share * (knots.x_m[after] - knots.x_m[before])
        y_m = knots.y_m[before] + share * (knots.y_m[after] - knots.y_m[before])
        # Comparisons with NaN are false, so knots next to an absence stay.
        beside = np.hypot(knots.x_m[middle] - x_m, knots.y_m[middle] - y_m) < tolerance_m
        stays = np.ones(len(knots.node), dtype=np.bool_)
        stays[middle] = ~(same & beside)
        idle, odd = 0 if not stays.all() else idle + 1, not odd
        knots = knots.take(stays)
    return knots


def _within_limits(
    knots: Knots | None, plan: ContactPlan, schemes: int, scenario: Scenario, room: float
) -> tuple[Knots | None, float]:
    """The knots within the limits of a page, and the time until which the map shows motion and contacts."""
    until_s = scenario.duration_s
    most_knots, most_outcomes = int(_MOST_KNOTS * room), int(_MOST_OUTCOMES * room)
    if len(plan) * schemes > most_outcomes:
        until_s = float(plan.start_s[most_outcomes // schemes])
    if knots is None:
        return None, until_s
    size_m = float(max(np.ptp(knots.x_m[np.isfinite(knots.x_m)]), np.ptp(knots.y_m[np.isfinite(knots.y_m)])))
    knots = straightened(knots, most_knots, size_m * _INVISIBLE)
    if len(knots.node) > most_knots:
        until_s = min(until_s, float(np.partition(knots.time_s, most_knots)[most_knots]))
    if until_s < scenario.duration_s:
        # Keep the first knot beyond the end, which gives the direction of a node.
        inside = knots.time_s <= until_s
        knots = knots.take(inside | np.append(False, inside[:-1] & (knots.node[1:] == knots.node[:-1])))
    return knots, until_s


def _motion_json(knots: Knots, scenario: Scenario) -> dict[str, Any]:
    here = np.isfinite(knots.x_m)
    if isinstance(scenario.mobility, SpatialMobility):
        left_m, bottom_m, right_m, top_m = 0.0, 0.0, scenario.mobility.width_m, scenario.mobility.height_m
    else:
        left_m, right_m = float(knots.x_m[here].min()), float(knots.x_m[here].max())
        bottom_m, top_m = float(knots.y_m[here].min()), float(knots.y_m[here].max())
    width_m, height_m = max(right_m - left_m, 1.0), max(top_m - bottom_m, 1.0)
    x = np.clip((knots.x_m - left_m) / width_m, 0, 1) * _GRID
    y = np.clip((knots.y_m - bottom_m) / height_m, 0, 1) * _GRID
    nodes = scenario.fleet.devices + 1
    return {
        "left_m": left_m,
        "bottom_m": bottom_m,
        "width_m": width_m,
        "height_m": height_m,
        "first": np.searchsorted(knots.node, np.arange(nodes + 1)).tolist(),
        "time_s": _packed(knots.time_s, "<f4"),
        "x": _packed(np.where(here, x.round(), _ABSENT), "<u2"),
        "y": _packed(np.where(here, y.round(), _ABSENT), "<u2"),
    }


def _scheme_json(record: RunRecord, outcomes: int, most_bits: float) -> dict[str, Any]:
    contacts = {name: values[:outcomes] for name, values in record.contacts.items()}
    completed = contacts["completed"] > 0
    kept = np.clip((contacts["entries"] / record.parameters * _GRID).round(), 0, _GRID)
    rows = thinned(len(record.evaluations["round"]), CURVE_POINTS)
    return {
        "name": record.scheme,
        "kept": _packed(np.where(completed, kept, _FAILED), "<u2"),
        "bits": _packed(contacts["bits"] * completed / (most_bits or 1.0) * _GRID, "<u2"),
        "time_s": numbers(record.evaluations["time_s"][rows]),
        "score": numbers(record.evaluations["score"][rows]),
    }


def _stale_rounds(records: Sequence[RunRecord]) -> float:
    """The staleness that gets the colour for old models: most contacts of most schemes are below it."""
    ages = [float(np.quantile(record.contacts["staleness_rounds"], 0.9)) for record in records if len(_keys(record))]
    return max(float(np.median(ages)), 1.0) if ages else 1.0


def _keys(record: RunRecord) -> Ints:
    return np.asarray(
        record.contacts["round"] * record.scenario.fleet.devices + record.contacts["device"], dtype=np.int64
    )


def _packed(values: np.ndarray, kind: str) -> dict[str, str]:
    return {"kind": kind[1:], "base64": base64.b64encode(np.asarray(values).astype(kind).tobytes()).decode()}
