from __future__ import annotations

import itertools

import numpy as np
import pytest

from wayfare.streams import Stream, generator, secret_normals


@pytest.mark.parametrize("stream", list(Stream))
def test_every_stream_depends_on_seed_device_and_itself(stream: Stream) -> None:
    draws = {
        (seed, other, device): tuple(generator(seed, other, device).random(4))
        for seed, other, device in itertools.product(
            [0, 1, 10**12], {stream, Stream.MINIBATCH, Stream.SHADOWING}, [0, 7]
        )
    }
    assert len(set(draws.values())) == len(draws)


def test_the_same_key_gives_the_same_draws() -> None:
    assert np.array_equal(generator(3, Stream.MINIBATCH, 5).random(9), generator(3, Stream.MINIBATCH, 5).random(9))


def test_stream_numbers_are_part_of_what_a_seed_means() -> None:
    # A change here changes every published result; add new streams at the end instead.
    assert [int(stream) for stream in Stream] == [*range(1, 12), *range(13, 27)]
    assert generator(0, Stream.DEVICE_MOTION, 0).random() == 0.9453165290142962


@pytest.mark.parametrize("count", [0, 1, 2, 99_999])
def test_secret_normals_are_as_many_as_wanted_and_never_the_same(count: int) -> None:
    one, other = secret_normals(count), secret_normals(count)
    assert len(one) == len(other) == count
    assert not count or not np.array_equal(one, other)


def test_secret_normals_are_independent_and_normal() -> None:
    from scipy.stats import kstest

    drawn = secret_normals(100_000)
    # Random on purpose: a correct source fails once in a million tests.
    assert kstest(drawn, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(drawn[:50_000], drawn[50_000:])[0, 1]) < 5 / np.sqrt(50_000)
