"""Runs that end without warning, and whether two runs are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wayfare
from wayfare.records import RunRecord
from wayfare.scenario import Scenario

EVERY_TEN = wayfare.Execution(safeguards=wayfare.Safeguards(checkpoint_every_rounds=10))


class PowerCutError(Exception):
    pass


def cut_at(round_: int) -> Callable[[int], None]:
    def on_round(now: int) -> None:
        if now == round_:
            raise PowerCutError

    return on_round


def cut(
    scenario: Scenario, out: Path, scheme: Any = "mads", *, at: int = 35, execution: wayfare.Execution = EVERY_TEN
) -> Path:
    """A run that ends without warning after a round; its folder."""
    with pytest.raises(PowerCutError):
        wayfare.run(scenario, scheme, seed=1, out=out, execution=execution, on_round=cut_at(at))
    (partial,) = out.rglob("*.partial")
    return partial.with_name(partial.name.removesuffix(".partial"))


def assert_same(found: RunRecord, expected: RunRecord) -> None:
    assert torch.equal(found.model, expected.model)
    for table in ("contacts", "evaluations", "others"):
        one, other = getattr(found, table), getattr(expected, table)
        assert list(one) == list(other)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert found.scenario == expected.scenario
    assert np.array_equal(found.budgets_joules, expected.budgets_joules)
