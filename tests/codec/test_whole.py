"""Whole numbers on the wire: exact, short where they are small, and nothing else is accepted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.codec.errors import WireError
from wayfare.codec.length import measure
from wayfare.codec.steps import WHOLE
from wayfare.codec.whole import MAX_WHOLE, decode_whole, encode_whole, whole_bytes
from wayfare.codec.wire import Layout, decode, encode
from wayfare.sparsify import Sparse

NUMBERS = st.lists(st.integers(1 - MAX_WHOLE, MAX_WHOLE - 1) | st.integers(-40, 40), min_size=1, max_size=50)


@given(NUMBERS)
@settings(max_examples=60, deadline=None)
def test_whole_numbers_arrive_as_they_are_and_cost_no_more_than_billed(numbers: list[int]) -> None:
    values = np.array(numbers, np.float32)
    data = encode_whole(values)
    assert decode_whole(data, len(values)).tolist() == values.tolist()
    assert len(data) <= whole_bytes(torch.from_numpy(values))


@pytest.mark.parametrize("deviation", [1.0, 5.0, 100.0, 1e5])
def test_normal_numbers_cost_little_more_than_their_entropy(deviation: float) -> None:
    values = np.round(np.random.default_rng(0).standard_normal(20_000) * deviation).astype(np.float32)
    bits = 8 * len(encode_whole(values)) / len(values)
    assert bits < 0.5 * math.log2(2 * math.pi * math.e * deviation**2) + 0.15


def test_a_message_of_whole_numbers_has_the_length_that_is_billed_at_most() -> None:
    layout = Layout(b"12345678", 1000)
    kept = Sparse(torch.arange(0, 999, 3), torch.arange(-166, 167).float())
    message = encode(kept, layout, WHOLE)
    received = decode(message.data, layout)
    assert torch.equal(received.values, kept.values)
    assert torch.equal(received.indices, kept.indices)
    measured = measure(kept, 1000, WHOLE)
    assert message.bits <= measured.bits <= message.bits + 256
    assert torch.equal(measured.delivered.values, kept.values)


@pytest.mark.parametrize("value", [0.5, float(MAX_WHOLE), -float(MAX_WHOLE)])
def test_other_numbers_are_refused(value: float) -> None:
    with pytest.raises(WireError, match="not whole numbers below"):
        encode_whole(np.array([value], np.float32))


def test_damaged_numbers_are_refused() -> None:
    data = encode_whole(np.array([3, -500, 70_000], np.float32))
    for damaged in (data[:3], data[:-1], data + b"\0", data[:-1] + b"\xff"):
        with pytest.raises(WireError):
            decode_whole(damaged, 3)
    assert len(decode_whole(encode_whole(np.zeros(0, np.float32)), 0)) == 0
    with pytest.raises(WireError, match="none are expected"):
        decode_whole(data, 0)
