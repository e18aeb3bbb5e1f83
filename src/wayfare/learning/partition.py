"""Partitions of the training samples among the devices (Section VI)."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.errors import ScenarioError
from wayfare.scenario.partition import (
    Dealt,
    DirichletPartition,
    GroupPartition,
    IidPartition,
    ShardPartition,
    SharedPartition,
)
from wayfare.streams import FLEET, Stream, generator


def split(labels: Ints, classes: int, devices: int, partition: Dealt, seed: int) -> list[Ints]:
    if isinstance(partition, SharedPartition):
        size = partition.samples_per_device
        if size > len(labels):
            rule = f"must not exceed the {len(labels)} training samples"
            raise ScenarioError("learning.partition.samples_per_device", size, rule)
        return _dirichlet(labels, classes, devices, size, partition.concentration, seed)
    if devices > len(labels):
        rule = f"must not exceed the {len(labels)} training samples, unless devices share them"
        raise ScenarioError("fleet.devices", devices, f"{rule} (learning.partition.kind = shared)")
    size = len(labels) // devices
    match partition:
        case DirichletPartition():
            deal = _dirichlet if partition.dealing == "shares" else _dirichlet_once
            return deal(labels, classes, devices, size, partition.concentration, seed)
        case IidPartition():
            return _iid(len(labels), devices, seed)
        case ShardPartition():
            return _shards(labels, devices, partition.shards_per_device, seed)
        case GroupPartition():
            return _by_group(labels, classes, devices, seed)


def class_counts(labels: Ints, classes: int, held: list[Ints]) -> Ints:
    """The number of samples of each class on every device, (devices, classes)."""
    return np.array([np.bincount(labels[samples], minlength=classes) for samples in held], dtype=np.int64)


def _dirichlet(labels: Ints, classes: int, devices: int, size: int, concentration: float, seed: int) -> list[Ints]:
    """Equal sizes, class shares ~ Dirichlet(rho * class share of the whole set).

    Samples of a class are dealt from a shuffled deck. Each sample goes to one device while the deck lasts. If devices
    need more samples of a class than there are, its deck is dealt again from the top. So every device gets its drawn
    shares, and sets are disjoint where the shares allow it.
    """
    whole = np.bincount(labels, minlength=classes) / len(labels)
    decks = [_Deck(np.flatnonzero(labels == label), seed, label) for label in range(classes)]
    held = []
    for device in range(devices):
        rng = generator(seed, Stream.CLASS_SHARES, device)
        counts = rng.multinomial(size, _shares(rng, concentration * whole))
        held.append(np.concatenate([deck.deal(count) for deck, count in zip(decks, counts, strict=True)]))
    return held


def _dirichlet_once(labels: Ints, classes: int, devices: int, size: int, concentration: float, seed: int) -> list[Ints]:
    """Equal sizes, every sample on one device; drawn shares apply to the classes that still have samples."""
    sizes = np.bincount(labels, minlength=classes)
    decks = [_Deck(np.flatnonzero(labels == label), seed, label) for label in range(classes)]
    left, held = sizes.copy(), []
    for device in range(devices):
        rng = generator(seed, Stream.CLASS_SHARES, device)
        shares, taken = _shares(rng, concentration * sizes / len(labels)), np.zeros(classes, dtype=np.int64)
        while (missing := size - int(taken.sum())) > 0:
            offered = np.where(left > 0, shares, 0.0)
            if offered.sum() == 0:
                # No sample of its drawn classes is left: draw from the remaining ones in proportion.
                offered = left / left.sum()
            part = np.minimum(rng.multinomial(missing, offered / offered.sum()), left)
            taken, left = taken + part, left - part
        held.append(np.concatenate([deck.deal(int(count)) for deck, count in zip(decks, taken, strict=True)]))
    return held


def _iid(samples: int, devices: int, seed: int) -> list[Ints]:
    """A shuffled deck cut into equal parts; the few remaining samples are unused."""
    size = samples // devices
    deck = generator(seed, Stream.SAMPLE_DECK, FLEET).permutation(samples)
    return list(deck[: devices * size].reshape(devices, size))


def _shards(labels: Ints, devices: int, shards_per_device: int, seed: int) -> list[Ints]:
    """Samples sorted by class and shuffled within each, cut into equal shards that are dealt at random."""
    shards = devices * shards_per_device
    size = len(labels) // shards
    if size == 0:
        rule = f"{devices} devices with this many shards each need more than the {len(labels)} training samples"
        raise ScenarioError("learning.partition.shards_per_device", shards_per_device, rule)
    rng = generator(seed, Stream.SAMPLE_DECK, FLEET)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    cut = by_class[: shards * size].reshape(shards, size)
    return [np.concatenate(list(cut[mine])) for mine in rng.permutation(shards).reshape(devices, shards_per_device)]


def _by_group(labels: Ints, classes: int, devices: int, seed: int) -> list[Ints]:
    """Assign devices to groups in proportion to size, at least one each; the devices of a group share it equally."""
    sizes = np.bincount(labels, minlength=classes)
    groups = np.flatnonzero(sizes)
    if devices < len(groups):
        raise ScenarioError("fleet.devices", devices, f"must be at least {len(groups)}, one device per group")
    counts = _devices_per_group(sizes[groups], devices)
    held = []
    for group, count in zip(groups, counts, strict=True):
        members = generator(seed, Stream.SAMPLE_DECK, FLEET + int(group)).permutation(np.flatnonzero(labels == group))
        size = len(members) // count
        held += list(members[: count * size].reshape(count, size))
    # The group of a device does not depend on its number.
    order = generator(seed, Stream.CLASS_SHARES, FLEET).permutation(devices)
    return [held[index] for index in order]


def _devices_per_group(sizes: Ints, devices: int) -> Ints:
    """One device each, and every further device to the group with most samples per device."""
    counts = np.ones(len(sizes), dtype=np.int64)
    for _ in range(devices - len(sizes)):
        counts[np.argmax(sizes / counts)] += 1
    return counts


def _shares(rng: np.random.Generator, alpha: Floats) -> Floats:
    """Gamma variables divided by their sum; if all underflow, the device gets one class only."""
    drawn = rng.gamma(alpha)
    if drawn.sum() > 0:
        return np.asarray(drawn / drawn.sum())
    return np.asarray(np.eye(len(alpha))[rng.choice(len(alpha), p=alpha / alpha.sum())])


class _Deck:
    """The samples of one class in a shuffled circle; each deal continues where the last one stopped."""

    def __init__(self, samples: Ints, seed: int, label: int) -> None:
        self._circle = generator(seed, Stream.SAMPLE_DECK, FLEET + label).permutation(samples)
        self._next = 0

    def deal(self, count: int) -> Ints:
        indices = np.arange(self._next, self._next + count)
        self._next += count
        # Not `take` with mode="wrap", which subtracts the length of the circle once per round.
        return np.asarray(self._circle[indices % len(self._circle)] if count else self._circle[:0])
