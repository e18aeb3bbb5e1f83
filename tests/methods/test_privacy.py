"""Differential privacy: the mechanism delivers the epsilon that it reports, and nothing passes it by."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from tests.device.by_hand import GAIN_PER_WATT, LINK, Decided, sending
from tests.methods.test_every_method import assert_same, assert_same_end, run

import wayfare
from wayfare.arrays import Floats
from wayfare.device import DeviceState, Meeting, Terms, Transmission, begin_device, contact, terms_of
from wayfare.errors import DivergenceError, ScenarioError, UnavailableError
from wayfare.methods import NOTHING, SKIPPED, Method, Upload, make_method
from wayfare.methods.privacy import Private, keyed_noise, secret_noise
from wayfare.streams import FLEET, Stream, generator
from wayfare.theory.ask import plan

SCENARIO = wayfare.load("fashion-small")
PLAIN_LINK = replace(LINK, statistics_bits=0.0, dense_bits=256.0)
MEETING = Meeting(round=7, contact_s=5.0, gain_per_watt=GAIN_PER_WATT, device=3)
WHOLE = sending(8, 256.0)


def hockey_stick(epsilon: float, mu: float) -> float:
    """delta(epsilon) of two normal distributions that are mu standard deviations apart (Balle and Wang 2018)."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("releases", [1, 7, 300])
@pytest.mark.parametrize("noise", [5.0, 20.0, 100.0])
def test_epsilon_is_that_of_one_gaussian_mechanism_for_all_releases(noise: float, releases: int) -> None:
    epsilon = Private(noise=noise, clip_norm=3.0).epsilon(releases)
    assert hockey_stick(epsilon, 2 * math.sqrt(releases) / noise) == pytest.approx(1e-5, rel=1e-6)


def test_epsilon_is_at_most_that_of_an_accountant_by_renyi_divergence() -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    for noise, releases in ((1.0, 1), (8.0, 40), (50.0, 1000)):
        renyi = RdpAccountant()
        renyi.compose(dp_accounting.GaussianDpEvent(noise / 2), releases)
        epsilon = Private(noise=noise, clip_norm=1.0).epsilon(releases)
        assert 0.85 * renyi.get_epsilon(1e-5) < epsilon <= renyi.get_epsilon(1e-5)


def test_two_releases_of_the_worst_neighbours_leak_what_epsilon_says() -> None:
    rule = Private(noise=4.0, clip_norm=0.5, delta=0.1)
    rng = generator(0, Stream.MONTE_CARLO, FLEET)

    def released(value: float) -> Floats:
        """Two contributions of a device whose whole data say: go as far as possible in one direction."""
        change = torch.tensor([value], dtype=torch.float32)
        draws = [float(rule.contribution(change, 0, rng.standard_normal)) for _ in range(2 * 3000)]
        return np.array(draws).reshape(-1, 2).sum(axis=1)

    # A change of any size counts as one of the clip norm.
    one, other = released(40.0), released(-0.5)
    epsilon, sigma = rule.epsilon(2), rule.noise * rule.clip_norm
    # log p/q = 2 C (sum of both releases) / sigma^2; the best test compares it with epsilon.
    bound = epsilon * sigma**2 / (2 * rule.clip_norm)
    leaked = np.mean(one > bound) - math.exp(epsilon) * np.mean(other > bound)
    assert leaked == pytest.approx(rule.delta, abs=0.04)


def test_a_change_within_the_norm_passes_and_a_larger_one_keeps_its_direction() -> None:
    rule, quiet = Private(noise=1.0, clip_norm=1.0), lambda entries: np.zeros(entries)
    small, large = torch.tensor([0.6, 0.0, -0.8]), torch.tensor([1e30, 0.0, 0.0])
    assert torch.equal(rule.contribution(small, 0, quiet), small)
    assert rule.contribution(large, 0, quiet).tolist() == [1.0, 0.0, 0.0]
    assert rule.contribution(torch.zeros(3), 0, quiet).tolist() == [0.0, 0.0, 0.0]


def private_method(recipe: Any, **changes: Any) -> Method:
    values = {"noise": 0.5, "clip_norm": 0.2} | changes
    return replace(make_method(recipe, SCENARIO), privacy=Private(**values))


def device(method: Method) -> DeviceState:
    model = torch.zeros(8)  # so that changes are exact
    return replace(begin_device(model, torch.zeros(8), 100.0, method), received_round=2)


def meet(method: Method, state: DeviceState, change: torch.Tensor, **terms: Any) -> Transmission:
    options = {"noise": keyed_noise(0)} | terms
    return contact(
        state, state.received - change, MEETING, Terms(method=method, link=PLAIN_LINK, rounds=100, **options)
    )


@pytest.mark.parametrize(
    "name", ["mads", "mads-rd", "afl-spar", "afl", "dgc", "ef21-sgdm", "threshold", "qsgd", "feddyn", "fedbuff"]
)
def test_everything_after_the_noise_depends_on_the_noised_change_alone(name: str) -> None:
    # Two devices of different data whose clipped changes are equal: nobody may see a difference.
    direction = torch.tensor([2.0, -1.0, 0.0, 4.0, 0.5, -8.0, 1.0, 0.25])
    method = private_method(name)
    found = [meet(method, device(method), scale * direction) for scale in (1.0, 4.0)]
    one, other = found
    assert one.sent is not None
    assert other.sent is not None
    assert torch.equal(one.sent.indices, other.sent.indices)
    assert torch.equal(one.sent.values, other.sent.values)
    assert one.upload == other.upload
    assert one.offer.encounter == other.offer.encounter
    for each in ("memory", "memory_state", "spent_joules", "backlog_joules", "experience", "releases"):
        assert_same(getattr(one.state, each), getattr(other.state, each))


@pytest.mark.parametrize(
    ("upload", "uses_update", "counts"),
    [
        (WHOLE, False, True),
        (NOTHING, False, True),  # the contribution is in the memory now and may be sent at any time
        (replace(WHOLE, entries=0, bits=0.0, completes=False), False, True),  # cut off, but on the air
        (SKIPPED, False, False),
        (SKIPPED, True, True),  # silence may tell something about the update
    ],
)
def test_a_contact_costs_privacy_if_anything_left_the_device_or_is_bound_to(
    upload: Upload, uses_update: bool, counts: bool
) -> None:
    class Rule(Decided):
        pass

    Rule.uses_update = uses_update
    method = private_method(Rule(upload))
    state = meet(method, device(method), torch.ones(8)).state
    assert (state.releases, state.contacts) == (int(counts), 1)
    assert torch.equal(state.memory, torch.zeros(8)) == (upload in (SKIPPED, WHOLE) or not upload.completes)


def test_an_upload_that_the_contact_cuts_off_costs_privacy() -> None:
    method = private_method(Decided(WHOLE))
    state, terms = device(method), Terms(method=method, link=PLAIN_LINK, rounds=100)
    lost = contact(state, state.received - 1.0, MEETING, terms, lasts_s=0.01)
    assert lost.sent is None
    assert lost.state.releases == 1


def test_a_method_without_privacy_counts_nothing() -> None:
    method = make_method(Decided(WHOLE), SCENARIO)
    done = meet(method, device(method), torch.ones(8))
    assert done.state.releases == 0
    assert done.offer.added is None


def test_a_device_that_spent_its_budget_sends_the_rest_of_its_memory_and_nothing_new() -> None:
    budget = Private(noise=20.0, clip_norm=1.0).epsilon(3)
    rule = Private(noise=20.0, clip_norm=1.0, max_epsilon=budget)
    assert rule.max_releases() == 3
    assert Private(noise=20.0, clip_norm=1.0, max_epsilon=0.999 * budget).max_releases() == 2
    method = private_method(Decided(sending(2, 70.0)), noise=20.0, clip_norm=1.0, max_epsilon=budget)
    state = device(method)
    for _ in range(3):
        state = meet(method, state, torch.ones(8)).state
    last = meet(method, state, torch.ones(8))
    assert (state.releases, last.state.releases) == (3, 3)
    assert torch.equal(last.offer.update, state.memory)
    assert last.sent is not None
    assert len(last.sent) == 2


def test_noise_of_the_simulator_comes_by_seed_device_and_round_and_noise_of_devices_from_nowhere() -> None:
    draw = keyed_noise(3)
    assert np.array_equal(draw(4, 5, 6), generator(3, Stream.PRIVACY_NOISE, 4, 5).standard_normal(6))
    different = [draw(4, 5, 6), draw(4, 6, 6), draw(5, 5, 6), keyed_noise(4)(4, 5, 6)]
    different += [secret_noise(4, 5, 6), secret_noise(4, 5, 6)]
    assert len({tuple(one) for one in different}) == len(different)
    # Without a choice noise is secret: a program that forgets to choose cannot repeat, but it protects.
    method = private_method("afl")
    for terms in (terms_of(SCENARIO, method, PLAIN_LINK, seed=3), Terms(method=method, link=PLAIN_LINK, rounds=9)):
        assert terms.noise is secret_noise


NAMES = ["mads", "mads-rd", "afl:fitting", "dgc", "qsgd", "feddyn", "fedbuff", "mads + forgetting"]


@cache
def undisturbed(name: str) -> Any:
    return run(f"{name} + private(noise=0.05, clip_norm=0.1)")


@pytest.mark.parametrize("name", NAMES)
def test_a_private_run_repeats_resumes_and_balances_to_the_bit(name: str) -> None:
    whole, recipe = undisturbed(name), f"{name} + private(noise=0.05, clip_norm=0.1)"
    again = run(recipe, paranoid=True)
    assert again.records.tables == whole.records.tables
    assert_same_end(again.outcome, whole.outcome)
    assert whole.records.saved is not None
    assert_same_end(run(recipe, resume=whole.records.saved).outcome, whole.outcome)
    table = {
        name: np.array(whole.records.column("contacts", name)) for name in ("device", "energy_joules", "completed")
    }
    counted = (table["completed"] > 0) | (table["energy_joules"] > 0)
    releases = [state.releases for state in whole.outcome.states]
    assert releases == np.bincount(table["device"][counted].astype(int), minlength=6).tolist()
    # Methods that send all or nothing skip contacts without energy; the others use every contact.
    assert (sum(releases) < len(counted)) == (name in ("afl:fitting", "feddyn", "fedbuff"))


def test_noise_changes_the_model_and_nothing_of_the_world() -> None:
    plain, private = run("mads"), undisturbed("mads")
    assert not torch.equal(plain.outcome.model, private.outcome.model)
    for column in ("round", "device", "contact_s", "gain_per_watt"):
        assert plain.records.column("contacts", column) == private.records.column("contacts", column)


@pytest.mark.parametrize(
    ("scheme", "changes", "why"),
    [
        ("fedasync + private(noise=1, clip_norm=1)", [], "its server takes whole models"),
        ("fedmobile + private(noise=1, clip_norm=1)", [], "relays carry updates without noise"),
        ("scaffold + private(noise=1, clip_norm=1)", [], "its server derives gradients from updates"),
        ("statistics + private(noise=1, clip_norm=1)", [], "its devices send class statistics"),
        ("mads + private(noise=1, clip_norm=1)", ["server.weighting=samples"], "how many samples a private device"),
        ("mads + private(noise=0, clip_norm=1)", [], "noise = 0: must be a number above 0"),
        ("mads + private(noise=1, clip_norm=-1)", [], "clip_norm = -1: must be a number above 0"),
        ("mads + private(noise=1, clip_norm=inf)", [], "clip_norm = inf: must be a number above 0"),
        ('mads + private(noise="a", clip_norm=1)', [], "noise = 'a': must be a number above 0"),
        ("mads + private(noise=1, clip_norm=1, delta=1)", [], "delta = 1: must be above 0 and below 1"),
        ("mads + private(noise=1, clip_norm=1, max_epsilon=0)", [], "max_epsilon = 0: must be a number above 0"),
        ("mads + private(clip_norm=1)", [], "noise"),
        ("mads + private", [], "noise"),
    ],
)
def test_what_cannot_be_private_is_rejected_by_name(scheme: str, changes: list[str], why: str) -> None:
    with pytest.raises(ScenarioError) as error:
        make_method(scheme, wayfare.load("fashion-small", changes))
    assert why in str(error.value)
    assert scheme.split(" + ")[0] in str(error.value)


def test_a_budget_below_one_upload_and_statistics_and_plans_are_rejected() -> None:
    poor = private_method("mads", noise=1.0, max_epsilon=0.5)
    with pytest.raises(ScenarioError, match=r"max_epsilon = 0.5: must be at least 9.997, the epsilon of one upload"):
        terms_of(SCENARIO, poor, PLAIN_LINK)
    with pytest.raises(ScenarioError, match="needs a network without normalisation statistics"):
        terms_of(SCENARIO, private_method("mads"), LINK)
    with pytest.raises(ScenarioError, match=r"plan it without private"):
        plan("fashion-small", parameters=100, scheme="mads + private(noise=1, clip_norm=1)", overrides=["rounds=9"])


def test_a_diverged_device_stops_before_it_releases_anything() -> None:
    method = private_method("mads")
    with pytest.raises(DivergenceError, match="NaN"):
        meet(method, device(method), torch.full((8,), math.nan))


def test_without_the_accountant_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UnavailableError, match=r"pip install 'wayfare\[privacy\]'"):
        terms_of(SCENARIO, private_method("mads"), PLAIN_LINK)
