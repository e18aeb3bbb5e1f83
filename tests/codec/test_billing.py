"""No message is longer than what was billed for it, so none outlasts the contact that it was planned for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.test_simulator import Notes

from wayfare import device as devices
from wayfare.codec import entropy
from wayfare.codec.entropy import coded_bytes, encode_symbols
from wayfare.codec.fitting import piece_entries
from wayfare.codec.pieces import Piece, split
from wayfare.codec.steps import VALUE_BITS, ValueBits
from wayfare.codec.values import value_width
from wayfare.codec.wire import Layout, encode
from wayfare.device import DeviceState, Meeting, Offer, Terms, Transmission
from wayfare.methods import Method, Upload, make_method
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.simulator import Checks, Simulation
from wayfare.sparsify import Sparse, top_k, with_tail
from wayfare.world import draw_world

GAIN_PER_WATT, POWER_WATTS, STATISTICS = 1e4, 0.2, 6


def heavy_tailed(rng: np.random.Generator, entries: int) -> torch.Tensor:
    """Layers of different scale, with tails from nearly normal to barely finite."""
    scales = 10.0 ** rng.uniform(-3, 1, 8).repeat(-(-entries // 8))[:entries]
    return torch.from_numpy((scales * rng.standard_t(rng.uniform(1.5, 10), entries)).astype(np.float32))


def terms_on(link: Link) -> Terms:
    return Terms(method=make_method("mads-rd", Scenario()), link=link, rounds=1000)


def offered(update: torch.Tensor, link: Link, contact_s: float) -> Offer:
    nothing = torch.zeros(len(update))
    state = DeviceState(received=nothing, received_round=0, memory=nothing, budget_joules=20.0)
    meeting = Meeting(round=10, contact_s=contact_s, gain_per_watt=GAIN_PER_WATT)
    return devices.make_offer(state, update, meeting, terms_on(link), staleness_rounds=9)


def real_bits_of(decided: Upload, sending: Transmission, offer: Offer) -> int:
    """The length of what was sent, encoded."""
    parameters, update, sent = offer.parameters, offer.update, sending.sent
    assert sent is not None
    layout = Layout.of("test", [(parameters,)], len(update) - parameters)
    pieces = [Piece(Sparse(sent.indices, update[sent.indices]), value_width(decided.value_bits))]
    if decided.max_entries is not None:
        kept = with_tail(top_k(update[:parameters], decided.max_entries), update, parameters)
        pieces = split(kept, parameters, pieces[0].value_bits, piece_entries(decided.entries, decided.bits))
    bits = 0
    for piece in pieces:
        arrived = torch.isin(piece.kept.indices, sent.indices)
        if bool(arrived.any()):
            part = Sparse(piece.kept.indices[arrived], piece.kept.values[arrived])
            bits += encode(part, layout, piece.value_bits).bits
    return bits


def cases() -> Iterator[tuple[int, float, float, ValueBits, bool]]:
    """Parameters, bandwidth, contact time, width, and whether in pieces: from tens of bytes to megabytes."""
    rng = np.random.default_rng(0)
    for bandwidth_hz, value_bits, number in product(np.geomspace(150, 50e3, 9), VALUE_BITS, range(20)):
        yield int(10 ** rng.uniform(1.5, 4.3)), float(bandwidth_hz), rng.uniform(0.3, 3), value_bits, number % 4 == 0
    large: list[tuple[float, ValueBits]] = [(1e6, 32), (1e6, 8), (2e5, 4), (1e5, 2)]
    for (bandwidth_hz, value_bits), in_pieces in product(large, (False, True)):
        yield 400_000, bandwidth_hz, 1.0, value_bits, in_pieces


def test_no_upload_is_longer_than_billed_or_outlasts_its_contact() -> None:
    rng = np.random.default_rng(1)
    billed_bytes, real_bytes = [], []
    for parameters, bandwidth_hz, contact_s, value_bits, in_pieces in cases():
        link = Link(
            bandwidth_hz=bandwidth_hz,
            max_power_watts=POWER_WATTS,
            parameters=parameters,
            bits_per_entry=46.0,
            dense_bits=32.0 * parameters,
        )
        offer = offered(heavy_tailed(rng, parameters + STATISTICS), link, contact_s)
        room_bits = contact_s * link.rate_bps(POWER_WATTS, GAIN_PER_WATT)
        entries = min(max(int(room_bits / (value_bits + 6)), 1), parameters)
        decided = Upload(
            entries=entries,
            bits=room_bits,
            power_watts=POWER_WATTS,
            energy_joules=POWER_WATTS * contact_s,
            value_bits=value_bits,
            max_entries=min(2 * entries, parameters) if in_pieces else None,
        )
        sending = devices.transmit(offer, decided, terms_on(link))
        real_bits = real_bits_of(decided, sending, offer)
        assert real_bits <= sending.upload.bits <= room_bits
        assert not sending.cut
        if real_bits:
            billed_bytes.append(sending.upload.bits / 8)
            real_bytes.append(real_bits / 8)
    assert len(real_bytes) >= 1000
    assert min(real_bytes) < 100
    assert max(real_bytes) > 1e6
    # Measured: most to the byte, 97 % to a word, and all together to an 8,000th.
    over_bytes = np.array(billed_bytes) - np.array(real_bytes)
    assert np.median(over_bytes) == 0
    assert np.mean(over_bytes <= 4) > 0.95
    assert sum(over_bytes) < 5e-4 * sum(real_bytes)


class Weighed(Checks):
    """Encodes every upload of a run, and compares."""

    def transmitted(self, sending: Transmission, method: Method) -> None:
        super().transmitted(sending, method)
        if sending.upload.entries:
            decided, link = method.upload.decide(sending.offer.encounter, LINKS[0]), LINKS[0]
            encounter = sending.offer.encounter
            room_bits = encounter.contact_s * link.rate_bps(decided.power_watts, encounter.gain_per_watt)
            assert real_bits_of(decided, sending, sending.offer) <= sending.upload.bits <= room_bits
            assert not sending.cut


LINKS: list[Link] = []


@pytest.mark.parametrize("bandwidth_hz", [150.0, 1e3, 1e4])
@pytest.mark.parametrize("name", ["mads-rd", "mads-rd:progressive"])
def test_updates_of_a_run_are_not_longer_than_billed(name: str, bandwidth_hz: float, small: Scenario) -> None:
    radio = small.radio.model_copy(update={"bandwidth_hz": bandwidth_hz})
    control = small.control.model_copy(update={"weight": "auto"})
    scenario = small.model_copy(update={"radio": radio, "control": control})
    world = draw_world(scenario, 0)
    LINKS[:] = [world.link]
    Simulation(world, make_method(name, scenario), Notes(), checks=Weighed(paranoid=True)).run()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=200), st.integers(1, 40))
def test_no_order_of_symbols_takes_more_than_their_counts_say(symbols: list[int], repeats: int) -> None:
    told = np.tile(np.array(symbols, np.uint8), repeats)
    billed = coded_bytes(np.bincount(told))
    for order in (told, told[::-1], np.sort(told), np.sort(told)[::-1]):
        assert len(encode_symbols(np.ascontiguousarray(order))) <= billed


def test_lengths_are_counted_with_the_frequencies_that_the_decoder_reads() -> None:
    counts = np.unique(np.concatenate([np.arange(3000), *(2 ** np.arange(31) + off for off in (-1, 0, 1))]))
    np.testing.assert_array_equal(entropy._rounded(counts), entropy._weights(entropy._as_bytes(counts)))
    # Four significant bits, rounded down.
    share = 8 * np.maximum(counts, 1) / entropy._rounded(counts)
    assert share.min() == 1
    assert share.max() < 9 / 8
