from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import wayfare
from wayfare.errors import ScenarioError
from wayfare.learning.batches import Batches, check_batch_size
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.partition import split
from wayfare.learning.tasks.fashion_small import fashion_small
from wayfare.scenario.partition import DirichletPartition
from wayfare.streams import Stream, generator
from wayfare.world import draw_world

LABELS = np.repeat(np.arange(10), 1000)


def test_the_embedded_images_are_the_promised_ones() -> None:
    task = fashion_small((256, 128))
    assert task.train_inputs.shape == (10_000, 196)
    assert task.test_inputs.shape == (2_000, 196)
    assert torch.bincount(task.train_labels).tolist() == [1000] * 10
    assert torch.bincount(task.test_labels).tolist() == [200] * 10
    assert task.model.parameters == 84_618
    assert float(task.train_inputs.mean()) == pytest.approx(0, abs=1e-5)
    assert float(task.train_inputs.std()) == pytest.approx(1, abs=1e-4)


def test_the_embedded_file_holds_the_same_pixels_as_ever() -> None:
    from importlib.resources import files

    with np.load(str(files("wayfare.learning.tasks") / "data" / "fashion_small.npz")) as archive:
        pixels = archive["train"].tobytes() + archive["test"].tobytes()
    assert hashlib.sha256(pixels).hexdigest()[:16] == "da3963960bf535f4"


def test_a_perceptron_and_its_flat_vector_are_the_same_function() -> None:
    model = Mlp((5, 4, 3))
    vector = model.initial(generator(0, Stream.INITIAL_MODEL, 0))
    assert len(vector) == model.parameters == 5 * 4 + 4 + 4 * 3 + 3
    module = model.module()
    nn.utils.vector_to_parameters(vector, module.parameters())
    inputs = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    w1, b1, w2, b2 = vector.split([20, 4, 12, 3])
    by_hand = torch.relu(inputs @ w1.view(4, 5).T + b1) @ w2.view(3, 4).T + b2
    torch.testing.assert_close(module(inputs), by_hand)


def test_initial_weights_have_the_bounds_of_pytorch() -> None:
    model = Mlp((100, 50, 10))
    pieces = model.initial(generator(4, Stream.INITIAL_MODEL, 0)).split([5000, 50, 500, 10])
    for inputs, weights, biases in ((100, pieces[0], pieces[1]), (50, pieces[2], pieces[3])):
        bound = inputs**-0.5
        assert 0.9 * bound < float(weights.abs().max()) <= bound
        assert float(biases.abs().max()) <= bound


@pytest.mark.parametrize(("rho", "largest"), [(0.1, 0.94), (1.0, 0.66), (10.0, 0.29)])
def test_class_shares_are_as_skewed_as_the_paper_has_them(rho: float, largest: float) -> None:
    labels = np.repeat(np.arange(10), 20_000)
    held = split(labels, 10, 400, DirichletPartition(concentration=rho), seed=0)
    counts = np.array([np.bincount(labels[samples], minlength=10) for samples in held])
    assert np.all(counts.sum(axis=1) == len(labels) // 400)
    assert (counts.max(axis=1) / counts.sum(axis=1)).mean() == pytest.approx(largest, abs=0.02)


def test_samples_are_shared_only_where_a_class_runs_out() -> None:
    held = split(LABELS, 10, 20, DirichletPartition(concentration=1e6), seed=0)
    whole = np.concatenate(held)
    times = np.bincount(whole, minlength=len(LABELS))
    demand = np.bincount(LABELS[whole], minlength=10)
    for label in range(10):
        mine = times[label == LABELS]
        assert mine.max() - mine.min() <= 1
        assert (mine.max() > 1) == (demand[label] > 1000)
    for samples in split(LABELS, 10, 20, DirichletPartition(concentration=0.01), seed=0):
        assert len(np.unique(samples)) == len(samples)


def test_a_device_holds_the_same_shares_in_a_larger_fleet() -> None:
    few, many = (split(LABELS, 10, devices, DirichletPartition(concentration=0.01), seed=3) for devices in (10, 20))
    assert [LABELS[samples[0]] for samples in few[:10]] == [LABELS[samples[0]] for samples in many[:10]]


def test_more_devices_than_samples_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"fleet.devices = 10001: must not exceed the 10000 training samples"):
        split(LABELS, 10, 10_001, DirichletPartition(), seed=0)


def test_minibatches_depend_on_device_and_round_alone() -> None:
    held = [np.arange(100), np.arange(100, 150)]
    long, short = Batches(held, 8, 50, seed=1), Batches(held[:1], 8, 20, seed=1)
    assert np.array_equal(long.of(0, 3, 5), short.of(0, 3, 5))
    assert np.array_equal(long.of(0, 4, 1)[0], long.of(0, 3, 2)[1])
    assert set(long.of(1, 1, 50).ravel()) <= set(held[1])
    assert not np.array_equal(long.of(0, 1, 1), Batches(held, 8, 50, seed=2).of(0, 1, 1))


def test_a_device_with_fewer_samples_than_a_minibatch_still_trains() -> None:
    assert Batches([np.array([7])], 8, 3, seed=0).of(0, 1, 3).shape == (3, 8)


def test_a_batch_larger_than_the_training_set_is_refused_at_once() -> None:
    scenario = wayfare.load("fashion-small", ["learning.batch_size=10001"])
    with pytest.raises(
        ScenarioError, match=r"learning.batch_size = 10001: must not exceed the 10,000 training samples"
    ):
        draw_world(scenario, seed=0)


def test_a_batch_larger_than_the_data_of_every_device_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    scenario = wayfare.load("fashion-small", ["learning.batch_size=501", "fleet.devices=20", "rounds=5"])
    for seed in range(2):
        draw_world(scenario, seed)
    warning = "learning.batch_size = 501: no device holds more than 500 samples, so every minibatch repeats some"
    assert caplog.messages == [warning]
    # Some devices may hold less.
    check_batch_size(8, [np.arange(3), np.arange(8)], 100)
    assert len(caplog.messages) == 1


def test_evaluation_counts_what_is_right() -> None:
    task = fashion_small((16,))
    result = Evaluator(task)(torch.zeros(task.model.parameters))
    assert result.score == pytest.approx(0.1)
    assert result.loss == pytest.approx(np.log(10), rel=1e-5)
