"""Predictions on the page are those of the theory at what the records say of contacts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wayfare.records import find_runs, read_run
from wayfare.report.page import page_json, read_material
from wayfare.theory.bounds import corollary_1_factor, kept_share
from wayfare.theory.staleness import staleness_moments


def test_lines_are_the_theory_and_points_are_the_records(study: Path) -> None:
    content = page_json(read_material(study))["theory"]
    records = [read_run(folder) for folder in find_runs(study)]
    contact_m, gap_m, rates_bps = [], [], []
    for record in records:
        speed, contacts = record.scenario.mobility.speed_mps, record.contacts  # type: ignore[union-attr]
        met_s, count = contacts["contact_s"].sum(), len(contacts["round"])
        contact_m.append(speed * met_s / count)
        gap_m.append(speed * (6 * record.scenario.duration_s - met_s) / count)
        rates_bps.append(1e3 * np.log2(1 + 0.2 * contacts["gain_per_watt"]))
    speeds = np.array(content["speed_mps"])
    times_s = np.mean(contact_m) / speeds, np.mean(gap_m) / speeds
    assert content["age"] == pytest.approx(staleness_moments(*times_s, 10.0, "start").at_contact_mean, rel=1e-4)
    parameters = records[0].parameters
    entry_bits = 32 + np.log2(parameters)
    kept = kept_share(np.concatenate(rates_bps)[:, None], times_s[0], parameters, entry_bits).mean(axis=0)
    assert content["kept"] == pytest.approx(100 * kept, rel=1e-4)
    factor = corollary_1_factor(
        speeds,
        contact_m=np.mean(contact_m),
        inter_contact_m=np.mean(gap_m),
        rate_bps=np.concatenate(rates_bps).mean(),
        round_s=10.0,
        parameters=parameters,
        bits_per_entry=entry_bits,
        counting="start",
    )
    assert content["bound"]["corrected"] == pytest.approx(factor / factor.min(), rel=1e-3)
    for one in content["measured"]:
        (record,) = (
            record
            for record in records
            if (record.scheme, record.scenario.mobility.speed_mps) == (one["scheme"], one["speed_mps"])  # type: ignore[union-attr]
        )
        assert one["staleness_rounds"]["mean"] == pytest.approx(record.contacts["staleness_rounds"].mean())
        assert one["kept_fraction"]["mean"] == pytest.approx(record.contacts["entries"].mean() / parameters)


def test_only_a_study_over_speeds_has_theory_beside_it(comparison: Path) -> None:
    assert page_json(read_material(comparison))["theory"] is None
