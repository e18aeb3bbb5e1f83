"""What published compressors are billed for is the length of a real encoding."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.simulator.golden_cases import BASE
from torch import Tensor

import wayfare
from wayfare.codec import make_link
from wayfare.codec.header import HEADER_BYTES
from wayfare.codec.wire import Layout, decode, encode
from wayfare.device import Checks, Meeting, Terms, Transmission, begin_device, contact, terms_of
from wayfare.methods import Compressor, make_method
from wayfare.methods.published.qsgd import Qsgd
from wayfare.methods.published.random_k import RandomK
from wayfare.methods.published.threshold import Threshold
from wayfare.streams import Stream, generator

SCENARIO = wayfare.load("fashion-small", list(BASE))


def heavy_tailed(entries: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_t(3, entries).astype(np.float32))


def send(name: str, update: Tensor, contact_s: float, *, statistics: int = 0) -> tuple[Transmission, Terms]:
    """One contact of a device that learned an update."""
    method, entries = make_method(name, SCENARIO), len(update)
    link = make_link(SCENARIO, entries - statistics, statistics)
    terms = terms_of(SCENARIO, method, link, seed=7, checks=Checks(paranoid=True))
    state = begin_device(torch.zeros(entries), torch.zeros(()).expand(entries), 1e6, method)
    return contact(state, -update, Meeting(round=1, contact_s=contact_s, gain_per_watt=1e5), terms), terms


@pytest.mark.parametrize("contact_s", [3.0, 30.0, 3000.0])
@pytest.mark.parametrize("statistics", [0, 12])
def test_random_k_is_encoded_in_as_many_bits_as_billed(contact_s: float, statistics: int) -> None:
    update = heavy_tailed(3000)
    sending, terms = send("random-k:unlimited", update, contact_s, statistics=statistics)
    assert sending.sent is not None
    data = np.array([0, 1], np.uint32).tobytes() + sending.sent.values.numpy().tobytes()
    assert 8 * len(data) <= sending.upload.bits + 1e-6
    # The server has the key, the length and the values, and comes to the same entries.
    device, round_ = np.frombuffer(data, np.uint32, 2).tolist()
    k = (len(data) - 8) // 4 - statistics
    places = generator(7, Stream.COMPRESSION, device, round_).choice(3000 - statistics, k, replace=False, shuffle=False)
    np.testing.assert_array_equal(sending.sent.indices[:k], np.sort(places))
    assert terms.link.bits_per_entry == pytest.approx(32.0)


@pytest.mark.parametrize("contact_s", [30.0, 300.0, 3000.0])
@pytest.mark.parametrize("statistics", [0, 12])
def test_threshold_is_encoded_in_no_more_bits_than_billed(contact_s: float, statistics: int) -> None:
    update = heavy_tailed(3000)
    sending, _ = send("threshold:unlimited + threshold(size=1.0)", update, contact_s, statistics=statistics)
    assert sending.sent is not None
    layout = Layout(b"8 bytes.", 3000 - statistics, statistics)
    message = encode(sending.sent, layout)
    # As for all methods that send top-k, the paper's accounting has no header.
    assert message.bits - 8 * HEADER_BYTES <= sending.upload.bits
    assert torch.equal(decode(message.data, layout).values, sending.sent.values)


@pytest.mark.parametrize("name", ["qsgd:unlimited", "afl-spar:unlimited + qsgd", "mads + qsgd(levels=40, bucket=100)"])
@pytest.mark.parametrize("statistics", [0, 12])
def test_qsgd_is_encoded_in_no_more_bits_than_billed(name: str, statistics: int) -> None:
    update = heavy_tailed(3000)
    sending, terms = send(name, update, 30.0 if "qsgd:" in name else 5.0, statistics=statistics)
    rule, sent = terms.method.compressor, sending.sent
    assert isinstance(rule, Qsgd)
    assert sent is not None
    k = len(sent) - statistics
    whole = k == 3000 - statistics
    assert whole == name.startswith("qsgd")
    places, values = sent.indices[:k].numpy(), sent.values[:k].numpy()
    norms = np.array(
        [np.linalg.norm(part) for part in np.split(update.numpy()[places].astype(np.float64), _cuts(k, rule))]
    )
    norms = norms.astype(np.float32)
    steps = np.repeat(norms.astype(np.float64), rule.bucket)[:k] / rule.levels
    codes = np.rint(values / steps).astype(np.int64) + rule.levels
    width = math.ceil(math.log2(2 * rule.levels + 1))
    assert codes.min() >= 0
    assert codes.max() < 2**width
    np.testing.assert_array_equal(((codes - rule.levels) * steps).astype(np.float32), values)
    place_bits = 0.0 if whole else k * math.log2(3000 - statistics)
    assert 32 * len(norms) + width * k + place_bits + 32 * statistics <= sending.upload.bits + 1e-6
    # Statistics are appended as they are.
    assert torch.equal(sent.values[k:], update[3000 - statistics :])


def _cuts(entries: int, rule: Qsgd) -> list[int]:
    return list(range(rule.bucket, entries, rule.bucket))


@pytest.mark.parametrize("compressor", [RandomK(), Qsgd(), Threshold()])
def test_what_an_upload_costs_beside_its_entries_is_in_the_price_of_any_number_of_them(compressor: Compressor) -> None:
    link = make_link(SCENARIO, 3000, 12)
    priced = compressor.priced(link)
    assert priced.statistics_bits >= link.statistics_bits
    assert priced.dense_bits <= link.dense_bits
    assert replace(priced, bits_per_entry=1.0, dense_bits=1.0, statistics_bits=0.0) == replace(
        link, bits_per_entry=1.0, dense_bits=1.0, statistics_bits=0.0
    )
