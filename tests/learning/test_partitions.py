from __future__ import annotations

import numpy as np
import pytest

import wayfare
from wayfare.errors import ScenarioError
from wayfare.learning.partition import class_counts, split
from wayfare.learning.tasks import load_task
from wayfare.scenario.partition import (
    AnyPartition,
    DirichletPartition,
    GroupPartition,
    IidPartition,
    ShardPartition,
    SharedPartition,
)
from wayfare.streams import FLEET, Stream, generator
from wayfare.world.holding import held_samples

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 1000))
KINDS = [DirichletPartition(), DirichletPartition(dealing="once"), IidPartition(), ShardPartition(), GroupPartition()]


@pytest.mark.parametrize("partition", KINDS, ids=lambda partition: partition.kind)
def test_every_partition_gives_every_device_samples_and_repeats(partition: AnyPartition) -> None:
    held, again, other = (split(LABELS, 10, 20, partition, seed) for seed in (5, 5, 6))
    assert all(len(samples) == 500 for samples in held)
    assert all(np.array_equal(one, two) for one, two in zip(held, again, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(held, other, strict=True))
    assert all(len(np.unique(samples)) == len(samples) for samples in held)


@pytest.mark.parametrize("partition", KINDS[1:], ids=lambda partition: partition.kind)
def test_no_sample_has_two_owners(partition: AnyPartition) -> None:
    whole = np.concatenate(split(LABELS, 10, 20, partition, seed=1))
    assert len(np.unique(whole)) == len(whole) == len(LABELS)


def test_devices_that_share_samples_may_outnumber_them() -> None:
    labels = np.tile(np.arange(10), 20)
    partition = SharedPartition(samples_per_device=8, concentration=0.5)
    held, again, other = (split(labels, 10, 500, partition, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(one, two) for one, two in zip(held, again, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(held, other, strict=True))
    # No device holds a sample twice, and all samples are used alike.
    assert {len(np.unique(samples)) for samples in held} == {8}
    owners = np.bincount(np.concatenate(held)).reshape(20, 10)
    assert np.all(owners.max(axis=0) - owners.min(axis=0) <= 1)
    # A device's samples do not depend on the number of devices.
    assert np.array_equal(split(labels, 10, 3, partition, 5)[2], held[2])


def test_a_scenario_may_have_more_devices_than_samples() -> None:
    shared = ["learning.partition.kind=shared", "learning.partition.samples_per_device=8", "learning.batch_size=8"]
    scenario = wayfare.load("fashion-small", [*shared, "fleet.devices=10001", "rounds=2", "learning.hidden=[4]"])
    assert len(held_samples(scenario, load_task(scenario.learning), 0)) == 10_001


def test_independent_devices_hold_every_class_alike() -> None:
    counts = class_counts(LABELS, 10, split(LABELS, 10, 20, IidPartition(), seed=0))
    # Hypergeometric: 500 of 10,000 with 1,000 of each class, so 50 with a deviation of 6.5.
    assert counts.shape == (20, 10)
    assert counts.mean() == 50
    assert 5 < counts.std() < 8


@pytest.mark.parametrize("shards_per_device", [1, 2, 5])
def test_shards_limit_the_classes_of_a_device(shards_per_device: int) -> None:
    partition = ShardPartition(shards_per_device=shards_per_device)
    counts = class_counts(LABELS, 10, split(LABELS, 10, 20, partition, seed=0))
    assert (counts > 0).sum(axis=1).max() <= shards_per_device
    assert np.all(counts.sum(axis=1) == 500)


def test_a_shard_that_straddles_two_classes_holds_both() -> None:
    counts = class_counts(LABELS, 10, split(LABELS, 10, 7, ShardPartition(shards_per_device=1), seed=0))
    assert (counts > 0).sum(axis=1).max() == 3
    assert np.all(counts.sum(axis=1) == 10_000 // 7)


def test_groups_get_devices_by_their_size_and_never_mix() -> None:
    # As two cities might be: one holds three quarters of the scenes, and a third one none.
    groups = np.repeat([0, 2], [750, 250])
    held = split(groups, 3, 8, GroupPartition(), seed=0)
    counts = class_counts(groups, 3, held)
    assert np.all((counts > 0).sum(axis=1) == 1)
    assert (counts > 0).sum(axis=0).tolist() == [6, 0, 2]
    assert counts.sum(axis=0).tolist() == [750, 0, 250]


def test_a_small_group_still_gets_a_device() -> None:
    groups = np.repeat([0, 1], [9_990, 10])
    counts = class_counts(groups, 2, split(groups, 2, 5, GroupPartition(), seed=0))
    assert sorted(counts[:, 1].tolist()) == [0, 0, 0, 0, 10]


@pytest.mark.parametrize(
    ("partition", "devices", "message"),
    [
        (
            IidPartition(),
            10_001,
            "fleet.devices = 10001: must not exceed the 10000 training samples, unless devices share them"
            " (learning.partition.kind = shared)",
        ),
        (
            SharedPartition(samples_per_device=10_001),
            20,
            "learning.partition.samples_per_device = 10001: must not exceed the 10000 training samples",
        ),
        (GroupPartition(), 9, "fleet.devices = 9: must be at least 10, one device per group"),
        (
            ShardPartition(shards_per_device=1000),
            20,
            "learning.partition.shards_per_device = 1000: 20 devices with this many shards each need more than",
        ),
    ],
)
def test_partitions_that_cannot_be_are_refused(partition: AnyPartition, devices: int, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        split(LABELS, 10, devices, partition, seed=0)
    assert message in str(caught.value)


def test_a_scenario_that_does_not_say_its_kind_has_the_papers() -> None:
    scenario = wayfare.load(overrides=["learning.partition.concentration=0.3"])
    assert scenario.learning.partition == DirichletPartition(concentration=0.3)


def test_another_kind_replaces_the_whole_partition_of_a_preset() -> None:
    scenario = wayfare.load("paper-cifar10-waypoint", ["learning.partition.kind=shards"])
    assert scenario.learning.partition == ShardPartition(shards_per_device=2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "learning.partition.kind=fair",
            "learning.partition.kind = 'fair': must be one of dirichlet, iid, shards, by-gr",
        ),
        (
            "learning.partition.shards_per_device=3",
            "learning.partition.shards_per_device = 3: unknown key; known keys:",
        ),
        ("learning.partition=iid", "learning.partition = 'iid': input should be an object"),
    ],
)
def test_bad_partitions_are_named(setting: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        wayfare.load(overrides=[setting])
    assert message in str(caught.value)


@pytest.mark.parametrize("concentration", [1e-4, 0.1, 1.0, 100.0])
def test_a_divided_set_gives_every_sample_to_one_device(concentration: float) -> None:
    labels = np.repeat(np.arange(10), [700, 100, *[150] * 8])
    held = split(labels, 10, 20, DirichletPartition(concentration=concentration, dealing="once"), seed=4)
    assert {len(samples) for samples in held} == {100}
    assert sorted(np.concatenate(held)) == list(range(2000))


def test_shares_of_a_divided_set_are_drawn_as_those_of_any_other_until_classes_are_used_up() -> None:
    labels = np.tile(np.arange(10), 1000)
    few = [
        class_counts(labels, 10, split(labels, 10, 20, DirichletPartition(concentration=0.1, dealing=dealing), seed=2))
        for dealing in ("shares", "once")
    ]
    # The first device finds everything there; the last ones find what is left.
    assert (few[0][0] == few[1][0]).all()
    assert (few[1].sum(axis=0) == 1000).all()
    assert (few[0].sum(axis=0) != 1000).any()
    # Data are as unlike as before.
    assert few[1].max(axis=1).mean() > 0.75 * 500


def test_there_may_be_as_many_devices_as_samples_groups_or_shards() -> None:
    labels = np.array([0, 1, 2, 0])
    for partition in (IidPartition(), ShardPartition(shards_per_device=1), DirichletPartition(dealing="once")):
        assert sorted(np.concatenate(split(labels, 3, 4, partition, seed=0))) == [0, 1, 2, 3]
    groups = split(np.array([0, 1, 1, 3]), 4, 3, GroupPartition(), seed=0)
    assert sorted(map(sorted, groups)) == [[0], [1, 2], [3]]


@pytest.mark.parametrize("concentration", [0.3, 50.0])
def test_decks_are_dealt_from_the_top_one_device_after_the_other(concentration: float) -> None:
    labels = np.repeat(np.arange(3), [40, 25, 35])
    held = split(labels, 3, 6, DirichletPartition(concentration=concentration), seed=9)
    circles = [
        generator(9, Stream.SAMPLE_DECK, FLEET + label).permutation(np.flatnonzero(labels == label))
        for label in range(3)
    ]
    dealt = [0, 0, 0]
    for device, samples in enumerate(held):
        rng = generator(9, Stream.CLASS_SHARES, device)
        drawn = rng.gamma(concentration * np.array([0.40, 0.25, 0.35]))
        expected = []
        for label, count in enumerate(rng.multinomial(16, drawn / drawn.sum())):
            expected += [circles[label][(dealt[label] + place) % len(circles[label])] for place in range(count)]
            dealt[label] += count
        assert samples.tolist() == expected


def test_the_first_device_of_a_divided_set_gets_its_shares_and_the_last_what_is_left() -> None:
    labels = np.repeat(np.arange(3), [40, 25, 35])
    held = split(labels, 3, 6, DirichletPartition(concentration=2.0, dealing="once"), seed=9)
    rng = generator(9, Stream.CLASS_SHARES, 0)
    drawn = rng.gamma(2.0 * np.array([0.40, 0.25, 0.35]))
    first = np.bincount(labels[held[0]], minlength=3)
    assert first.tolist() == rng.multinomial(16, drawn / drawn.sum()).tolist()
    assert [len(samples) for samples in held] == [16] * 6
    assert len(np.unique(np.concatenate(held))) == 96


def test_shares_that_all_underflow_give_one_class_by_its_share() -> None:
    labels = np.repeat(np.arange(2), [900, 300])
    counts = class_counts(labels, 2, split(labels, 2, 400, DirichletPartition(concentration=1e-9), seed=0))
    assert np.all(counts.max(axis=1) == 3)
    assert (counts[:, 0] == 3).mean() == pytest.approx(0.75, abs=0.08)


def test_independent_devices_cut_one_deck() -> None:
    deck = generator(3, Stream.SAMPLE_DECK, FLEET).permutation(11)
    held = split(np.zeros(11, np.int64), 1, 3, IidPartition(), seed=3)
    assert [samples.tolist() for samples in held] == [deck[:3].tolist(), deck[3:6].tolist(), deck[6:9].tolist()]


def test_shards_are_cut_from_samples_in_the_order_of_their_classes() -> None:
    labels = np.array([2, 0, 1, 0, 2, 1, 0])
    held = split(labels, 3, 3, ShardPartition(shards_per_device=2), seed=0)
    rng = generator(0, Stream.SAMPLE_DECK, FLEET)
    shuffled = rng.permutation(7).tolist()
    by_class = sorted(shuffled, key=lambda sample: labels[sample])
    dealt = rng.permutation(6)
    assert [samples.tolist() for samples in held] == [
        [by_class[shard] for shard in dealt[2 * device : 2 * device + 2]] for device in range(3)
    ]


def test_the_next_device_goes_to_the_group_with_the_most_samples_for_each() -> None:
    groups = np.repeat([0, 1, 2], [10, 4, 3])
    held = split(groups, 3, 6, GroupPartition(), seed=0)
    # Samples for each device: 10, 4, 3, then 5, 4, 3, then 3.3, 4, 3, then 3.3, 2, 3.
    assert sorted(len(samples) for samples in held) == [2, 2, 3, 3, 3, 3]
    counts = class_counts(groups, 3, held)
    assert (counts > 0).sum(axis=0).tolist() == [3, 2, 1]


def test_the_last_sample_of_a_class_goes_by_the_drawn_shares() -> None:
    labels = np.arange(4)
    for seed in range(20):
        first, *_ = split(labels, 4, 4, DirichletPartition(concentration=0.01, dealing="once"), seed=seed)
        drawn = generator(seed, Stream.CLASS_SHARES, 0).gamma(0.01 * np.full(4, 0.25))
        assert drawn[labels[first]] == drawn.max()
