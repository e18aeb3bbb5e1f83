"""The bytes of downloads, and the sizes of chunks."""

import struct

import numpy as np
import pytest
import torch
import zstandard

from wayfare.codec.deflate import huffman_coded
from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.field.runtime.messages import Chunk, split
from wayfare.field.runtime.model_encoding import expanded, fast_digest, packed, squeezed, unpacked
from wayfare.sparsify import top_k

_HEAD = struct.Struct("<III")
VALUES = torch.randn(70_000, generator=torch.Generator().manual_seed(1)).numpy()


def rewritten(data: bytes, coded: bytes) -> bytes:
    """A download with other coded exponents."""
    front, count, coded_bytes = _HEAD.unpack_from(data)
    begin = _HEAD.size + front
    return _HEAD.pack(front, count, len(coded)) + data[_HEAD.size : begin] + coded + data[begin + coded_bytes :]


def exponents(data: bytes) -> bytes:
    front, _, coded_bytes = _HEAD.unpack_from(data)
    return data[_HEAD.size + front :][:coded_bytes]


@pytest.mark.parametrize("count", [0, 1, 1000, 70_000])
def test_values_are_squeezed_and_expanded_in_every_bit(count: int) -> None:
    values = VALUES[:count].astype("<f4").tobytes()
    data = squeezed(b"front", values)
    assert expanded(data, count) == b"front" + values
    if count > 1000:
        assert len(exponents(data)) < 0.4 * count


def test_a_download_of_an_earlier_version_with_deflate_is_still_read() -> None:
    model = torch.from_numpy(VALUES.copy())
    layout = Layout.of("test", [(len(model),)])
    data = packed(model, None, layout)
    earlier = rewritten(data, huffman_coded(np.frombuffer(model.numpy(), np.uint8)[3::4].tobytes()))
    assert earlier != data
    assert torch.equal(unpacked(earlier, layout, base=None, digest=fast_digest(model)), model)


def test_coded_exponents_of_another_length_or_content_are_rejected() -> None:
    data = squeezed(b"", VALUES.tobytes())
    coded = exponents(data)
    # It claims a gigabyte, which the decoder must not allocate.
    huge = zstandard.FRAME_HEADER + struct.pack("<BQ", 0xE0, 1 << 30) + bytes(8)
    for wrong, message in (
        (zstandard.compress(bytes(3)), "coded bytes: 3, expected 70000"),
        (huge, "coded bytes: 1073741824, expected 70000"),
        (coded[:-1], "cannot decode the bytes"),
        (coded[:5], "cannot decode the bytes"),
        (coded + b"x", "cannot decode the bytes"),
        (b"", "coded bytes: 0 or more"),
    ):
        with pytest.raises(WireError, match=message):
            expanded(rewritten(data, wrong), len(VALUES))


@pytest.mark.parametrize(("parameters", "chunk_bytes"), [(84_618, 4096), (84_618, 65_536), (1_000_000, 65_536)])
def test_chunks_have_about_the_requested_size(parameters: int, chunk_bytes: int) -> None:
    update = torch.randn(parameters, generator=torch.Generator().manual_seed(2))
    layout = Layout.of("test", [(parameters,)])
    pieces = split(top_k(update, parameters // 2), layout, chunk_bytes)
    assert len(pieces) >= 3
    first = Chunk(1, 0, len(pieces), 1, 0, 0, 0.0, pieces[0].kept).packed(layout)
    assert 0.97 < len(first) / chunk_bytes < 1.03
