"""Differential privacy of a device towards the server, the broker and everyone who listens (docs/privacy.md).

In a contact the device forms the fresh contribution

    f = g min(1, C / |g|) + noise C N(0, I),        g = received - local,  C = clip_norm,

and everything after it sees only f: memory, update norm, the decision on bits and power, compression. The release of a
contact is S(e + f), where the memory e holds remainders of earlier f. So it is post-processing of f: top-k, error
feedback, retransmissions and entries that the field takes back cost no privacy.

The unit is the device: two neighbouring data sets are any two, because the server is not trusted and knows who sends.
Clipped changes differ by at most 2 C, so one contribution is a Gaussian mechanism of mu = 2 / noise, whatever came
before. T contributions compose to exactly mu = 2 sqrt(T) / noise (Dong, Roth and Su 2022, corollary 2), with

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

(Balle and Wang 2018). dp-accounting inverts this. Steps, minibatches and the number of devices give no discount: the
server sees each device alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wayfare.arrays import Floats
from wayfare.errors import ScenarioError, UnavailableError
from wayfare.methods.encounter import Upload
from wayfare.methods.parts import Method, Part
from wayfare.streams import Stream, generator, secret_normals

if TYPE_CHECKING:
    from torch import Tensor

NoiseSource: TypeAlias = Callable[[int, int, int], Floats]
"""Returns standard normal numbers for a device, a round and a number of entries."""


def secret_noise(device: int, round_: int, entries: int) -> Floats:
    """Noise that nobody can draw again: not from a seed, and not from this function."""
    return secret_normals(entries)


def keyed_noise(seed: int) -> NoiseSource:
    """Noise by seed, device and round, for the simulator. It protects nobody: whoever has the seed can subtract it."""
    return partial(_keyed, seed)


def _keyed(seed: int, device: int, round_: int, entries: int) -> Floats:
    return generator(seed, Stream.PRIVACY_NOISE, device, round_).standard_normal(entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpent:
    """The privacy that each device of a run has spent."""

    delta: float
    releases: Sequence[int]  # by device
    epsilon: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Private(Part):
    """Differential privacy per device: clip what was learned since the last download, then add Gaussian noise."""

    noise: float  # standard deviation of the noise in every entry, in multiples of clip_norm
    clip_norm: float  # changes of larger norm are scaled down to it
    delta: float = 1e-5
    max_epsilon: float | None = None  # a device that would exceed it sends only what its memory still holds

    def __post_init__(self) -> None:
        for name, value in (("noise", self.noise), ("clip_norm", self.clip_norm), ("max_epsilon", self.max_epsilon)):
            if value is not None and not (_is_number(value) and 0 < value < math.inf):
                raise ScenarioError(name, value, "must be a number above 0")
        if not (_is_number(self.delta) and 0 < self.delta < 1):
            raise ScenarioError("delta", self.delta, "must be above 0 and below 1")

    def objection(self, method: Method) -> str | None:
        """Everything that leaves the device must pass the noise, and nothing may undo the clipping."""
        if method.server.takes == "models":
            return "its server takes whole models, which carry no noise; choose a server rule that takes updates"
        if method.peers is not None:
            return "relays carry updates without noise; remove the relays or private(...)"
        if method.server.uses_reach:
            return "its server derives gradients from updates, which clipping and noise prevent; remove private(...)"
        if method.local.collects() is not None:
            return "its devices send class statistics, which have no common clip norm; remove private(...)"
        return None

    def contribution(self, change: Tensor, releases: int, normals: Callable[[int], Floats]) -> Tensor:
        """f: the clipped change plus noise, or zeros once the budget is spent.

        The sum is computed in double precision and then rounded, so that the low bits of the noise stay on the device.
        NaN and infinity pass through to the check for divergence, which stops the device.
        """
        import torch

        if releases >= self.max_releases():
            return torch.zeros_like(change)
        exact = change.double()
        # With a norm of 0 the change is 0 already.
        clipped = exact * min(1.0, self.clip_norm / max(float(exact.norm()), 1e-300)) if _is_finite(exact) else exact
        noise = torch.from_numpy(normals(len(change))).to(change.device)
        return (clipped + self.noise * self.clip_norm * noise).to(change.dtype)

    def is_released(self, upload: Upload, *, uses_update: bool, releases: int) -> bool:
        """Whether a contact cost privacy. The contribution of every other contact is forgotten.

        It did if the contribution entered the memory, if anything was transmitted, or if the upload rule may have
        decided by the update to stay silent.
        """
        seen = upload.completes or upload.energy_joules > 0 or uses_update
        return seen and releases < self.max_releases()

    def epsilon(self, releases: int) -> float:
        """The guarantee after a number of releases, at `delta`."""
        return _epsilon(self.noise, self.delta, releases)

    def spent(self, releases: Sequence[int]) -> PrivacySpent:
        """What the devices of a fleet have spent after their numbers of releases."""
        return PrivacySpent(delta=self.delta, releases=list(releases), epsilon=[*map(self.epsilon, releases)])

    def max_releases(self) -> float:
        """The most releases within `max_epsilon`."""
        return math.inf if self.max_epsilon is None else _max_releases(self.noise, self.delta, self.max_epsilon)

    def reject_unusable(self, name: str, statistics: bool) -> None:
        """Reject a missing accountant, a budget below one release, and normalisation statistics."""
        _accountant()
        if statistics:
            rule = "private(...) needs a network without normalisation statistics: noise makes variances negative"
            raise ScenarioError("schemes", name, rule)
        if self.max_releases() < 1:
            rule = f"must be at least {self.epsilon(1):.4g}, the epsilon of one upload at this noise"
            raise ScenarioError("max_epsilon", self.max_epsilon, rule)


def privacy_report(method: Method, releases: int) -> dict[str, Any]:
    """What a device tells the server about its privacy; nothing if the method is not private."""
    rule = method.privacy
    return {} if rule is None else {"releases": releases, "epsilon": rule.epsilon(releases)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(vector: Tensor) -> bool:
    return bool(vector.isfinite().all())


@cache
def _epsilon(noise: float, delta: float, releases: int) -> float:
    if releases == 0:
        return 0.0
    # In its search the library takes the logarithm of a delta that underflows to 0.
    with np.errstate(divide="ignore"):
        return float(_accountant().get_epsilon_gaussian(noise / (2 * math.sqrt(releases)), delta))


@cache
def _max_releases(noise: float, delta: float, max_epsilon: float) -> int:
    sigma = _accountant().get_sigma_gaussian(max_epsilon, delta)
    found = int((noise / (2 * sigma)) ** 2)
    # The search for sigma has a tolerance.
    while _epsilon(noise, delta, found + 1) <= max_epsilon:
        found += 1
    while _epsilon(noise, delta, found) > max_epsilon:
        found -= 1
    return found


def _accountant() -> Any:
    try:
        # It takes seconds to import, and only private methods need it.
        import dp_accounting
    except ImportError:
        raise UnavailableError("private(...) needs dp-accounting: pip install 'wayfare[privacy]'") from None
    return dp_accounting
