"""The server's senders and rounds, computed by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import wayfare
from wayfare.learning.schedule import Schedule
from wayfare.methods import Arrival, ServerTerms, make_method
from wayfare.methods.servers import Add
from wayfare.server import Senders, ServerState, aggregate, average, begin_server, senders_of, weights_of
from wayfare.sparsify import Sparse
from wayfare.world import draw_world

SENT = Sparse(torch.tensor([1]), torch.tensor([6.0]))


def test_an_upload_is_weighed_by_the_samples_of_its_device() -> None:
    arrival = Senders(samples=(3, 8), learning_rate=0.5).arrival(1, SENT, round_=7, staleness_rounds=4)
    assert arrival == Arrival(device=1, sent=SENT, staleness_rounds=4, round=7, samples=8, reach=0.5 * 4)


@pytest.mark.parametrize(
    ("changes", "rounds", "reach"),
    [
        ({}, 3, 0.2 * 3),
        ({"steps_per_round": 5}, 3, 0.2 * 5 * 3),
        ({"trains_between_contacts": False, "steps_per_round": 2}, 3, 0.2 * 2),
        # Rounds 5, 6 and 7 of 10 have 0.6, 0.5 and 0.4 of the rate.
        ({"schedule": Schedule("linear", 10)}, 3, 0.2 * 1.5),
        ({"schedule": Schedule("linear", 10), "trains_between_contacts": False}, 3, 0.2 * 0.4),
        # Whatever a device claims, there are no more rounds than ten.
        ({"schedule": Schedule("linear", 10)}, 10**9, 0.2 * sum(1 - (round_ - 1) / 10 for round_ in range(-2, 8))),
        ({"schedule": Schedule("constant", 10)}, 12, 0.2 * 12),
    ],
)
def test_the_reach_is_the_sum_of_learning_rates_behind_an_upload(
    changes: dict[str, object], rounds: int, reach: float
) -> None:
    senders = Senders(samples=(1,), learning_rate=0.2, **changes)  # type: ignore[arg-type]
    assert senders.arrival(0, SENT, round_=7, staleness_rounds=rounds).reach == pytest.approx(reach)


def test_a_round_without_uploads_changes_nothing_and_one_with_some_makes_a_new_model() -> None:
    rule, terms = Add(), ServerTerms(devices=3)
    state = begin_server(torch.zeros(2), rule, terms, averages=False)
    assert aggregate(state, rule, [], terms) is state
    after = aggregate(state, rule, [Arrival(device=0, sent=SENT)], terms)
    assert after.model.tolist() == [0.0, -2.0]
    assert state.model.tolist() == [0.0, 0.0]
    assert after.judged is after.model


def test_the_judged_model_is_the_mean_of_the_last_rounds() -> None:
    state = begin_server(torch.zeros(1), Add(), ServerTerms(devices=1), averages=True)
    assert state.judged.tolist() == [0.0]
    judged = []
    for round_, value in enumerate([6.0, 12.0, 3.0, 7.0], start=1):
        state = average(ServerState(model=torch.tensor([value]), averaged=state.averaged), round_, 3)
        judged.append(float(state.judged))
    # 6, the mean of 6 and 12, that of 6, 12 and 3, and from then on a third of the newest.
    assert judged == pytest.approx([6.0, 9.0, 7.0, 7.0])
    alone = ServerState(model=torch.ones(1))
    assert average(alone, 1, 3) is alone


def test_senders_are_those_of_the_world_and_the_method() -> None:
    scenario = wayfare.load("fashion-small", ["rounds=12", "fleet.devices=3", 'learning.schedule="cosine"'])
    world = draw_world(scenario, 0)
    senders = senders_of(world, make_method("mads", scenario))
    assert senders.samples == tuple(map(len, world.held))
    assert (senders.learning_rate, senders.schedule) == (scenario.learning.learning_rate, Schedule("cosine", 12))
    assert (senders.trains_between_contacts, senders.steps_per_round) == (True, 1)
    assert not senders_of(world, make_method("sfl-spar", scenario)).trains_between_contacts
    cosine = np.cos(np.pi * np.arange(3) / 12)
    reach = senders.arrival(0, SENT, round_=3, staleness_rounds=3).reach
    assert reach == pytest.approx(scenario.learning.learning_rate * ((1 + cosine) / 2).sum())


def test_by_default_every_round_is_a_step_at_the_whole_rate() -> None:
    senders = Senders(samples=(1,), learning_rate=1.0)
    assert (senders.schedule.is_constant, senders.trains_between_contacts, senders.steps_per_round) == (True, True, 1)


def test_weights_by_samples_have_a_mean_of_1_and_scale_what_was_sent() -> None:
    for weighting, weights in (("equal", None), ("samples", (3 * 2 / 10, 3 * 3 / 10, 3 * 5 / 10))):
        scenario = wayfare.load("fashion-small", [f"server.weighting={weighting}"])
        world = SimpleNamespace(scenario=scenario, held=[range(2), range(3), range(5)], link=SimpleNamespace(sums=0))
        found = weights_of(world)  # type: ignore[arg-type]
        assert found == (weights if weights is None else pytest.approx(weights))
    senders = Senders(samples=(2, 3, 5), learning_rate=1.0, weights=(0.5, 4.0, 2.5))
    sent = [senders.arrival(device, SENT, round_=1, staleness_rounds=1).sent for device in range(3)]
    assert [each.values.tolist() for each in sent] == [[3.0], [24.0], [15.0]]
    assert all(each.indices.tolist() == [1] for each in sent)
