"""Who holds which training samples (Section VI)."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.errors import ScenarioError
from wayfare.scenario.model import Partition
from wayfare.streams import FLEET, Stream, generator


def split(labels: Ints, classes: int, devices: int, partition: Partition, seed: int) -> list[Ints]:
    """The sample numbers of every device: equal sizes, class shares ~ Dirichlet(rho * class share of the whole set).

    Samples of a class are dealt from a shuffled deck. A sample goes to one device as long as the deck lasts; when the
    devices ask for more of a class than there is, its deck is dealt again from the top. So the shares are the drawn
    ones even where few devices hold all of a class, and sets are disjoint wherever the shares allow it.
    """
    size = len(labels) // devices
    if size == 0:
        raise ScenarioError("fleet.devices", devices, f"must not exceed the {len(labels)} training samples")
    whole = np.bincount(labels, minlength=classes) / len(labels)
    decks = [_Deck(np.flatnonzero(labels == label), seed, label) for label in range(classes)]
    held = []
    for device in range(devices):
        rng = generator(seed, Stream.CLASS_SHARES, device)
        counts = rng.multinomial(size, _shares(rng, partition.concentration * whole))
        held.append(np.concatenate([deck.deal(count) for deck, count in zip(decks, counts, strict=True)]))
    return held


def _shares(rng: np.random.Generator, alpha: Floats) -> Floats:
    """Gamma variables divided by their sum; when all underflow, the whole device is one class."""
    drawn = rng.gamma(alpha)
    if drawn.sum() > 0:
        return np.asarray(drawn / drawn.sum())
    return np.asarray(np.eye(len(alpha))[rng.choice(len(alpha), p=alpha / alpha.sum())])


class _Deck:
    """The samples of one class in a shuffled circle, dealt on from where the last device stopped."""

    def __init__(self, samples: Ints, seed: int, label: int) -> None:
        self._circle = generator(seed, Stream.SAMPLE_DECK, FLEET + label).permutation(samples)
        self._place = 0

    def deal(self, count: int) -> Ints:
        places = np.arange(self._place, self._place + count)
        self._place += count
        return np.asarray(self._circle.take(places, mode="wrap") if count else self._circle[:0])
