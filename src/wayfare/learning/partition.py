"""Who holds which training samples (Section VI)."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.errors import ScenarioError
from wayfare.scenario.partition import Dealt, DirichletPartition, GroupPartition, IidPartition, ShardPartition
from wayfare.streams import FLEET, Stream, generator


def split(labels: Ints, classes: int, devices: int, partition: Dealt, seed: int) -> list[Ints]:
    if devices > len(labels):
        raise ScenarioError("fleet.devices", devices, f"must not exceed the {len(labels)} training samples")
    match partition:
        case DirichletPartition():
            deal = _dirichlet if partition.dealing == "shares" else _dirichlet_once
            return deal(labels, classes, devices, partition.concentration, seed)
        case IidPartition():
            return _iid(len(labels), devices, seed)
        case ShardPartition():
            return _shards(labels, devices, partition.shards_per_device, seed)
        case GroupPartition():
            return _by_group(labels, classes, devices, seed)


def class_counts(labels: Ints, classes: int, held: list[Ints]) -> Ints:
    """How many samples of each class every device holds, (devices, classes)."""
    return np.array([np.bincount(labels[samples], minlength=classes) for samples in held], dtype=np.int64)


def _dirichlet(labels: Ints, classes: int, devices: int, concentration: float, seed: int) -> list[Ints]:
    """Equal sizes, class shares ~ Dirichlet(rho * class share of the whole set).

    Samples of a class are dealt from a shuffled deck. A sample goes to one device as long as the deck lasts; when the
    devices ask for more of a class than there is, its deck is dealt again from the top. So the shares are the drawn
    ones even where few devices hold all of a class, and sets are disjoint wherever the shares allow it.
    """
    size = len(labels) // devices
    whole = np.bincount(labels, minlength=classes) / len(labels)
    decks = [_Deck(np.flatnonzero(labels == label), seed, label) for label in range(classes)]
    held = []
    for device in range(devices):
        rng = generator(seed, Stream.CLASS_SHARES, device)
        counts = rng.multinomial(size, _shares(rng, concentration * whole))
        held.append(np.concatenate([deck.deal(count) for deck, count in zip(decks, counts, strict=True)]))
    return held


def _dirichlet_once(labels: Ints, classes: int, devices: int, concentration: float, seed: int) -> list[Ints]:
    """Equal sizes, every sample with one device; shares are drawn as above, and count among what is left."""
    size = len(labels) // devices
    sizes = np.bincount(labels, minlength=classes)
    decks = [_Deck(np.flatnonzero(labels == label), seed, label) for label in range(classes)]
    left, held = sizes.copy(), []
    for device in range(devices):
        rng = generator(seed, Stream.CLASS_SHARES, device)
        shares, taken = _shares(rng, concentration * sizes / len(labels)), np.zeros(classes, dtype=np.int64)
        while (missing := size - int(taken.sum())) > 0:
            offered = np.where(left > 0, shares, 0.0)
            if offered.sum() == 0:
                # All that it was drawn to hold is gone; what is left has the same claim on it.
                offered = left / left.sum()
            part = np.minimum(rng.multinomial(missing, offered / offered.sum()), left)
            taken, left = taken + part, left - part
        held.append(np.concatenate([deck.deal(int(count)) for deck, count in zip(decks, taken, strict=True)]))
    return held


def _iid(samples: int, devices: int, seed: int) -> list[Ints]:
    """A shuffled deck cut into equal parts; the few samples that are left over go to nobody."""
    size = samples // devices
    deck = generator(seed, Stream.SAMPLE_DECK, FLEET).permutation(samples)
    return list(deck[: devices * size].reshape(devices, size))


def _shards(labels: Ints, devices: int, shards_per_device: int, seed: int) -> list[Ints]:
    """Sorted by class, in a random order within each; shards of equal size, dealt at random."""
    shards = devices * shards_per_device
    size = len(labels) // shards
    if size == 0:
        rule = f"{devices} devices with so many shards each need more than the {len(labels)} training samples"
        raise ScenarioError("learning.partition.shards_per_device", shards_per_device, rule)
    rng = generator(seed, Stream.SAMPLE_DECK, FLEET)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    cut = by_class[: shards * size].reshape(shards, size)
    return [np.concatenate(list(cut[mine])) for mine in rng.permutation(shards).reshape(devices, shards_per_device)]


def _by_group(labels: Ints, classes: int, devices: int, seed: int) -> list[Ints]:
    """Devices are given to groups by their size, at least one to each; the devices of a group share it equally."""
    sizes = np.bincount(labels, minlength=classes)
    groups = np.flatnonzero(sizes)
    if devices < len(groups):
        raise ScenarioError("fleet.devices", devices, f"must be at least the {len(groups)} groups, a device for each")
    seats = _seats(sizes[groups], devices)
    held = []
    for group, seat in zip(groups, seats, strict=True):
        members = generator(seed, Stream.SAMPLE_DECK, FLEET + int(group)).permutation(np.flatnonzero(labels == group))
        size = len(members) // seat
        held += list(members[: seat * size].reshape(seat, size))
    # Which device is in which group has nothing to do with its number.
    order = generator(seed, Stream.CLASS_SHARES, FLEET).permutation(devices)
    return [held[place] for place in order]


def _seats(sizes: Ints, devices: int) -> Ints:
    """One device each, and the next always to the group with the most samples for each of its devices."""
    seats = np.ones(len(sizes), dtype=np.int64)
    for _ in range(devices - len(sizes)):
        seats[np.argmax(sizes / seats)] += 1
    return seats


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
