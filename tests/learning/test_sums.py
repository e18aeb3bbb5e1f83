"""Class statistics: what devices add up, and the classifiers that the sums give."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from wayfare.errors import ScenarioError
from wayfare.learning.sums import Sums, SumsModel, collect, linear_classifier
from wayfare.methods import Collection
from wayfare.methods.collection import CLASSIFIERS, Classifier

CLASSES, FEATURES = 3, 4
# Steps so small that rounding does not matter.
FINE = Sums(
    collection=Collection(classifier="lda", coarseness=1e-3, min_count=1),
    classes=CLASSES,
    features=FEATURES,
    samples=100,
)


def samples(count: int = 90, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    mixing = rng.standard_normal((FEATURES, FEATURES))
    inputs = 2 * np.eye(CLASSES, FEATURES)[labels] + rng.standard_normal((count, FEATURES)) @ mixing
    return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels)


def as_classifier(classifier: Classifier) -> Sums:
    return replace(FINE, collection=replace(FINE.collection, classifier=classifier))


def test_statistics_are_those_of_numpy_within_half_a_step() -> None:
    inputs, labels = samples()
    found = FINE.unpacked(collect(inputs, labels, FINE))
    values, classes = inputs.numpy().astype(np.float64), labels.numpy()
    means = np.stack([values[classes == label].mean(0) for label in range(CLASSES)])
    away = values - means[classes]
    assert (float(found.devices), float(found.freedom)) == (1, 87)
    assert found.counts.tolist() == [30, 30, 30]
    assert np.allclose(found.sums, 30 * means, atol=FINE.sum_step / 2 + 1e-5)
    assert np.allclose(found.products, away.T @ away, atol=FINE.product_step / 2 + 1e-4)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_vector_holds_whole_numbers_and_what_its_classifier_needs(classifier: Classifier) -> None:
    layout = replace(as_classifier(classifier), samples=40)
    vector = collect(*samples(), layout)
    assert len(vector) == layout.entries == SumsModel(layout).parameters
    assert torch.equal(vector, vector.round())
    counted = 2 + CLASSES * (1 + FEATURES)
    first = counted + (0 if classifier == "means" else FEATURES)
    assert layout.first == first
    assert layout.entries == first + (6 if classifier in ("lda", "ridge") else 0)


def test_discriminant_analysis_is_the_closed_form() -> None:
    inputs, labels = samples(9000)
    weights, bias = linear_classifier(collect(inputs, labels, FINE), FINE)
    values, classes = inputs.numpy().astype(np.float64), labels.numpy()
    means = np.stack([values[classes == label].mean(0) for label in range(CLASSES)])
    away = values - means[classes]
    exact = np.linalg.solve(away.T @ away / (9000 - CLASSES), means.T).T
    assert np.allclose(weights, exact, rtol=0.02, atol=0.01)
    assert np.allclose(bias, -0.5 * (exact * means).sum(1), rtol=0.02, atol=0.01)


def test_ridge_regression_is_least_squares_where_it_is_hardly_regularised() -> None:
    layout = as_classifier("ridge")
    inputs, labels = samples(9000)
    weights, bias = linear_classifier(collect(inputs, labels, layout), layout)
    with_one = np.column_stack([inputs.numpy().astype(np.float64), np.ones(9000)])
    exact = np.linalg.lstsq(with_one, np.eye(CLASSES)[labels.numpy()], rcond=None)[0]
    assert np.allclose(weights, exact[:-1].T, atol=0.005)
    assert np.allclose(bias, exact[-1], atol=0.005)


def test_means_and_variances_alone_give_the_simpler_classifiers() -> None:
    inputs, labels = samples(900)
    means = torch.stack([inputs[labels == label].double().mean(0) for label in range(CLASSES)])
    variances = torch.stack([inputs[labels == label].double().var(0) for label in range(CLASSES)]).mean(0)
    for name, expected in (("means", means), ("gaussian", means / variances)):
        layout = as_classifier(name)  # type: ignore[arg-type]
        weights, bias = linear_classifier(collect(inputs, labels, layout), layout)
        assert torch.allclose(weights.double(), expected, atol=1e-3)
        assert torch.allclose(bias.double(), -0.5 * (expected * means).sum(1), atol=1e-3)


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_no_statistics_give_no_opinion_and_a_class_without_samples_is_never_chosen(classifier: Classifier) -> None:
    layout = as_classifier(classifier)
    for numbers in linear_classifier(torch.zeros(layout.entries), layout):
        assert not numbers.any()
    inputs, labels = samples()
    two = labels < 2
    weights, bias = linear_classifier(collect(inputs[two], labels[two], layout), layout)
    chosen = (inputs @ weights.T + bias).argmax(1)
    assert set(chosen.tolist()) == {0, 1}
    one = collect(inputs[:1], labels[:1], layout)
    assert all(bool(numbers.isfinite().all()) for numbers in linear_classifier(one, layout))


def test_coarse_steps_leave_a_classifier_that_works() -> None:
    inputs, labels = samples(3000)
    coarse = replace(FINE, collection=Collection(coarseness=8.0), samples=3000)
    exact, rounded = (linear_classifier(collect(inputs, labels, layout), layout) for layout in (FINE, coarse))
    right = [
        float(((inputs @ weights.T + bias).argmax(1) == labels).float().mean()) for weights, bias in (exact, rounded)
    ]
    assert right[1] > right[0] - 0.05


@pytest.mark.parametrize("coarseness", [1e-3, 2.0])
def test_a_classifier_that_is_trained_on_is_solved_in_less_time_and_is_the_same(
    coarseness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single precision if rounding hides the difference, and otherwise the same bits as without training."""
    inputs, labels = samples(3000)
    alone = replace(FINE, collection=Collection(classifier="lda", coarseness=coarseness), samples=300)
    trained = replace(alone, collection=replace(alone.collection, trains=True))
    solve, solved_in = torch.linalg.eigh, []

    def solving(matrix: Tensor) -> tuple[Tensor, Tensor]:
        solved_in.append(matrix.dtype)
        return tuple(solve(matrix))

    monkeypatch.setattr("torch.linalg.eigh", solving)
    vector = collect(inputs, labels, alone)
    (weights, bias), (start, start_bias) = (linear_classifier(vector, layout) for layout in (alone, trained))
    assert solved_in == [torch.float64, torch.float32 if coarseness == 2.0 else torch.float64]
    if coarseness == 2.0:
        assert torch.allclose(start, weights, rtol=1e-4, atol=1e-5)
        assert torch.allclose(start_bias, bias, rtol=1e-4, atol=1e-5)
    else:
        assert torch.equal(start, weights)
        assert torch.equal(start_bias, bias)


@pytest.mark.parametrize("failure", ["nan", "wrong", "error"])
def test_a_solver_that_fails_in_single_precision_is_replaced_by_the_one_in_double_precision(
    failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MKL's does with one thread on some covariances whose products arrived in part."""
    inputs, labels = samples(3000)
    layout = replace(FINE, collection=Collection(classifier="lda", trains=True), samples=300)
    vector, solve = collect(inputs, labels, layout), torch.linalg.eigh
    expected = linear_classifier(vector, layout)

    def failing(matrix: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = solve(matrix)
        if matrix.dtype == torch.float64:
            return values, vectors
        if failure == "error":
            raise RuntimeError("the algorithm failed to converge")
        return values * (math.nan if failure == "nan" else 3), vectors * (math.nan if failure == "nan" else 1)

    monkeypatch.setattr("torch.linalg.eigh", failing)
    for found, single in zip(linear_classifier(vector, layout), expected, strict=True):
        assert torch.allclose(found, single, rtol=1e-4, atol=1e-5)


def test_products_of_too_many_features_are_rejected_before_they_take_the_memory() -> None:
    rule = r"^classifier = 'lda': products of 25,088 features are 314,691,328 entries; use gaussian or means, or a back"
    with pytest.raises(ScenarioError, match=rule):
        replace(FINE, features=25_088)
    replace(as_classifier("gaussian"), features=25_088)


def test_nothing_is_sent_about_a_class_with_fewer_samples_than_the_minimum() -> None:
    inputs, labels = samples(30)
    layout = replace(FINE, collection=replace(FINE.collection, min_count=10))
    few = torch.cat([labels[labels != 2], labels[labels == 2][:9]])
    values = torch.cat([inputs[labels != 2], inputs[labels == 2][:9]])
    without = collect(inputs[labels != 2], labels[labels != 2], layout)
    assert torch.equal(collect(values, few, layout), without)
    assert layout.unpacked(without).counts.tolist() == [10, 10, 0]
    assert not collect(inputs[:2], labels[:2], layout).any()


def test_new_samples_are_a_difference_of_whole_numbers() -> None:
    inputs, labels = samples()
    layout = replace(FINE, samples=20, collection=Collection(coarseness=1.0))
    before, after = collect(inputs[:50], labels[:50], layout), collect(inputs, labels, layout)
    assert torch.equal(before + (after - before), after)
    assert torch.equal(after - before, (after - before).round())


def test_sums_beyond_the_exact_range_are_refused() -> None:
    inputs, labels = samples()
    for factor in (1e6, 1e25):
        with pytest.raises(ScenarioError, match=r"^scale = 1.0: a sum has .* steps, and sums are exact below 16,777"):
            collect(factor * inputs, labels, FINE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("classifier", "svm"),
        ("coarseness", 0.0),
        ("coarseness", 1e-200),
        ("coarseness", "fine"),
        ("scale", -1.0),
        ("scale", 1e200),
        ("min_count", 0),
        ("min_count", True),
        ("pilot", -1),
    ],
)
def test_invalid_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ScenarioError, match=re.escape(f"{field} = {value!r}: must be")):
        Collection(**{field: value})  # type: ignore[arg-type]


def test_a_classifier_does_not_depend_on_the_number_of_threads() -> None:
    """A server in the field repeats its model from the uploads, possibly on another machine."""
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(np.arange(2000) % 10)
    inputs = torch.from_numpy(rng.standard_normal((2000, 300)).astype(np.float32))
    layout = Sums(collection=Collection(classifier="lda", trains=True), classes=10, features=300, samples=2000)
    vector, before = collect(inputs, labels, layout), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            found.append(torch.cat([part.flatten() for part in linear_classifier(vector, layout)]))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
