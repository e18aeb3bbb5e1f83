"""The kernel that quantises and counts gives what plain operations give, in every bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine.kernels import WHERE, with_kernels

from wayfare.codec import length
from wayfare.codec.steps import ValueBits
from wayfare.sparsify import Sparse, top_k, with_tail

pytestmark = with_kernels


def message(entries: int, kept: int) -> Sparse:
    """The largest entries of a vector whose values span many octaves, and five statistics."""
    random = torch.Generator().manual_seed(entries)
    vector = torch.randn(entries, generator=random) * torch.exp(6 * torch.randn(entries, generator=random))
    vector[entries // 2] = 0.0
    vector[0] = -1e-42
    vector = torch.cat([vector, torch.randn(5, generator=random)])
    return with_tail(top_k(vector[:entries], kept), vector, entries)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize(("entries", "kept"), [(1, 1), (9, 3), (9_000, 8_999), (300_000, 700), (9_216, 9_216)])
def test_kernels_quantise_and_count_as_plain_operations_do(entries: int, kept: int, bits: ValueBits) -> None:
    from wayfare.codec.gpu_kernels import counted

    here = message(entries, kept)
    for with_gaps in {kept < entries, False}:
        codes, gaps, decode = length._counted(here, kept, bits, with_gaps=with_gaps)()
        found = counted(here.indices.to(WHERE), here.values.to(WHERE), kept, bits, with_gaps=with_gaps)()
        np.testing.assert_array_equal(found[0], codes)
        np.testing.assert_array_equal(found[1], gaps)
        assert torch.equal(found[2]().cpu().view(torch.int32), decode().view(torch.int32))
