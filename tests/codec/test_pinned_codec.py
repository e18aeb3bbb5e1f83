"""Bytes, lengths and choices of the codec as they are: what a device wrote last year must be read tomorrow.

The update has whole numbers over 256 alone, so that no library can round it differently. A width of one bit takes a
mean, which may: its bytes are not pinned.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import Tensor

import wayfare
from wayfare.codec import make_link
from wayfare.codec.entropy import coded_bytes
from wayfare.codec.errors import WireError
from wayfare.codec.fitting import CodedUpload, arriving, fit, fit_pieces, piece_entries, united
from wayfare.codec.length import Measured
from wayfare.codec.pieces import _octaves, split
from wayfare.codec.steps import ValueBits
from wayfare.codec.values import decode_values, encode_values
from wayfare.codec.widths import profile
from wayfare.codec.wire import Layout, decode, encode
from wayfare.sparsify import Sparse, top_k, with_tail
from wayfare.sparsify.spectrum import spectrum

LAYOUT = Layout.of("pinned", [(40, 50), (3000,)], statistics=4)


def made() -> Tensor:
    place = torch.arange(5004, dtype=torch.int64)
    magnitude = ((place * place * 7919 + place * 104729) % 65521 + 1).float() / 256
    return torch.where(place % 3 == 0, -1.0, 1.0) * magnitude * torch.where(place < 2000, 4.0, 0.25)


UPDATE = made()
# By entries, in 32, 16, 8, 4 and 2 bits.
DIGESTS = {
    0: "5e0dcc01f2bb 4453e2b627d2 51dc49a37f85 deba8795cb97 8b7b055f0b77",
    1: "99c35eb37694 322a2f734aea 8e82c5b8bd7f 7dd506c66331 c3f944eeb612",
    30: "8a7d410b01bb 3fe04a9d699b 8d6ba7e75d27 f66b97b9592e dc4aaa906cff",
    600: "63b8c98e91fe 5febd604928e 4a05d7a33f5d 27690174227f 4d1f312b4893",
    2500: "d5fb0b6af9f9 f7aede126654 8092442068a1 b0c474efe004 31538cd2438c",
    5000: "875d6bd7c7eb e8ffd452cd4b 0edff3ad4621 2e3712265968 15d638dc7769",
}


@pytest.mark.parametrize("entries", DIGESTS)
def test_messages_of_version_1_have_these_bytes(entries: int) -> None:
    kept = with_tail(top_k(UPDATE[:5000], entries), UPDATE, 5000)
    messages = [encode(kept, LAYOUT, bits) for bits in (32, 16, 8, 4, 2)]
    digests = [hashlib.blake2b(message.data, digest_size=6).hexdigest() for message in messages]
    assert " ".join(digests) == DIGESTS[entries]
    for message in messages:
        found = decode(message.data, LAYOUT)
        assert torch.equal(found.indices, kept.indices)
        assert torch.equal(found.values, message.delivered.values)


@pytest.mark.parametrize(
    ("counts", "length"),
    [([5], 7), ([1, 2, 3], 9), ([1000, 10, 1], 21), ([3] * 256, 1030), ([100_000, 50_000, 0, 7], 17_250)],
)
def test_the_most_that_symbols_take(counts: list[int], length: int) -> None:
    assert coded_bytes(np.array(counts)) == length


@pytest.mark.parametrize(
    ("counts", "length"),
    [
        ([26_425, 350_162], 17_272),
        ([168, 2, 1, 5_137_794, 34_016_490], 2_747_935),
        ([540_315, 90_470_517, 47, 159_743_931], 30_231_174),
        ([119_648, 1_465, 169_267_147, 124_009_835], 36_244_346),
        ([27_378_323, 108, 48_909_580, 205], 8_988_566),
        ([120_781_017, 267_561_692], 43_435_160),
    ],
)
def test_the_most_that_symbols_take_where_one_part_in_ten_million_adds_a_word(counts: list[int], length: int) -> None:
    assert coded_bytes(np.array(counts)) == length


def test_pieces_by_the_root_of_their_bits() -> None:
    """n = sqrt(bits / 4,000), between 1 and 10."""
    found = [piece_entries(5000, bits) for bits in (1e3, 4e3, 16e3, 64e3, 4e5, 4e9)]
    assert found == [5000, 5000, 2500, 1250, 500, 500]
    assert piece_entries(7, 4e9) == 1


def coded(value_bits: ValueBits) -> CodedUpload:
    return CodedUpload(update=UPDATE, parameters=5000, value_bits=value_bits, largest=lambda k: top_k(UPDATE[:5000], k))


# Asked for, and room; then entries and bits in 32, 8, 4 and 2 bits.
FITTING = {
    (10, 1000.0): [(10, 952), (20, 928), (25, 912), (29, 896)],
    (600, 4000.0): [(86, 3960), (239, 3968), (435, 3984), (677, 3920)],
    (600, 8000.0): [(189, 7976), (657, 7784), (1340, 7896), (2144, 7872)],
    (600, 30000.0): [(832, 29144), (3038, 29488), (5000, 13696), (5000, 6464)],
    (4000, 12000.0): [(310, 11976), (1166, 11984), (2107, 11768), (5000, 6464)],
    (10, 500.0): [(0, 0), (0, 0), (0, 0), (0, 0)],
}


@pytest.mark.parametrize("asked", FITTING)
def test_as_many_entries_as_the_room_holds(asked: tuple[int, float]) -> None:
    found = [fit(coded(bits), *asked) for bits in (32, 8, 4, 2)]
    assert [(entries, message.bits) for entries, message in found] == FITTING[asked]
    for entries, message in found:
        assert len(message.delivered) == (entries + 4 if entries else 0)


# Entries in a piece, and room; then bits of the pieces that fit, and entries of those that are left, in 32 and 4 bits.
PIECES = {
    (100, 9000.0): [
        ([4520, 3896, 552], [98, 102, 102, 102, 102, 102, 102, 102, 97, 97, 96, 96, 96]),
        ([1792, 912, 872, 896, 880, 904, 888, 904, 896], [102, 97, 97, 96, 96, 96]),
    ],
    (250, 30000.0): [([10048, 10096, 9832], [10, 284, 200, 199]), ([3120, 1648, 1736, 1720, 1760, 1888], [])],
    (250, 700.0): [([696], [247, 284, 283, 284, 200, 199]), ([696], [246, 284, 283, 284, 200, 199])],
}


@pytest.mark.parametrize("asked", PIECES)
def test_pieces_that_fit_and_those_that_are_left(asked: tuple[int, float]) -> None:
    for bits, expected in zip((32, 4), PIECES[asked], strict=True):
        fitting, left = fit_pieces(coded(bits), 1500, *asked)
        assert ([message.bits for message in fitting], [piece.chosen for piece in left]) == expected
        together = torch.cat([*(one.delivered.indices for one in fitting), *(piece.kept.indices for piece in left)])
        assert together.sort().values.tolist() == coded(bits).kept(1500).indices.tolist()


def test_an_upload_is_split_by_octaves() -> None:
    pieces = split(coded(4).kept(1500), 5000, 4, 200)
    found = [(piece.chosen, piece.value_bits, piece.statistics) for piece in pieces]
    assert found == [(200, 4, 4), (217, 2, 0), (218, 2, 0), (217, 2, 0), (218, 2, 0), (215, 2, 0), (215, 2, 0)]


def test_messages_arrive_one_after_the_other() -> None:
    messages = [Measured(bits, Sparse(torch.tensor([place]), torch.ones(1))) for place, bits in ((3, 10), (1, 20))]
    assert [len(arriving(messages, room)) for room in (9.9, 10.0, 29.9, 30.0)] == [0, 1, 1, 2]
    whole = united(messages, Measured(0, Sparse(torch.empty(0, dtype=torch.int64), torch.empty(0))))
    assert (whole.bits, whole.delivered.indices.tolist()) == (30, [1, 3])


# Bits of a value and the share of its energy that is lost, at the first, 11th, 31st and last number of entries.
WIDTHS = {
    32: ([183.132482, 42.9281831, 34.6297273, 32.0128], [0.0, 0.0, 0.0, 0.0]),
    8: ([159.194982, 18.9906831, 10.6922273, 6.70793016], [2.33e-11, 3.52574e-10, 1.12177e-07, 0.00054963]),
    4: ([155.194982, 14.9906831, 6.69222732, 3.22684246], [5.22933e-09, 1.0577e-07, 2.85221e-05, 0.118891]),
    2: ([153.194982, 12.9906831, 4.69222732, 1.42219007], [7.20023e-08, 9.07547e-07, 0.000484281, 0.7867]),
    1: ([152.194982, 11.9906831, 3.69222732, 1.0753], [3.11932e-07, 4.78903e-06, 0.00187652, 0.653298]),
}


def test_what_values_cost_and_lose() -> None:
    found = profile(spectrum(UPDATE[:5000]), 4)
    assert (len(found.kept), found.overhead_bits) == (57, 520.0)
    assert [width.value_bits for width in found.widths] == list(WIDTHS)
    for width, (bits, lost) in zip(found.widths, WIDTHS.values(), strict=True):
        np.testing.assert_allclose(width.bits[[0, 10, 30, -1]], bits, rtol=1e-8)
        np.testing.assert_allclose(width.lost[[0, 10, 30, -1]], lost, rtol=1e-5)
    assert profile(spectrum(UPDATE[:5000])).overhead_bits == 392.0


def test_entries_one_step_below_the_largest_are_in_the_octave_below() -> None:
    values = torch.tensor([2.0, np.nextafter(np.float32(2), np.float32(0)), -1.0, 0.99, 0.25, 0.0])
    assert _octaves(values, 1).tolist() == [0, 1, 1, 2, 3, 24]


@pytest.mark.parametrize("scales", [(2.0, 1.0), (1.0, np.inf), (np.inf, 1.0)])
def test_scales_that_no_encoder_writes_are_refused(scales: tuple[float, float]) -> None:
    data, _ = encode_values(np.array([1.0, 2.0, 1.5], np.float32), 4)
    assert len(decode_values(data, 4, 3)) == 3
    with pytest.raises(WireError):
        decode_values(np.array(scales, "<f4").tobytes() + data[8:], 4, 3)


def test_the_link_of_a_scenario_counts_every_value() -> None:
    scenario = wayfare.load("fashion-small", ["upload.value_bits=16"])
    link = make_link(scenario, 1024, statistics=3)
    assert (link.parameters, link.bits_per_entry) == (1024, 16 + 10)
    assert (link.dense_bits, link.statistics_bits) == (1024 * 16 + 48, 48.0)
    assert (make_link(scenario, 1024).statistics_bits, make_link(scenario, 1024).dense_bits) == (0.0, 1024 * 16)
