"""A stream of pieces may be cut anywhere."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.codec.errors import WireError
from wayfare.codec.pieces import decode_pieces, encode_pieces, split
from wayfare.codec.steps import VALUE_BITS, ValueBits
from wayfare.codec.wire import Layout
from wayfare.sparsify import Sparse, remainder, top_k, with_tail

LAYOUT = Layout.of("test", [(2000,)], statistics=4)


def kept(k: int = 900, seed: int = 0) -> tuple[torch.Tensor, Sparse]:
    vector = torch.from_numpy(np.random.default_rng(seed).standard_t(3, 2004).astype(np.float32))
    return vector, with_tail(top_k(vector[:2000], k), vector, 2000)


def united(pieces: list[Sparse]) -> Sparse:
    indices = torch.cat([piece.indices for piece in pieces] or [torch.zeros(0, dtype=torch.int64)])
    values = torch.cat([piece.values for piece in pieces] or [torch.zeros(0)])
    indices, order = indices.sort()
    return Sparse(indices, values[order])


@pytest.mark.parametrize("bits", VALUE_BITS)
def test_all_pieces_together_are_the_upload(bits: ValueBits) -> None:
    _, upload = kept()
    pieces = split(upload, 2000, bits, 100)
    assert len(pieces) > 5
    assert torch.equal(united([piece.kept for piece in pieces]).indices, upload.indices)
    assert torch.equal(united([piece.kept for piece in pieces]).values, upload.values)
    # Statistics go with the first.
    assert bool((pieces[0].kept.indices >= 2000).sum() == 4)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_stream_cut_anywhere_delivers_a_prefix_that_the_sender_knows(bits: ValueBits) -> None:
    vector, upload = kept()
    messages = encode_pieces(split(upload, 2000, bits, 100), LAYOUT)
    stream = b"".join(message.data for message in messages)
    ends = np.cumsum([len(message.data) for message in messages])
    for cut in [*range(0, len(stream), 331), *ends, *(ends - 1), *(ends[:-1] + 1)]:
        arrived = decode_pieces(stream[:cut], LAYOUT)
        assert len(arrived) == int(np.searchsorted(ends, cut, side="right"))
        for piece, message in zip(arrived, messages, strict=False):
            assert torch.equal(piece.indices, message.delivered.indices)
            assert torch.equal(piece.values, message.delivered.values)
        # What did not arrive, and what quantisation took, stays with the sender.
        memory = remainder(vector, united(arrived))
        whole = memory.index_add(0, united(arrived).indices, united(arrived).values)
        torch.testing.assert_close(whole, vector, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "values",
    [torch.zeros(300), torch.ones(300), torch.full((300,), 1e-30), torch.cat([torch.zeros(290), torch.ones(10)])],
    ids=["zeros", "ones", "tiny", "mostly zeros"],
)
def test_values_that_are_alike_do_no_harm(values: torch.Tensor) -> None:
    pieces = split(Sparse(torch.arange(300), values), 300, 4, 20)
    assert torch.equal(united([piece.kept for piece in pieces]).indices, torch.arange(300))


def test_nothing_has_no_pieces() -> None:
    assert split(Sparse(torch.zeros(0, dtype=torch.int64), torch.zeros(0)), 300, 4, 20) == []
    assert decode_pieces(b"", LAYOUT) == []


def test_an_entry_that_comes_twice_is_refused() -> None:
    _, upload = kept()
    messages = encode_pieces(split(upload, 2000, 4, 300), LAYOUT)
    with pytest.raises(WireError, match="an entry appears in two pieces"):
        decode_pieces(messages[1].data + messages[1].data, LAYOUT)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_malformed_streams_are_refused_or_sound(data: st.DataObject) -> None:
    _, upload = kept(200)
    stream = bytearray(b"".join(message.data for message in encode_pieces(split(upload, 2000, 4, 50), LAYOUT)))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        for piece in decode_pieces(bytes(stream), LAYOUT):
            assert bool(piece.values.isfinite().all())
            assert int(piece.indices[-1]) < 2004
