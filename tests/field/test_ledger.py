"""Every chunk once, whatever comes twice, late or broken, and whenever the power fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.field.parts import (
    ENTRIES,
    INITIAL,
    LAYOUT,
    aggregation,
    cut,
    dies_at,
    noise,
    open_ledger,
    open_outbox,
    train,
)
from wayfare.codec.errors import WireError
from wayfare.errors import RunFolderError
from wayfare.field.runtime import messages
from wayfare.field.runtime.database import Database
from wayfare.field.runtime.downloads import Downloads
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.ledger_format import page_bytes_for
from wayfare.field.runtime.messages import Chunk, joined, split
from wayfare.field.runtime.model_encoding import unpacked
from wayfare.field.runtime.rules import Limits
from wayfare.methods import Arrival
from wayfare.methods.servers import Add
from wayfare.server import ServerState, aggregate
from wayfare.sparsify import Sparse, top_k, with_tail


def chunks_of(seed: int, *, number: int = 1, round_: int = 1, scale: float = 0.1, spent: float = 0.0) -> list[bytes]:
    """An upload of 200 entries in a handful of chunks."""
    vector = noise(seed, scale)
    sent = with_tail(top_k(vector[: LAYOUT.parameters], 200), vector, LAYOUT.parameters)
    pieces = split(sent, LAYOUT, 300)
    return [
        Chunk(
            update=number, chunk=place, chunks=len(pieces), round=round_, received_round=0, base_version=0,
            spent_joules=spent,
            entries=piece.kept,
        ).packed(LAYOUT)
        for place, piece in enumerate(pieces)
    ]  # fmt: skip


def deliver(ledger: Ledger, device: int, chunks: list[bytes]) -> list[bool]:
    with ledger.transaction():
        news = [ledger.record(device, data)[1] for data in chunks]
        OnArrival().apply_due(ledger)
    return news


def everything(ledger: Ledger) -> tuple[object, ...]:
    return (
        *(ledger.version, ledger.next_round, ledger.applied(), sorted(ledger.queued())),
        *(ledger.model.tolist(), ledger._history.latest.changed.tolist(), ledger.spent_joules()),
        [ledger.standing(device, 1) for device in range(3)],
        sorted(ledger._taken),
    )


def test_chunks_add_up_to_what_the_simulator_would_aggregate(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    vectors = [noise(seed, 0.1) for seed in (1, 2, 3)]
    uploads = [with_tail(top_k(v[: LAYOUT.parameters], 200), v, LAYOUT.parameters) for v in vectors]
    with ledger.transaction():
        # In any order: they are applied in that of devices and chunks.
        for device in (2, 0, 1):
            for data in reversed(chunks_of(device + 1)):
                ledger.record(device, data)
        ledger.apply(ledger.queued())
    arrivals = [Arrival(device=device, sent=sent) for device, sent in enumerate(uploads)]
    expected = aggregate(ServerState(model=INITIAL), Add(), arrivals, aggregation().terms).model
    assert torch.equal(ledger.model, expected)
    assert ledger.version == 1
    assert torch.equal(ledger.replay().model, expected)


@pytest.mark.parametrize("cached", [1 << 19, 64, 1])
@pytest.mark.parametrize("entries", [4, 12, 200])
def test_pieces_with_few_or_many_entries_are_joined_by_index(
    entries: int, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_CACHED", cached)
    sent = top_k(noise(3)[: LAYOUT.parameters], entries)
    order = torch.randperm(entries, generator=torch.Generator().manual_seed(0))
    pieces = [Sparse(sent.indices[part], sent.values[part]) for part in (one.sort().values for one in order.chunk(4))]
    again = joined(pieces)
    assert torch.equal(again.indices, sent.indices)
    assert torch.equal(again.values, sent.values)
    empty = Sparse(sent.indices[:0], sent.values[:0])
    assert torch.equal(joined([empty, *pieces, empty]).indices, sent.indices)
    assert len(joined([empty, empty])) == 0


def test_pieces_of_an_upload_are_the_upload_again_with_the_largest_first() -> None:
    vector = noise(3)
    sent = with_tail(top_k(vector[: LAYOUT.parameters], 250), vector, LAYOUT.parameters)
    pieces = [piece.kept for piece in split(sent, LAYOUT, 600)]
    assert len(pieces) > 2
    again = joined(pieces)
    assert torch.equal(again.indices, sent.indices)
    assert torch.equal(again.values, sent.values)
    smallest = [piece.values[piece.indices < LAYOUT.parameters].abs().min() for piece in pieces]
    largest = [piece.values[piece.indices < LAYOUT.parameters].abs().max() for piece in pieces]
    assert all(low >= high for low, high in zip(smallest, largest[1:], strict=False))
    assert int((pieces[0].indices >= LAYOUT.parameters).sum()) == LAYOUT.statistics
    assert split(Sparse(sent.indices[:0], sent.values[:0]), LAYOUT, 600) == []


def test_what_comes_again_changes_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    chunks = chunks_of(1)
    assert deliver(ledger, 0, chunks[:2]) == [True, True]
    model = ledger.model
    assert deliver(ledger, 0, [chunks[1], chunks[0], chunks[1]]) == [False, False, False]
    assert ledger.model is model
    assert deliver(ledger, 0, chunks) == [False, False] + [True] * (len(chunks) - 2)
    assert torch.equal(ledger.replay().model, ledger.model)


def test_a_chunk_with_the_number_of_another_is_refused(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    deliver(ledger, 0, chunks_of(1))
    with pytest.raises(WireError, match="other contents"):
        ledger.record(0, chunks_of(2)[0])
    # The same number of another device is another chunk.
    assert ledger.record(1, chunks_of(2)[0])[1]


def test_a_sealed_update_takes_no_more_chunks(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    chunks = chunks_of(1)
    deliver(ledger, 0, chunks[:1])
    ledger.seal(0, 1)
    assert ledger.standing(0, 1) == (2, [0], True)
    with pytest.raises(WireError, match="update 1 is closed"):
        ledger.record(0, chunks[1])
    # One of which nothing came is sealed too, and the promise outlives the process.
    ledger.seal(0, 2)
    ledger.close()
    ledger = open_ledger(tmp_path)
    assert ledger.standing(0, 2) == (3, [], True)
    with pytest.raises(WireError, match="update 2 is closed"):
        ledger.record(0, chunks_of(1, number=2)[0])
    assert deliver(ledger, 0, chunks_of(2, number=3)) == [True] * len(chunks)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "next before the last is whole": (lambda: chunks_of(2, number=2)[0], "while update 1 is open"),
    "another round": (lambda: chunks_of(1, round_=2, spent=1.0)[2], "disagree on"),
    "an entry twice": (lambda: _renumbered(chunks_of(1)[0], 2), "appears twice"),
    "too large a value": (lambda: chunks_of(2, scale=1e6, spent=1.0)[2], "must be at most 10000"),
    "less energy than before": (lambda: chunks_of(1, spent=0.5)[2], "it was 1.0"),
    "more energy than there is": (lambda: chunks_of(1, spent=1e9)[2], "must be at most 100.0, the budget"),
    "a version to come": (lambda: _renumbered(chunks_of(1)[2], 2, base_version=7), "must be at most 1, the latest"),
}


def _renumbered(data: bytes, place: int, **changes: int) -> bytes:
    from dataclasses import replace

    from wayfare.field.runtime.messages import unpack

    return replace(unpack(data, LAYOUT), chunk=place, spent_joules=1.0, **changes).packed(LAYOUT)


@pytest.mark.parametrize("case", REFUSED)
def test_what_fits_no_update_is_refused_and_changes_nothing(case: str, tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, Limits(budget_joules=100.0))
    deliver(ledger, 0, chunks_of(1, spent=1.0)[:2])
    before = everything(ledger)
    make, reason = REFUSED[case]
    with pytest.raises(WireError, match=reason):
        ledger.record(0, make())
    assert everything(ledger) == before


@pytest.mark.parametrize("keep_file", [True, False], ids=["model file", "no model file"])
def test_a_restart_comes_to_the_same_bits(keep_file: bool, tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    for number in range(1, 9):
        for device in range(3):
            deliver(ledger, device, chunks_of(10 * number + device, number=number))
        if number in (2, 4, 6):
            ledger.save_model()
    with ledger.transaction():
        ledger.record(1, chunks_of(5, number=9)[0])
    before = everything(ledger)
    ledger.close()
    assert len(list(tmp_path.glob("model-*.npz"))) == 2
    if not keep_file:
        newest, oldest = sorted(tmp_path.glob("model-*.npz"), key=lambda file: int(file.stem[6:]), reverse=True)
        newest.write_bytes(newest.read_bytes()[:-7] + b"another")
        oldest.unlink()
    ledger = open_ledger(tmp_path)
    assert everything(ledger) == before
    assert torch.equal(ledger.replay().model, ledger.model)


def test_power_that_fails_at_any_statement_leaves_all_of_a_batch_or_nothing(tmp_path: Path) -> None:
    first = tmp_path / "first"
    ledger = open_ledger(first)
    deliver(ledger, 0, chunks_of(1))
    ledger.save_model()
    deliver(ledger, 1, chunks_of(2)[:2])
    untouched = everything(ledger)
    ledger.close()
    batch = chunks_of(2)[1:]
    for statement in range(1, 200):
        copy = shutil.copytree(first, tmp_path / f"at-{statement}")
        victim = open_ledger(copy)
        killed = dies_at(statement, victim._database.connection, partial(deliver, victim, 1, batch))
        left = open_ledger(copy)
        assert torch.equal(left.replay().model, left.model)
        if not killed:
            assert left.standing(1, 1)[1] == list(range(len(batch) + 1))
            break
        assert everything(left) == untouched
        # The broker gives it all again: then it is there, once.
        assert sum(deliver(left, 1, chunks_of(2))) == len(batch) - 1
        assert torch.equal(left.replay().model, left.model)
    assert statement > 12


def test_power_that_fails_while_the_model_file_is_written_costs_nothing(tmp_path: Path) -> None:
    first = tmp_path / "first"
    ledger = open_ledger(first)
    deliver(ledger, 0, chunks_of(1))
    before = everything(ledger)
    ledger.close()
    for statement in range(1, 20):
        copy = shutil.copytree(first, tmp_path / f"at-{statement}")
        victim = open_ledger(copy)
        killed = dies_at(statement, victim._database.connection, victim.save_model)
        left = open_ledger(copy)
        assert everything(left) == before
        left.save_model()
        if not killed:
            break
    assert statement > 3


def test_an_update_is_clipped_to_its_norm_and_the_replay_knows(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, Limits(clip_norm=0.5))
    deliver(ledger, 0, chunks_of(1, scale=1.0))
    moved = 3 * (INITIAL - ledger.model).double()
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-4)
    assert torch.equal(ledger.replay().model, ledger.model)
    # One within the limit is left alone.
    before = ledger.model
    deliver(ledger, 1, chunks_of(2, scale=1e-2))
    assert np.allclose(3 * (before - ledger.model).numpy(), ledger.delivered(1), atol=1e-6)


def test_a_model_comes_down_as_a_delta_when_that_is_smaller(tmp_path: Path) -> None:
    ledger, downloads = open_ledger(tmp_path), Downloads(LAYOUT, tmp_path)
    versions = {0: ledger.model}
    for number in range(1, 6):
        vector = noise(number, 0.1)
        few = Sparse(torch.arange(number, 40 + number), vector[:40])
        data = Chunk(
            update=number, chunk=0, chunks=1, round=1, received_round=0, base_version=0, spent_joules=0.0, entries=few
        ).packed(LAYOUT)  # fmt: skip
        deliver(ledger, 0, [data])
        versions[ledger.version] = ledger.model
    whole = downloads.offer(ledger, ledger.version, None)
    assert whole.base_version is None
    assert torch.equal(unpacked(whole.data, LAYOUT, base=None, digest=whole.digest), ledger.model)
    sizes = []
    for have, model in versions.items():
        delta = downloads.offer(ledger, ledger.version, have)
        assert delta.base_version == have
        sizes.append(len(delta.data))
        assert torch.equal(unpacked(delta.data, LAYOUT, base=model, digest=delta.digest), ledger.model)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] < len(whole.data) / 2
    # A device that has something else does not take it.
    with pytest.raises(WireError, match="digest differs"):
        unpacked(downloads.offer(ledger, ledger.version, 3).data, LAYOUT, base=noise(8), digest=whole.digest)
    # When nearly all has changed, the whole is smaller; a version that is to come is none.
    deliver(ledger, 1, chunks_of(4))
    big = Sparse(torch.arange(ENTRIES), noise(9))
    data = Chunk(
        update=1, chunk=0, chunks=1, round=1, received_round=0, base_version=0, spent_joules=0.0, entries=big
    ).packed(LAYOUT)  # fmt: skip
    deliver(ledger, 2, [data])
    assert downloads.offer(ledger, ledger.version, 99).base_version is None
    offered = downloads.offer(ledger, ledger.version, 0)
    assert len(offered.data) <= len(downloads.offer(ledger, ledger.version, None).data)


def test_a_version_that_is_past_can_still_be_had(tmp_path: Path) -> None:
    ledger, models = open_ledger(tmp_path), [INITIAL]
    for number in range(1, 9):
        deliver(ledger, 0, chunks_of(number, number=number))
        models.append(ledger.model)
    for version, model in enumerate(models):
        assert torch.equal(ledger.model_at(version), model)
        for have in range(version + 1):
            offered = Downloads(LAYOUT, tmp_path).offer(ledger, version, have)
            base = None if offered.base_version is None else models[have]
            assert torch.equal(unpacked(offered.data, LAYOUT, base=base, digest=offered.digest), model)


def test_downloads_beyond_their_room_are_made_again(tmp_path: Path) -> None:
    ledger, downloads = open_ledger(tmp_path), Downloads(LAYOUT, tmp_path, kept_bytes=3000)
    for number in range(1, 6):
        deliver(ledger, 0, chunks_of(number, number=number))
        downloads.offer(ledger, ledger.version, number - 1)
    assert sum(len(one.data) for one in downloads._made.values()) <= 3000
    assert downloads.part(0, 1, 0, 0, 10) == b""


def test_an_outbox_and_a_ledger_agree_on_every_chunk(tmp_path: Path) -> None:
    outbox, ledger = open_outbox(tmp_path / "device"), open_ledger(tmp_path / "server")
    train(outbox, 1, 1)
    opened = cut(outbox, 1)
    deliver(ledger, 0, [data for _, data in outbox.pending(1)][:3])
    ledger.seal(0, 1)
    outbox.take_back(1, ledger.standing(0, 1)[1])
    applied = {(key.number, key.chunk): digest for key, digest in ledger.applied().items()}
    for number, chunk, digest, outcome in outbox.outcomes():
        assert (outcome == "recorded") == (applied.get((number, chunk)) == digest)
    assert {row[3] for row in outbox.outcomes()} == {"recorded", "returned"}
    assert opened.chunks == len(outbox.outcomes())


def test_the_ledger_of_another_fleet_is_refused(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()
    with pytest.raises(RunFolderError, match="fleet: 'fleet' -> 'other'"):
        Ledger(tmp_path, INITIAL, layout=LAYOUT, aggregation=aggregation(), identity={"fleet": "other"})


@pytest.mark.parametrize(("entries", "page_bytes"), [(999_999, 4 << 10), (1_000_000, 16 << 10)])
def test_ledgers_of_large_models_have_large_pages(entries: int, page_bytes: int, tmp_path: Path) -> None:
    Database(tmp_path / "new.sqlite", "CREATE TABLE some (thing TEXT)", 1, page_bytes=page_bytes_for(entries)).close()
    # A file of an earlier version keeps its pages.
    again = Database(tmp_path / "new.sqlite", "", 1, page_bytes=8 << 10)
    assert again.rows("PRAGMA page_size") == [(page_bytes,)]
    assert again.rows("SELECT count(*) FROM some") == [(0,)]
    again.close()
