"""Chunks of coded uploads: the values and the bits that the method decided on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.field.parts import LINK
from wayfare.codec.pieces import Piece
from wayfare.codec.steps import VALUE_BITS, ValueBits
from wayfare.codec.wire import Layout, encode
from wayfare.device import Meeting, Terms, coded_pieces, contact, payload
from wayfare.field.runtime.messages import Chunk, joined, split_coded, unpack
from wayfare.field.runtime.outbox import Outbox
from wayfare.methods import make_method
from wayfare.scenario import Scenario
from wayfare.sparsify import Sparse, top_k, with_tail

PARAMETERS, STATISTICS = 60_000, 6
WIDE = Layout.of("wide", [(PARAMETERS,)], statistics=STATISTICS)


def update(seed: int = 0) -> torch.Tensor:
    """Layers of different size and magnitude, and statistics."""
    noise = torch.randn(PARAMETERS + STATISTICS, generator=torch.Generator().manual_seed(seed))
    return noise * torch.logspace(-3, 0, PARAMETERS + STATISTICS)


@pytest.mark.parametrize("value_bits", VALUE_BITS)
@pytest.mark.parametrize("entries", [1, 900, 1024, 20_001])
def test_chunks_decode_to_the_values_of_the_one_message_that_was_decided(entries: int, value_bits: ValueBits) -> None:
    kept = with_tail(top_k(update()[:PARAMETERS], entries), update(), PARAMETERS)
    whole = encode(kept, WIDE, value_bits)
    pieces = split_coded([Piece(kept, value_bits, STATISTICS)], WIDE, 6_000)
    header = {"update": 1, "round": 1, "received_round": 0, "base_version": 0, "spent_joules": 0.0}
    chunks = [
        Chunk(chunk=0, chunks=1, entries=piece.kept, value_bits=piece.value_bits, **header).packed(WIDE)  # type: ignore[arg-type]
        for piece in pieces
    ]
    found = joined([unpack(data, WIDE).entries for data in chunks])
    assert torch.equal(found.indices, whole.delivered.indices)
    assert torch.equal(found.values, whole.delivered.values)
    assert all(len(data) < 8_000 for data in chunks)
    # The largest entries come first, as far as blocks allow.
    energies = [float(piece.kept.values[: piece.chosen].square().mean()) for piece in pieces]
    assert energies == sorted(energies, reverse=True)
    assert [piece.statistics for piece in pieces] == [STATISTICS] + [0] * (len(pieces) - 1)


@pytest.mark.parametrize("scheme", ["mads-rd", "mads-rd:index", "mads-rd:values", "mads-rd:progressive"])
def test_an_upload_takes_the_bits_that_its_method_decided_on(scheme: str, tmp_path: Path) -> None:
    link = replace(LINK, parameters=PARAMETERS, dense_bits=32.0 * PARAMETERS, statistics_bits=32.0 * STATISTICS)
    method = make_method(scheme, Scenario())
    first = torch.zeros(PARAMETERS + STATISTICS)
    outbox = Outbox(tmp_path / "d.sqlite", first, method, layout=WIDE, budget_joules=10.0, identity={"fleet": "one"})
    outbox.trained(first, first + update(), 1)
    meeting = Meeting(round=1, contact_s=0.15, gain_per_watt=1e3)
    sending = contact(outbox.state, outbox.local, meeting, Terms(method=method, link=link, rounds=100))
    sent = payload(sending, outbox.local, method)
    assert sent is not None
    assert sending.upload.bits > 1e5
    coded = coded_pieces(sending)
    opened = outbox.cut(sending.state, sent, round_=1, next_update=1, chunk_bytes=12_500, coded=coded)
    assert opened is not None
    chunks = [data for _, data in outbox.pending(1)]
    assert 8 * sum(map(len, chunks)) < 1.04 * sending.upload.bits
    found = joined([unpack(data, WIDE).entries for data in chunks])
    assert torch.equal(found.indices, sent.indices)
    assert torch.equal(found.values, sent.values)
    # A sealed update returns what the server would have decoded, so that nothing is lost.
    outbox.take_back(1, [])
    torch.testing.assert_close(outbox.state.memory, -update(), rtol=1e-5, atol=1e-7)


def test_many_small_chunks_stay_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfare.field.runtime.messages.MAX_CHUNKS", 8)
    kept = Sparse(torch.arange(PARAMETERS), update()[:PARAMETERS])
    assert len(split_coded([Piece(kept, 4)], WIDE, 100)) <= 8
