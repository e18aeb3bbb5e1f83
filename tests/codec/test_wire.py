"""Messages survive a round trip and have the billed length; other bytes are rejected."""

from __future__ import annotations

import contextlib
import math
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.codec.errors import WireError
from wayfare.codec.header import HEADER_BYTES
from wayfare.codec.indices import IndexKind, decode_indices, encode_indices, symbol_count
from wayfare.codec.steps import VALUE_BITS, ValueBits
from wayfare.codec.values import encode_values
from wayfare.codec.wire import Layout, decode, encode, encode_exactly
from wayfare.sparsify import Sparse, remainder, top_k, with_tail

LAYOUT = Layout.of("test", [(40, 20), (200,)], statistics=6)
BITS: list[ValueBits] = [32, 16, 8, 4, 2, 1]


def vector(seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy((scale * rng.standard_t(4, LAYOUT.parameters + LAYOUT.statistics)).astype(np.float32))


def upload(k: int, seed: int = 0) -> Sparse:
    whole = vector(seed)
    return with_tail(top_k(whole[: LAYOUT.parameters], k), whole, LAYOUT.parameters)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("k", [1, 2, 37, 500, 999, 1000])
def test_what_is_decoded_is_what_the_sender_knows_was_delivered(k: int, bits: ValueBits) -> None:
    kept = upload(k)
    message = encode(kept, LAYOUT, bits)
    found = decode(message.data, LAYOUT)
    assert message.bits == 8 * len(message.data)
    assert torch.equal(found.indices, kept.indices)
    assert torch.equal(found.values, message.delivered.values)
    # Statistics go as they are, and at 32 bits everything does.
    assert torch.equal(found.values[k:], kept.values[k:])
    if bits == 32:
        assert torch.equal(found.values, kept.values)


def test_an_empty_message_is_its_header() -> None:
    message = encode(Sparse(torch.zeros(0, dtype=torch.int64), torch.zeros(0)), LAYOUT, 8)
    assert len(message.data) == HEADER_BYTES
    assert len(decode(message.data, LAYOUT)) == 0


@pytest.mark.parametrize("bits", BITS)
def test_error_feedback_keeps_what_quantisation_loses(bits: ValueBits) -> None:
    whole = vector()
    kept = with_tail(top_k(whole[: LAYOUT.parameters], 100), whole, LAYOUT.parameters)
    delivered = encode(kept, LAYOUT, bits).delivered
    memory = remainder(whole, delivered)
    restored = memory.index_add(0, delivered.indices, delivered.values)
    torch.testing.assert_close(restored, whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bits", [16, 8, 4, 2])
def test_a_value_is_off_by_no_more_than_half_a_step(bits: ValueBits) -> None:
    values = np.random.default_rng(1).uniform(1, 8, 5000).astype(np.float32) * np.float32(1e-3)
    values[::2] *= -1
    _, received = encode_values(values, bits)
    # Three octaves in 2^(bits - 1) steps; within an octave a step is largest against its lower end.
    assert float(np.max(np.abs(received / values - 1))) <= 1.01 * 3 / 2**bits
    assert bool(np.all(np.sign(received) == np.sign(values)))


def test_more_bits_lose_less() -> None:
    whole = np.random.default_rng(2).standard_t(3, 16_000).astype(np.float32)
    # As top-k leaves them; the many that are nearly 0 would not be sent.
    values = top_k(torch.from_numpy(whole), 4000).values.numpy()
    losses = [float(np.square(encode_values(values, bits)[1] - values).sum()) for bits in BITS]
    assert losses == sorted(losses)
    assert losses[-1] < float(np.square(values).sum())


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.25, 0.5, 0.9])
def test_indices_cost_their_entropy(share: float) -> None:
    entries = 200_000
    rng = np.random.default_rng(3)
    indices = np.sort(rng.choice(entries, int(share * entries), replace=False))
    _, data = encode_indices(indices, entries)
    ideal = entries * (-share * math.log2(share) - (1 - share) * math.log2(1 - share))
    assert 8 * len(data) <= 1.02 * ideal + 8 * 300


@pytest.mark.parametrize(
    ("indices", "kind"),
    [
        (np.arange(1000), IndexKind.ALL),
        (np.array([3, 500]), IndexKind.GAPS),
        (np.sort(np.random.default_rng(0).choice(1000, 400, replace=False)), IndexKind.BITMAP),
    ],
)
def test_the_shortest_way_is_taken(indices: np.ndarray, kind: IndexKind) -> None:
    found, data = encode_indices(indices, 1000)
    assert found == kind
    assert np.array_equal(decode_indices(found, data, len(indices), symbol_count(indices), 1000), indices)


@given(st.sets(st.integers(0, 5000), max_size=400), st.integers(0, 2000))
def test_any_indices_come_back(chosen: set[int], more: int) -> None:
    indices, entries = np.array(sorted(chosen), np.int64), 5001 + more
    kind, data = encode_indices(indices, entries)
    assert np.array_equal(decode_indices(kind, data, len(indices), symbol_count(indices), entries), indices)


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(floats, max_size=60), st.sampled_from(VALUE_BITS))
def test_any_finite_values_come_back_finite_and_no_larger(numbers: list[float], bits: ValueBits) -> None:
    values = np.array(numbers, np.float32)
    layout = Layout.of("any", [(max(len(values), 1),)])
    kept = Sparse(torch.arange(len(values)), torch.from_numpy(values))
    message = encode(kept, layout, bits)
    found = decode(message.data, layout).values.numpy()
    assert np.array_equal(found, message.delivered.values.numpy())
    assert bool(np.all(np.isfinite(found)))
    if len(values):
        assert float(np.abs(found).max()) <= float(np.abs(values).max())


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("statistics", [False, True])
def test_entries_of_a_mask_come_back_exactly_and_hardly_longer(share: float, statistics: bool) -> None:
    model = vector().numpy()
    mask = np.random.default_rng(1).random(len(model)) < share
    mask[LAYOUT.parameters :] = statistics
    data = b"".join(encode_exactly(model, mask, LAYOUT))
    found = decode(data, LAYOUT)
    assert found.indices.tolist() == np.flatnonzero(mask).tolist()
    assert found.values.numpy().tobytes() == model[mask].tobytes()
    shortest = encode(Sparse(found.indices, found.values), LAYOUT).data
    assert len(data) <= 1.02 * len(shortest)


def test_a_mask_with_some_statistics_is_rejected() -> None:
    mask = np.zeros(LAYOUT.parameters + LAYOUT.statistics, np.bool_)
    mask[-1] = True
    with pytest.raises(WireError, match="1 statistics: a message carries all 6 or none"):
        encode_exactly(vector().numpy(), mask, LAYOUT)


def test_values_that_are_none_are_not_sent() -> None:
    with pytest.raises(WireError, match="NaN or infinity"):
        encode(Sparse(torch.arange(2), torch.tensor([1.0, math.nan])), LAYOUT, 8)


def test_a_message_is_for_its_model() -> None:
    data = encode(upload(10), LAYOUT).data
    for other in (
        Layout.of("other", [(40, 20), (200,)], statistics=6),
        Layout.of("test", [(1000,)], statistics=6),
        Layout(LAYOUT.model_id, 999, 6),
        Layout(LAYOUT.model_id, 1000, 5),
    ):
        with pytest.raises(WireError, match="another model"):
            decode(data, other)


def signed(data: bytes) -> bytes:
    """With the checksum an attacker would write."""
    at = HEADER_BYTES - 4
    return data[:at] + struct.pack("<I", zlib.crc32(data[HEADER_BYTES:], zlib.crc32(data[:at]))) + data[HEADER_BYTES:]


@pytest.mark.parametrize("bits", BITS)
def test_damage_is_noticed(bits: ValueBits) -> None:
    data = encode(upload(50), LAYOUT, bits).data
    for cut in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(data) - 1):
        with pytest.raises(WireError):
            decode(data[:cut], LAYOUT)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(WireError):
            decode(bytes(damaged), LAYOUT)


@settings(max_examples=400)
@given(st.data(), st.sampled_from(BITS), st.integers(0, 1000))
def test_malformed_messages_are_refused_or_sound(data: st.DataObject, bits: ValueBits, k: int) -> None:
    message = bytearray(encode(upload(k), LAYOUT, bits).data)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(message) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                message[place] = data.draw(st.integers(0, 255))
            case "cut":
                del message[place : place + data.draw(st.integers(1, 8))]
            case "insert":
                message[place:place] = data.draw(st.binary(max_size=8))
        if len(message) < HEADER_BYTES:
            break
    forged = signed(bytes(message)) if len(message) >= HEADER_BYTES else bytes(message)
    try:
        found = decode(forged, LAYOUT)
    except WireError:
        return
    assert bool(found.values.isfinite().all())
    assert bool((found.indices.diff() > 0).all())
    assert len(found) <= LAYOUT.parameters + LAYOUT.statistics
    assert (
        len(found) == 0 or 0 <= int(found.indices[0]) <= int(found.indices[-1]) < LAYOUT.parameters + LAYOUT.statistics
    )


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(WireError):
        decode(noise, LAYOUT)
    header = encode(upload(5), LAYOUT, 4).data[: HEADER_BYTES - 4]
    with contextlib.suppress(WireError):
        decode(signed(header + bytes(4) + noise), LAYOUT)
