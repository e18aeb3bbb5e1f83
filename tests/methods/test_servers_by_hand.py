"""Memories and server rules at numbers that can be computed by hand, and the limits and defaults of every part."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any

import pytest
import torch

from wayfare.errors import InvariantError, ScenarioError
from wayfare.methods import Arrival, ServerTerms
from wayfare.methods.memories import Decay, ErrorFeedback, Forgetting
from wayfare.methods.parts import LocalRule, PeerRule
from wayfare.methods.published.dgc import MomentumCorrection
from wayfare.methods.published.ef21_sgdm import Ef21, Estimates
from wayfare.methods.published.fadas import AdaptiveBuffer
from wayfare.methods.published.fedbuff import Buffer
from wayfare.methods.published.feddyn import DynamicRegulariser
from wayfare.methods.published.qsgd import Qsgd
from wayfare.methods.published.staleness_weighted import StalenessWeights
from wayfare.methods.published.threshold import Threshold
from wayfare.methods.servers import Add, Mix, Optimise, dense_update, mean_update, step_along
from wayfare.scenario.exchange import Mixing
from wayfare.scenario.server import Server
from wayfare.sparsify import Sparse

SENT = Sparse(torch.tensor([0, 2]), torch.tensor([6.0, -3.0]))


def test_memories_keep_all_nothing_or_less() -> None:
    memory, change = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])
    for rule, offered in (
        (ErrorFeedback(), [11, 22, 33]),
        (Forgetting(), [10, 20, 30]),
        (Decay(0.5), [10.5, 21, 31.5]),
    ):
        assert rule.offer(memory, change, {})[0].tolist() == offered
    update = torch.tensor([6.0, 5.0, -3.0])
    assert ErrorFeedback().keep(update, SENT, {})[0].tolist() == [0.0, 5.0, 0.0]
    assert Forgetting().keep(update, SENT, {})[0].tolist() == [0.0, 0.0, 0.0]
    assert ErrorFeedback().take_back(memory, SENT, {})[0].tolist() == [7.0, 2.0, 0.0]
    assert Forgetting().take_back(memory, SENT, {})[0] is memory
    assert (ErrorFeedback.conserves, Forgetting.conserves, Decay.conserves, Decay().share) == (True, False, False, 0.9)


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        (Decay, {"share": (-0.01, 1.01), "taken": (0.0, 1.0)}),
        (MomentumCorrection, {"momentum": (-0.01, 1.0), "taken": (0.0, 0.99)}),
        (Ef21, {"momentum": (0.0, 1.01), "taken": (0.01, 1.0)}),
        (Threshold, {"size": (0.0, -1.0), "taken": (0.01, 5.0)}),
        (Qsgd, {"levels": (0, 1.5), "taken": (1, 255)}),
        (Qsgd, {"bucket": (0, 2.0), "taken": (1, 512)}),
        (Buffer, {"size": (0, 2.5), "taken": (1, 50)}),
        (Buffer, {"step": (0.0, -1.0), "taken": (0.01, 2.0)}),
        (StalenessWeights, {"exponent": (-0.01, math.inf), "taken": (0.0, 3.0)}),
        (AdaptiveBuffer, {"momentum": (-0.01, 1.0), "taken": (0.0, 0.99)}),
        (AdaptiveBuffer, {"second_moment": (-0.01, 1.0), "taken": (0.0, 0.999)}),
        (AdaptiveBuffer, {"epsilon": (0.0, -1.0), "taken": (1e-9, 1.0)}),
    ],
)
def test_values_on_a_limit_are_taken_and_those_beyond_refused(
    made: type, refused: dict[str, tuple[float, ...]]
) -> None:
    (name,) = (key for key in refused if key != "taken")
    for value in refused["taken"]:
        assert getattr(made(**{name: value}), name) == value
    for value in refused[name]:
        with pytest.raises(ScenarioError):
            made(**{name: value})


@pytest.mark.parametrize(
    ("part", "values"),
    [
        (StalenessWeights(), (0.5,)),
        (Buffer(), (5, 1.0)),
        (AdaptiveBuffer(), (5, 0.01, 0.9, 0.99, 1e-8, 10)),
        (Qsgd(), (7, 512)),
        (Threshold(), (2.0,)),
        (MomentumCorrection(), (0.5,)),
        (Ef21(), (0.5,)),
        (Estimates(), (1.0,)),
        (Decay(), (0.9,)),
        (DynamicRegulariser(), (True, 0.0, None, 0.0, 0.0, 1, 0.1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_by_default(part: Any, values: tuple[object, ...]) -> None:
    assert astuple(part) == values


TERMS = ServerTerms(devices=4, statistics=1)
ARRIVALS = [
    Arrival(device=0, sent=SENT, staleness_rounds=3),
    Arrival(device=2, sent=Sparse(torch.tensor([1, 2]), torch.tensor([8.0, 1.0])), staleness_rounds=8),
]
MODEL = torch.tensor([1.0, 1.0, 1.0])


def test_updates_are_added_by_their_share_of_the_fleet() -> None:
    assert mean_update(MODEL, ARRIVALS, TERMS).tolist() == [1.5, 2.0, -0.5]
    assert dense_update(MODEL, ARRIVALS[0]).tolist() == [6.0, 0.0, -3.0]
    assert Add().apply(MODEL, {}, ARRIVALS, TERMS)[0].tolist() == [-0.5, -1.0, 1.5]
    # Statistics, the last entry here, move by the update itself.
    assert step_along(MODEL, torch.tensor([1.0, 2.0, 4.0]), 0.5, TERMS).tolist() == [0.5, 0.0, -3.0]
    assert (Add.takes_pieces, Optimise.takes_pieces) == (True, False)
    assert (TERMS.devices, ServerTerms(devices=1).statistics, ARRIVALS[0].round, ARRIVALS[0].reach) == (4, 0, 1, 0.0)
    assert (Arrival(device=0, sent=SENT).staleness_rounds, Arrival(device=0, sent=SENT).samples) == (1, None)


def test_optimisers_of_the_server_step_by_step() -> None:
    update = torch.tensor([1.5, 2.0, -0.5])
    sgd = Optimise(Server(optimizer="sgd", step=0.5))
    assert sgd.init(MODEL, TERMS) == {}
    torch.testing.assert_close(sgd.apply(MODEL, {}, ARRIVALS, TERMS)[0], torch.tensor([0.25, 0.0, 1.5]))
    momentum = Optimise(Server(optimizer="momentum", momentum=0.5, step=0.1))
    state = momentum.init(MODEL, TERMS)
    assert state["mean"].tolist() == [0.0, 0.0]
    model, state = momentum.apply(MODEL, state, ARRIVALS, TERMS)
    model, state = momentum.apply(model, state, ARRIVALS, TERMS)
    assert state["mean"].tolist() == [1.5 * 1.5, 2.0 * 1.5]
    torch.testing.assert_close(model, torch.tensor([1 - 0.1 * 1.5 * 2.5, 1 - 0.1 * 2.0 * 2.5, 2.0]))
    adam = Optimise(Server(optimizer="adam", momentum=0.5, second_moment=0.75, epsilon=0.1, step=0.2))
    state = adam.init(MODEL, TERMS)
    assert state["square"].tolist() == pytest.approx([0.01, 0.01])
    model, state = adam.apply(MODEL, state, ARRIVALS, TERMS)
    mean, square = 0.5 * update[:2], 0.75 * 0.01 + 0.25 * update[:2] ** 2
    torch.testing.assert_close(model[:2], 1 - 0.2 * mean / (square.sqrt() + 0.1))
    assert model[2] == 1.5


@pytest.mark.parametrize(
    ("staleness", "rounds", "weight"),
    [
        ("constant", 9, 0.6),
        ("polynomial", 8, 0.6 / 3),
        ("hinge", 4, 0.6),
        ("hinge", 5, 0.6 / 11),
        ("hinge", 7, 0.6 / 31),
    ],
)
def test_the_weight_of_a_model_falls_with_its_age(staleness: str, rounds: int, weight: float) -> None:
    mixing = Mixing(weight=0.6, polynomial_exponent=0.5, hinge_rounds=4, hinge_slope=10.0)
    rule = Mix(staleness, mixing)  # type: ignore[arg-type]
    assert rule.weight(rounds) == pytest.approx(weight)
    whole = Arrival(device=0, sent=Sparse(torch.arange(3), torch.tensor([2.0, 3.0, 4.0])), staleness_rounds=rounds)
    mixed = rule.apply(MODEL, {}, [whole, whole], TERMS)[0]
    once = 1 + weight * torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(mixed, once + weight * (torch.tensor([2.0, 3.0, 4.0]) - once))


@pytest.mark.parametrize(("weight", "holds"), [(0.0, True), (1.0, True), (1.01, False), (-0.01, False)])
def test_a_weight_beyond_0_and_1_ends_a_run(weight: float, holds: bool) -> None:
    class Weighted(Mix):
        def weight(self, staleness_rounds: int) -> float:
            return weight

    whole = Arrival(device=7, sent=Sparse(torch.arange(3), torch.ones(3)))
    if holds:
        Weighted().apply(MODEL, {}, [whole], TERMS)
        return
    with pytest.raises(InvariantError, match="of device 7, must be 0 to 1"):
        Weighted().apply(MODEL, {}, [whole], TERMS)


def test_devices_take_the_soonest_relay_and_the_newest_model() -> None:
    rule = PeerRule()
    assert rule.relay([(4, 9), (2, 3)]) == (4, 9)
    assert rule.giver([(4, 9), (2, 11), (1, 11)]) == 1


def test_a_local_rule_by_default_is_a_step_of_sgd_a_round() -> None:
    assert LocalRule() == LocalRule(
        trains_between_contacts=True, prox=0.0, clip_norm=None, weight_decay=0.0, momentum=0.0, steps_per_round=1
    )
    assert LocalRule(prox=0.3).pull() == 0.3
    assert LocalRule().init(MODEL) == {}
    assert LocalRule().correction({}) is None
