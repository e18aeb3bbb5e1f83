"""Profiles from other processes equal those of this one, and nothing depends on these processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from wayfare.codec import helpers
from wayfare.codec.widths import profile
from wayfare.control.rate_distortion import Profile
from wayfare.control.spectrum import Sight
from wayfare.sparsify import spectrum as module
from wayfare.sparsify.spectrum import norm_and_spectrum


def sight(seed: int, monkeypatch: pytest.MonkeyPatch) -> Sight:
    """What a GPU would send of an update."""
    monkeypatch.setattr(module, "_is_on_gpu", lambda _: True)
    _, see = norm_and_spectrum(torch.from_numpy(np.random.default_rng(seed).standard_t(4, 50_000).astype(np.float32)))()
    assert isinstance(see, Sight)
    return see


def arrays(of: Profile) -> list[object]:
    widths = [(width.value_bits, width.bits.tolist(), width.lost.tolist()) for width in of.widths]
    curve = of.curve.bits.tolist(), of.curve.captured.tolist(), of.curve.log_slopes.tolist()
    return [of.kept.tolist(), of.captured.tolist(), of.overhead_bits, widths, curve]


def wait_for_two(own: helpers._Pool) -> None:
    until = time.monotonic() + 60
    while own.owing and time.monotonic() < until:
        own.welcome()
        time.sleep(0.01)
    assert len(own.free) == 2


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[helpers._Pool]:
    """Two helpers that are ready."""
    own = helpers._Pool()
    monkeypatch.setattr(helpers, "_pool", own)
    own.start(2)
    wait_for_two(own)
    yield own
    own.end()


def test_helpers_find_the_same_profiles_and_the_host_does_what_they_cannot(
    pool: helpers._Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sights = [sight(seed, monkeypatch) for seed in range(3)]
    expected = [arrays(profile(each(), 3)) for each in sights]
    # Three at a time: the host computes the last one.
    reads = [helpers.begun(each, 3) for each in sights]
    assert pool.free == []
    with monkeypatch.context() as without:
        without.setattr(helpers, "profile", None)
        assert [arrays(read()) for read in reads[1::-1]] == expected[1::-1]
    assert arrays(reads[2]()) == expected[2]
    # Nobody has to read a profile.
    helpers.begun(sights[0], 3)
    wait_for_two(pool)
    # A helper that ends, whenever it does, costs nothing but time.
    reads = [helpers.begun(each, 3) for each in sights[:2]]
    assert pool.process is not None
    pool.process.kill()
    pool.process.wait()
    assert [arrays(read()) for read in reads] == expected[:2]
    assert [arrays(helpers.begun(each, 3)()) for each in sights] == expected


@pytest.mark.parametrize(("profiles", "starts"), [([3], 0), ([5_000], 1), ([200, 200], 1)])
def test_only_runs_that_need_many_profiles_start_helpers(
    profiles: list[int], starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, started = helpers._Pool(), list[int]()
    monkeypatch.setattr(helpers, "_pool", own)
    monkeypatch.setattr(helpers._Pool, "start", lambda _, count: started.append(count))
    for in_run in profiles:
        helpers.expect(in_run)
    assert len(started) == starts
    # Without one the host computes everything.
    assert own.taken() is None


def test_helpers_start_without_torch() -> None:
    # Until they are ready, the host of a run computes all profiles. PyTorch takes seconds to import.
    code = "import sys; import wayfare.codec.helpers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
