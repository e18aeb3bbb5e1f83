"""Defaults of questions to the theory, and the sizes of its samples."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.theory.test_measured_by_hand import Bowls, watched

from wayfare.scenario import DEFAULT_PRESET
from wayfare.theory import planner
from wayfare.theory.ask import plan
from wayfare.theory.assumptions import SERVER_POWERS_WATTS
from wayfare.theory.bounds import lemma_1_divergence, lemma_2_staleness, lemma_4_memory, theorem_2_gradient
from wayfare.theory.constants import measure_run
from wayfare.theory.montecarlo import draw_contacts
from wayfare.theory.norms import NormModel
from wayfare.theory.planner import forecast
from wayfare.theory.staleness import staleness_moments


def defaults(function: Callable[..., object]) -> dict[str, object]:
    given = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in given if each.default not in (inspect.Parameter.empty, None)}


def test_what_is_left_out_of_a_question() -> None:
    powers = {"server_power_watts": (0.2, 1.0, 5.0)}
    plain = {"source": DEFAULT_PRESET, "overrides": (), "scheme": "mads", "seed": 0}
    assert SERVER_POWERS_WATTS == (0.2, 1.0, 5.0)
    assert defaults(plan) == plain | powers
    assert defaults(forecast) == {"scheme": "mads"} | powers
    assert defaults(measure_run) == {"scheme": "mads", "seed": 0}
    assert defaults(draw_contacts) == {"counting": "start"}
    assert defaults(staleness_moments) == {"counting": "overlap"}
    assert defaults(lemma_2_staleness) == {"counting": "overlap", "variant": "corrected"}
    nothing = {"kept_fraction": 0.0, "update_sq": 0.0, "undelivered_sq": 0.0}
    assert defaults(lemma_1_divergence) == nothing | {"variant": "corrected"}
    assert defaults(lemma_4_memory) == {"sharp": False}
    assert defaults(theorem_2_gradient) == {"variant": "corrected"}
    assert NormModel(step_norm_sq=2.0) == NormModel(step_norm_sq=2.0, growth=0.5, log_spread=0.5, known=True)


def test_weights_and_devices_that_a_plan_looks_at() -> None:
    assert planner._REHEARSED == 10_000
    np.testing.assert_allclose(planner._WEIGHTS, np.geomspace(1e-9, 1e6, 61), rtol=1e-12)


def test_a_gradient_is_taken_of_512_samples_of_a_device() -> None:
    # Those beyond would move the mean by hundreds.
    watch, module = watched([2.0] * 512 + [1e6])
    with torch.no_grad():
        module.w.fill_(5.0)
    watch.look(Bowls(), module)
    assert watch.loss == pytest.approx([3 * 3.0**2])
    fewer, module = watched([2.0] * 511 + [514.0] + [1e6])
    with torch.no_grad():
        module.w.fill_(5.0)
    fewer.look(Bowls(), module)
    assert fewer.loss == pytest.approx([3 * 2.0**2])
