"""Published methods with a device side of their own, each against its equations."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from statistics import NormalDist

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.simulator.golden_cases import BASE, Case
from tests.simulator.goldens import Records
from torch import Tensor

import wayfare
from wayfare.codec import make_link
from wayfare.device import Checks, Meeting
from wayfare.errors import ScenarioError
from wayfare.methods import Arrival, Encounter, Method, ServerTerms, Upload, make_method
from wayfare.methods.account import Account, meet, pay
from wayfare.methods.published.dgc import MomentumCorrection
from wayfare.methods.published.ef21_sgdm import Ef21, Estimates
from wayfare.methods.published.mobility_aware import MobilityAware
from wayfare.methods.published.qsgd import Qsgd
from wayfare.methods.published.random_k import RandomK
from wayfare.methods.published.threshold import Threshold
from wayfare.simulator import Simulation
from wayfare.sparsify import Sparse, top_k
from wayfare.streams import Stream, generator
from wayfare.world import World, draw_world

NAMES = ("ef21-sgdm", "dgc", "random-k", "threshold", "qsgd", "qsgd:fitting:paced", "mobility-aware")
SCENARIO = wayfare.load("fashion-small", list(BASE))
Vector = NDArray[np.float32]


def key(device: int = 0, round_: int = 1) -> partial[np.random.Generator]:
    return partial(generator, 7, Stream.COMPRESSION, device, round_)


def dense(sent: Sparse, entries: int) -> Vector:
    whole = np.zeros(entries, np.float32)
    whole[sent.indices.numpy()] = sent.values.numpy()
    return whole


def largest(vector: Vector, k: int) -> Vector:
    """The k largest entries among zeros, written out."""
    kept = np.zeros_like(vector)
    places = np.argsort(-np.abs(vector), kind="stable")[:k]
    kept[places] = vector[places]
    return kept


def heavy_tailed(entries: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_t(3, entries).astype(np.float32))


# EF21-SGDM.


def test_ef21_follows_its_recursion() -> None:
    rng, devices, entries, eta, step = np.random.default_rng(0), 3, 40, 0.3, 0.7
    rule, server, terms = Ef21(momentum=eta), Estimates(step=step), ServerTerms(devices=devices)
    model = torch.zeros(entries)
    memories, states = [torch.zeros(entries)] * devices, [rule.init(model)] * devices
    server_state = server.init(model, terms)
    v, h, w = np.zeros((devices, entries)), np.zeros((devices, entries)), np.zeros(entries)
    met = np.zeros(devices, np.int64)
    for _ in range(30):
        arrivals = []
        for device in np.flatnonzero(rng.random(devices) < 0.5).tolist():
            g, k = rng.standard_normal(entries).astype(np.float32), int(rng.integers(1, 12))
            v[device] = g if met[device] == 0 else (1 - eta) * v[device] + eta * g
            met[device] += 1
            update, state = rule.offer(memories[device], torch.from_numpy(g), states[device])
            np.testing.assert_allclose(update, v[device] - h[device], atol=1e-5)
            sent = top_k(update, k)
            h[device] += dense(sent, entries)
            memories[device], states[device] = rule.keep(update, sent, state)
            arrivals.append(Arrival(device=device, sent=sent))
        if arrivals:
            model, server_state = server.apply(model, server_state, arrivals, terms)
            w -= step * len(arrivals) / devices * h.mean(axis=0)
        np.testing.assert_allclose(model, w, atol=1e-5)
    assert np.linalg.norm(h - v) < np.linalg.norm(v)


def test_ef21_without_momentum_or_compression_steps_along_the_mean_of_all_devices_in_each_round() -> None:
    devices, entries = 4, 10
    rule, server, terms = Ef21(momentum=1.0), Estimates(), ServerTerms(devices=devices)
    model, first, later = torch.zeros(entries), *torch.randn(2, devices, entries)
    server_state, memory = server.init(model, terms), torch.zeros(entries)
    states = [rule.init(model)] * devices
    for change in (first, later):
        arrivals = []
        for device in range(devices):
            update, state = rule.offer(memory, change[device], states[device])
            sent = top_k(update, entries)
            left, states[device] = rule.keep(update, sent, state)
            assert not left.any()
            arrivals.append(Arrival(device=device, sent=sent))
        before, (model, server_state) = model, server.apply(model, server_state, arrivals, terms)
        torch.testing.assert_close(before - model, change.mean(0))


def test_ef21_takes_back_what_did_not_arrive() -> None:
    rule, change = Ef21(momentum=0.5), heavy_tailed(50)
    update, state = rule.offer(torch.zeros(50), change, rule.init(change))
    sent = top_k(update, 20)
    memory, state = rule.keep(update, sent, state)
    lost = Sparse(sent.indices[::2], sent.values[::2])
    memory, state = rule.take_back(memory, lost, state)
    arrived = dense(Sparse(sent.indices[1::2], sent.values[1::2]), 50)
    # The memory is v - h, and h is what the server has.
    np.testing.assert_array_equal(memory, change.numpy() - arrived)


@pytest.mark.parametrize("momentum", [0.0, 1.5])
def test_ef21_refuses_a_momentum_that_averages_nothing(momentum: float) -> None:
    with pytest.raises(ScenarioError, match="momentum"):
        Ef21(momentum=momentum)


def test_ef21_refuses_a_server_that_would_take_differences_for_updates() -> None:
    with pytest.raises(ScenarioError, match="estimates"):
        make_method("mads + ef21", SCENARIO)


# DGC.


def test_dgc_corrects_momentum_and_masks_it_where_entries_were_sent() -> None:
    rng, entries, m = np.random.default_rng(0), 30, 0.9
    rule = MomentumCorrection(momentum=m)
    memory, state = torch.zeros(entries), rule.init(torch.zeros(entries))
    u, v = np.zeros(entries, np.float32), np.zeros(entries, np.float32)
    for k in (3, 0, 7, 1, 30, 5):
        g = rng.standard_normal(entries).astype(np.float32)
        u = m * u + g
        v = v + u
        update, state = rule.offer(memory, torch.from_numpy(g), state)
        sent = top_k(update, k)
        np.testing.assert_allclose(dense(sent, entries), largest(v, k), atol=1e-5)
        mask = largest(v, k) != 0
        u[mask], v[mask] = 0.0, 0.0
        memory, state = rule.keep(update, sent, state)
        np.testing.assert_allclose(memory, v, atol=1e-5)
        np.testing.assert_allclose(state["u"], u, atol=1e-5)


def test_dgc_without_momentum_is_error_feedback() -> None:
    rule, change = MomentumCorrection(momentum=0.0), heavy_tailed(20)
    memory = torch.ones(20)
    update, _ = rule.offer(memory, change, {"u": torch.full((20,), 9.0)})
    assert torch.equal(update, memory + change)


# Random-k.


def test_random_k_draws_the_same_entries_for_the_same_device_and_round() -> None:
    vector = heavy_tailed(1000)
    first, again = (RandomK().select(vector, 50, key(3, 9)) for _ in range(2))
    assert torch.equal(first.indices, again.indices)
    assert torch.equal(first.values, vector[first.indices])
    for other in (key(3, 10), key(4, 9)):
        assert not torch.equal(first.indices, RandomK().select(vector, 50, other).indices)


def test_random_k_takes_every_entry_with_the_same_chance() -> None:
    vector, times, k = heavy_tailed(20), 4000, 5
    counts = np.zeros(20)
    for round_ in range(times):
        chosen = RandomK().select(vector, k, key(round_=round_)).indices
        assert len(chosen) == k
        assert bool((chosen.diff() > 0).all())
        counts[chosen.numpy()] += 1
    share = k / 20
    # Five standard deviations of a count.
    assert np.abs(counts - times * share).max() < 5 * math.sqrt(times * share * (1 - share))


@pytest.mark.parametrize("entries", [0, 20, 25])
def test_random_k_sends_nothing_or_all(entries: int) -> None:
    vector = heavy_tailed(20)
    assert torch.equal(RandomK().select(vector, entries, key()).values, vector[:entries])


# Threshold.


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("size", [0.5, 2.0])
def test_threshold_sends_what_reaches_a_multiple_of_the_root_mean_square(size: float, scale: float) -> None:
    vector = scale * heavy_tailed(500)
    entries = vector.double().numpy()
    wanted = np.flatnonzero(np.abs(entries) >= size * math.sqrt(np.mean(entries**2)))
    sent = Threshold(size=size).select(vector, 500, key())
    np.testing.assert_array_equal(sent.indices, wanted)
    assert torch.equal(sent.values, vector[sent.indices])


def test_threshold_sends_the_largest_where_not_all_fit_and_one_where_none_reaches_it() -> None:
    vector = heavy_tailed(500)
    np.testing.assert_array_equal(dense(Threshold(size=0.5).select(vector, 9, key()), 500), largest(vector.numpy(), 9))
    assert len(Threshold(size=3.0).select(torch.ones(500), 500, key())) == 1
    assert len(Threshold().select(vector, 0, key())) == 0


# QSGD.


def quantised(values: Vector, rule: Qsgd, chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """|bucket| sign(x) l / s, where l is s |x| / |bucket| rounded up with the chance of its fraction."""
    found = []
    for start in range(0, len(values), rule.bucket):
        bucket = values[start : start + rule.bucket].astype(np.float64)
        norm = float(np.float32(np.linalg.norm(bucket)))
        level = np.abs(bucket) / norm * rule.levels
        up = level - np.floor(level) + chance[start : start + len(bucket)] >= 1
        found.append(norm * np.sign(bucket) * (np.floor(level) + up) / rule.levels)
    return np.concatenate(found)


@pytest.mark.parametrize("bucket", [7, 64, 1000])
def test_qsgd_rounds_to_levels_of_the_norm(bucket: int) -> None:
    rule, vector = Qsgd(levels=5, bucket=bucket), heavy_tailed(300)
    sent = rule.select(vector, 300, key())
    chance = key()().random(300 + -300 % bucket)
    np.testing.assert_array_equal(sent.indices, np.arange(300))
    np.testing.assert_allclose(sent.values, quantised(vector.numpy(), rule, chance), rtol=1e-6)


def test_qsgd_is_unbiased_and_as_noisy_as_the_paper_allows() -> None:
    rule, vector, times = Qsgd(levels=4, bucket=50), heavy_tailed(50), 5000
    draws = np.stack([rule.select(vector, 50, key(round_=round_)).values.numpy() for round_ in range(times)])
    spread = draws.std(axis=0)
    assert (np.abs(draws.mean(axis=0) - vector.numpy()) <= 5 * spread / math.sqrt(times) + 1e-6).all()
    norm_sq = float(vector.square().sum())
    # Lemma 3.1: E|Q(x) - x|^2 <= min(n / s^2, sqrt n / s) |x|^2.
    assert (spread**2).sum() <= min(50 / 4**2, math.sqrt(50) / 4) * norm_sq


def test_qsgd_sends_the_largest_where_not_all_fit_and_zeros_as_zeros() -> None:
    vector = heavy_tailed(300)
    assert torch.equal(Qsgd().select(vector, 20, key()).indices, top_k(vector, 20).indices)
    assert not Qsgd().select(torch.zeros(300), 300, key()).values.any()
    assert len(Qsgd().select(vector, 0, key())) == 0


# Mobility-aware selection.


def contacts(rule: MobilityAware, budget_joules: float, rounds: int = 1000) -> list[tuple[Encounter, Upload]]:
    """A device that meets the server about every ten rounds, for as long and at such a rate as chance has it."""
    rng, link = np.random.default_rng(0), make_link(SCENARIO, 50_000)
    account, found = Account(budget_joules=budget_joules), []
    for round_ in range(3, rounds, 10):
        meeting = Meeting(
            round=round_, contact_s=float(rng.lognormal(1.5, 0.8)), gain_per_watt=float(10 ** rng.normal(4, 1))
        )
        account = replace(account, met_s=account.met_s + meeting.contact_s, contacts=account.contacts + 1)
        account, encounter = meet(
            account, meeting, rule, link, rounds=rounds, update_norm_sq=1.0, staleness_rounds=1, profile=None
        )
        upload = rule.decide(encounter, link)
        account = pay(account, encounter, upload.energy_joules)
        found.append((encounter, upload))
    return found


def test_mobility_aware_selection_uses_the_best_share_that_the_energy_pays_for() -> None:
    """The rule again, from the whole history of contacts."""
    link, met = make_link(SCENARIO, 50_000), []
    for encounter, upload in contacts(MobilityAware(), budget_joules=40.0):
        met.append((encounter.contact_s, link.rate_bps(link.max_power_watts, encounter.gain_per_watt)))
        length_s, rate_bps = np.array(met).T
        logs = np.log(length_s * rate_bps)
        mean = np.average(logs, weights=length_s)
        spread = math.sqrt(np.average((logs - mean) ** 2, weights=length_s))
        expected_s = length_s[-1] + length_s.sum() * (1000 - encounter.round) / encounter.round
        share = min(max(encounter.left_joules / (link.max_power_watts * expected_s), 0.0), 1.0)
        if 0 < share < 1:
            bound = mean + spread * NormalDist().inv_cdf(1 - share)
            assert upload.completes == (logs[-1] >= bound - 1e-9)
            assert upload.power_watts == (link.max_power_watts if upload.completes else 0.0)


def test_mobility_aware_selection_makes_a_budget_last_and_skips_the_worse_contacts() -> None:
    met = contacts(MobilityAware(), budget_joules=40.0)
    used = [encounter for encounter, upload in met if upload.entries > 0]
    skipped = [encounter for encounter, upload in met if not upload.completes]
    assert sum(upload.energy_joules for _, upload in met) <= 40.0 * (1 + 1e-9)
    assert used[-1].round > 900
    assert len(skipped) > 20

    def bits(encounter: Encounter) -> float:
        return encounter.contact_s * math.log2(1 + 0.2 * encounter.gain_per_watt)

    assert np.median([bits(one) for one in used]) > 1.5 * np.median([bits(one) for one in skipped])


def test_mobility_aware_selection_skips_nothing_where_energy_is_plentiful() -> None:
    assert all(upload.completes for _, upload in contacts(MobilityAware(), budget_joules=1e6))


# Whole runs.


@cache
def world_of_images() -> World:
    """A network with statistics of normalisation behind its parameters."""
    return Case("afl", "", "stacked", images=True).world()


def run(world: World, method: Method) -> tuple[Tensor, Records]:
    records = Records()
    return Simulation(world, method, records, checks=Checks(paranoid=True)).run().model, records


@pytest.mark.parametrize("name", NAMES)
def test_a_run_learns_and_repeats_to_the_bit(name: str) -> None:
    world = draw_world(SCENARIO, 0)
    model, records = run(world, make_method(name, SCENARIO))
    again, others = run(world, make_method(name, SCENARIO))
    assert torch.equal(model, again)
    assert records.tables == others.tables
    scores = records.column("evaluations", "score")
    assert scores[-1] > scores[0] + 0.05


@pytest.mark.parametrize("name", NAMES)
def test_a_network_with_statistics_of_normalisation_runs_too(name: str) -> None:
    world = world_of_images()
    model, _ = run(world, make_method(name, world.scenario))
    assert bool(model.isfinite().all())
    assert not torch.equal(model, world.initial_model)
