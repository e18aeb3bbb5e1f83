"""Lemma 2: exact staleness against drawn contacts, and what the printed bound misses."""

from __future__ import annotations

import numpy as np
import pytest
from tests.theory.problems import ages, ages_at_contacts

from wayfare.streams import FLEET, Stream, generator
from wayfare.theory.bounds import lemma_2_staleness
from wayfare.theory.montecarlo import draw_contacts
from wayfare.theory.staleness import Counting, age_tail, staleness_moments

GRID = [(1.0, 200.0), (4.0, 100.0), (4.0, 1600.0), (16.0, 100.0), (30.0, 20.0), (5.0, 5.0), (50.0, 50.0), (2.0, 3.0)]
COUNTINGS: list[Counting] = ["overlap", "start"]


def drawn(contact_s: float, inter_contact_s: float, counting: Counting, rounds: int = 60_000) -> np.ndarray:
    rng = generator(5, Stream.MONTE_CARLO, FLEET)
    return draw_contacts(
        rng,
        contact_s=contact_s,
        inter_contact_s=inter_contact_s,
        round_s=10.0,
        rounds=rounds,
        devices=12,
        counting=counting,
    ).met


@pytest.mark.parametrize("counting", COUNTINGS)
@pytest.mark.parametrize(("contact_s", "inter_contact_s"), GRID)
def test_moments_of_staleness_are_exact(contact_s: float, inter_contact_s: float, counting: Counting) -> None:
    met = drawn(contact_s, inter_contact_s, counting)
    age = ages(met)[2000:].astype(np.float64)
    at_contact = ages_at_contacts(met).astype(np.float64)
    exact = staleness_moments(contact_s, inter_contact_s, 10.0, counting)
    # Four standard errors, which grow with the power of a heavy-tailed time.
    error = 4 / np.sqrt(len(at_contact))
    assert exact.contact_round_share == pytest.approx(met.mean(), rel=error)
    assert exact.age_mean == pytest.approx(age.mean(), rel=2 * error)
    assert exact.age_square == pytest.approx(np.square(age).mean(), rel=5 * error)
    assert exact.at_contact_mean == pytest.approx(at_contact.mean(), rel=error)
    assert exact.at_contact_square == pytest.approx(np.square(at_contact).mean(), rel=2.5 * error)
    for rounds in (0, 1, 3, 10):
        tail = float(age_tail(rounds, contact_s, inter_contact_s, 10.0, counting))
        assert tail == pytest.approx((age >= rounds).mean(), abs=0.01)


@pytest.mark.parametrize("counting", COUNTINGS)
def test_the_two_means_may_be_equal(counting: Counting) -> None:
    at, beside = (staleness_moments(contact_s, 50.0, 10.0, counting) for contact_s in (50.0, 50.001))
    assert at.age_square == pytest.approx(beside.age_square, rel=1e-3)
    assert at.contact_round_share == pytest.approx(beside.contact_round_share, rel=1e-3)


@pytest.mark.parametrize("counting", COUNTINGS)
@pytest.mark.parametrize(("contact_s", "inter_contact_s"), GRID)
def test_corrected_lemma_2_holds_in_all_rounds_and_in_contact_rounds(
    contact_s: float, inter_contact_s: float, counting: Counting
) -> None:
    met = drawn(contact_s, inter_contact_s, counting)
    # The bound is an equality for one of the two, so chance needs some room.
    bound = float(lemma_2_staleness(contact_s, inter_contact_s, 10.0, counting=counting)) * 1.05
    assert np.square(ages(met)[2000:].astype(np.float64)).mean() <= bound
    assert np.square(ages(met)[2000:-1].astype(np.float64) + 1).mean() <= bound
    assert np.square(ages_at_contacts(met).astype(np.float64)).mean() <= bound


def test_printed_lemma_2_is_the_moment_after_the_exchange_plus_a_rest() -> None:
    for contact_s, inter_contact_s in GRID:
        a, off = np.exp(-10.0 / inter_contact_s), inter_contact_s / (inter_contact_s + contact_s)
        after = staleness_moments(contact_s, inter_contact_s, 10.0).age_square
        printed = lemma_2_staleness(contact_s, inter_contact_s, 10.0, variant="printed")
        assert printed == pytest.approx(after + 1 - off * a * (1 - a), rel=1e-9)


def test_corrected_lemma_2_is_the_closed_form_for_the_papers_counting() -> None:
    for contact_s, inter_contact_s in GRID:
        a, off = np.exp(-10.0 / inter_contact_s), inter_contact_s / (inter_contact_s + contact_s)
        bound = lemma_2_staleness(contact_s, inter_contact_s, 10.0)
        assert bound == pytest.approx(1 + off * a * (3 - a) / (1 - a) ** 2, rel=1e-9)


def test_printed_lemma_2_is_exceeded_at_contacts_that_follow_each_other_quickly() -> None:
    at_contact = np.square(ages_at_contacts(drawn(1.0, 5.0, "overlap")).astype(np.float64)).mean()
    assert at_contact > 1.25 * lemma_2_staleness(1.0, 5.0, 10.0, variant="printed")
    assert at_contact <= lemma_2_staleness(1.0, 5.0, 10.0)


def test_remark_2_has_the_directions_of_staleness_reversed() -> None:
    """Printed: Theta increases with c and decreases with lambda. It is the other way round, in both variants."""
    means_s = np.geomspace(1, 1000, 60)
    for variant in ("printed", "corrected"):
        assert (np.diff(lemma_2_staleness(means_s, 100.0, 10.0, variant=variant)) < 0).all()  # type: ignore[arg-type]
        assert (np.diff(lemma_2_staleness(4.0, means_s, 10.0, variant=variant)) >= 0).all()  # type: ignore[arg-type]
