"""Common formats of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wayfare.errors import InputError
from wayfare.identity.fingerprint import fingerprint
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.tasks import class_names, own_task
from wayfare.learning.tasks.base import ACCURACY, Metric
from wayfare.learning.tasks.own import OwnTask

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((30, 4)).astype(np.float32)
LABELS = np.arange(30) % 3
IMAGES = RNG.integers(0, 256, (30, 6, 5, 3), dtype=np.uint8)  # height, width, channels
COLOURS = ["red", "green", "blue"]


def rows_network() -> nn.Module:
    return nn.Linear(4, 3)


def image_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 4 * 3, 3))


def grey_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 4 * 3, 3))


def words_network() -> nn.Module:
    return nn.Sequential(nn.Embedding(256, 4), nn.Flatten(), nn.Linear(4 * 4, 3))


def task_of(data: object, network: object = rows_network, **more: Any) -> OwnTask:
    return own_task("mine", **{"train": data, "test": data, "network": network, **more})  # type: ignore[arg-type]


def loss_of(task: OwnTask) -> float:
    return Evaluator(task)(task.model.initial(np.random.default_rng(1))).loss


class Series:
    """A column of pandas, as far as it matters here."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def to_numpy(self) -> np.ndarray:
        return self.values

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.values

    def __len__(self) -> int:
        return len(self.values)


class Frame:
    """A frame of pandas, as far as it matters here."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        return [*self._columns]

    def __getitem__(self, name: str) -> Series:
        return Series(self._columns[name])

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def to_numpy(self) -> np.ndarray:
        return np.stack([column.astype(object) for column in self._columns.values()], axis=1)


@dataclass
class Items(torch.utils.data.Dataset[Any]):
    """A data set by number."""

    inputs: Any
    targets: Any
    as_item: Callable[[Any, Any], Any] = lambda one, other: (one, other)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> Any:
        return self.as_item(self.inputs[place], self.targets[place])


def frame(**more: np.ndarray) -> Frame:
    return Frame({f"x{number}": column for number, column in enumerate(ROWS.T)} | more)


def data_of_every_kind() -> Iterator[Any]:
    yield pytest.param([ROWS, LABELS], id="list")
    yield pytest.param((torch.from_numpy(ROWS), torch.from_numpy(LABELS)), id="tensors")
    yield pytest.param((ROWS.tolist(), LABELS.tolist()), id="lists of numbers")
    yield pytest.param((ROWS.astype(np.float64), LABELS.astype(np.uint16)), id="other types")
    yield pytest.param((frame(), Series(LABELS)), id="frame and series")
    yield pytest.param((frame(), Frame({"y": LABELS})), id="two frames")
    yield pytest.param(Items(ROWS, LABELS), id="data set")
    yield pytest.param(
        torch.utils.data.TensorDataset(torch.from_numpy(ROWS), torch.from_numpy(LABELS)), id="tensor data set"
    )
    yield pytest.param(list(zip(ROWS, LABELS, strict=True)), id="list of pairs")
    yield pytest.param((list(ROWS), [int(label) for label in LABELS]), id="lists of rows")


@pytest.mark.parametrize("data", [*data_of_every_kind()])
def test_all_kinds_of_data_give_the_same_task(data: object) -> None:
    task = task_of(data)
    assert loss_of(task) == loss_of(task_of((ROWS, LABELS)))
    assert task.class_of_samples().tolist() == LABELS.tolist()


@pytest.mark.parametrize("labels", [LABELS + 1, LABELS * 10 - 10, (LABELS + 1).reshape(-1, 1)])
def test_labels_are_counted_from_0_on(labels: np.ndarray) -> None:
    task = task_of((ROWS, labels))
    assert loss_of(task) == loss_of(task_of((ROWS, LABELS)))
    assert class_names(task) == tuple(str(label) for label in np.unique(labels))


def test_labels_may_be_texts() -> None:
    words = np.array(COLOURS)[LABELS]
    for labels in (words, words.astype(object), words.tolist(), Series(words.astype(object))):
        task = task_of((ROWS, labels))
        assert class_names(task) == ("blue", "green", "red")
        assert loss_of(task) == loss_of(task_of((ROWS, 2 - LABELS)))


def test_labels_that_a_loss_of_ones_own_takes_stay_as_they_are() -> None:
    def distance(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.sum(dim=1) - targets).abs().mean()

    task = task_of((ROWS, LABELS - 1), loss=distance, score=distance, metric=Metric(name="distance", better="lower"))
    assert task.train[1].tolist() == (LABELS - 1).tolist()
    assert task.class_of_samples().tolist() == LABELS.tolist()


def test_bytes_are_images_for_a_network_that_takes_images() -> None:
    expected = loss_of(task_of((IMAGES.transpose(0, 3, 1, 2).astype(np.float32) / 255, LABELS), image_network))
    for images in (IMAGES, IMAGES.transpose(0, 3, 1, 2)):
        task = task_of((images, LABELS), image_network)
        assert task.train[0].dtype == torch.uint8
        assert loss_of(task) == pytest.approx(expected, rel=1e-6)
    grey = IMAGES[..., 0]
    task = task_of((grey, LABELS), grey_network)
    assert loss_of(task) == pytest.approx(
        loss_of(task_of((grey[:, None].astype(np.float32) / 255, LABELS), grey_network)), rel=1e-6
    )
    module = task.model.module().double()
    assert task.loss(module, torch.arange(4)).dtype == torch.float64


def test_data_sets_of_torchvision_need_no_transform() -> None:
    image = pytest.importorskip("PIL.Image")
    pictures = Items([image.fromarray(pixels) for pixels in IMAGES], LABELS.tolist())
    assert loss_of(task_of(pictures, image_network)) == loss_of(task_of((IMAGES, LABELS), image_network))


def test_whole_numbers_are_words_or_numbers_as_the_network_takes_them() -> None:
    numbers = RNG.integers(0, 200, (30, 4))
    assert loss_of(task_of((numbers, LABELS))) == loss_of(task_of((numbers.astype(np.float32), LABELS)))
    words = loss_of(task_of((numbers, LABELS), words_network))
    assert loss_of(task_of((numbers.astype(np.uint8), LABELS), words_network)) == words


def test_frames_may_mix_types_of_numbers() -> None:
    mixed = Frame({"a": ROWS[:, 0], "b": LABELS, "c": LABELS > 1, "d": ROWS[:, 3]})
    expected = np.stack([ROWS[:, 0], LABELS, LABELS > 1, ROWS[:, 3]], axis=1).astype(np.float32)
    assert torch.equal(task_of((mixed, Series(LABELS))).train[0], torch.from_numpy(expected))


def test_a_ready_network_begins_every_run_with_its_weights() -> None:
    network = rows_network()
    task = task_of((ROWS, LABELS), network)
    first, second = (task.model.initial(np.random.default_rng(seed)) for seed in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first[:12].view(3, 4), network.weight)  # type: ignore[arg-type]
    assert fingerprint(task) == fingerprint(task_of((ROWS, LABELS), network))
    with torch.no_grad():
        network.weight.add_(1)  # type: ignore[operator,union-attr]
    assert torch.equal(task.model.initial(np.random.default_rng(0)), first)
    assert fingerprint(task) != fingerprint(task_of((ROWS, LABELS), network))


def with_hole(values: np.ndarray, hole: float = np.nan) -> np.ndarray:
    changed = values.astype(np.float32)
    changed[[7, 9], ..., -1:] = hole
    return changed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": (with_hole(ROWS), LABELS)},
            "mine: train: NaN in the inputs of 2 of 30 samples; the first has index 7",
        ),
        ({"test": (with_hole(ROWS, np.inf), LABELS)}, "mine: test: infinity in the inputs of 2 of 30 samples"),
        (
            {"train": (ROWS, with_hole(ROWS[:, :3])), "loss": nn.functional.mse_loss},
            "mine: train: NaN in the targets of 2 of 30 samples",
        ),
        (
            {"train": frame(price=LABELS)},
            "mine: train: is a single frame (columns x0, x1, x2, x3, price); give inputs and",
        ),
        (
            {"train": (frame(town=np.array(["a"] * 30)), LABELS)},
            "mine: train: inputs: the columns town are not numeric",
        ),
        (
            {"train": Items(ROWS, LABELS, lambda one, other: {"row": one, "kind": other})},
            "mine: train: samples have the columns row, kind; give a pair, such as (data['row'], data['kind'])",
        ),
        ({"train": Items(ROWS, LABELS, lambda one, other: one)}, "a sample must be a pair of an input"),
        (
            {"train": ([ROWS[0], ROWS[1, :3]], [0, 1])},
            "mine: train: inputs: sample 1 has the shape (3,) and the first one (4,)",
        ),
        ({"train": (["a"] * 30, LABELS)}, "mine: train: inputs: must be numbers, not <U1"),
        ({"train": ({"x": ROWS}, LABELS)}, "mine: train: inputs: must be an array, not dict"),
        ({"train": (ROWS, LABELS + 4)}, "mine: test has labels that train does not have: 0, 1, 2"),
        ({"train": (ROWS, LABELS * 2 + 1), "test": (ROWS, LABELS + 7)}, "test has labels that train does not have: 7"),
        ({"test": (ROWS, np.array(COLOURS)[LABELS])}, "the targets of train are numbers and those of test are strings"),
        (
            {"train": (ROWS, np.array(["red", "blue"] * 15)), "test": (ROWS, np.array(COLOURS)[LABELS])},
            "mine: test has labels that train does not have: green",
        ),
        (
            {"train": (ROWS[:, :3], LABELS)},
            "mine: the network does not accept a batch of shape (2, 3) and type float32",
        ),
    ],
)
def test_data_that_cannot_be_used_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        task_of((ROWS, LABELS), **changes)
    assert message in str(caught.value)


class WrongCall(nn.Module):
    """Fails on every input."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.words(words).mean(1, mask=None)  # type: ignore[no-any-return, call-overload]


def test_a_network_that_fails_is_reported_for_every_form_tried() -> None:
    words = torch.zeros(30, 4, dtype=torch.int64)
    with pytest.raises(InputError, match=r"type int64; as given: mean\(\) got.*; as real numbers: .*'indices'"):
        own_task("mine", train=(words, LABELS), test=(words, LABELS), network=WrongCall)


@pytest.mark.parametrize("metric", [None, "f1"])
def test_a_score_needs_a_metric_that_says_what_is_better(metric: Any) -> None:
    with pytest.raises(InputError, match=rf'metric = {metric!r}: must .*`metric=wayfare.Metric\(name="\w+", better'):
        task_of((ROWS, LABELS), score=masked, metric=metric)


def test_labels_that_the_network_has_no_output_for_are_named() -> None:
    with pytest.raises(InputError, match=r"mine: has 5 labels from 1 to 5, but the network has 3 outputs"):
        task_of((ROWS, np.arange(30) % 5 + 1))
    task = task_of((ROWS, np.arange(30) % 5))
    with pytest.raises(InputError, match=r"mine: labels go up to 4, but the outputs of the network have shape \(3,\)"):
        task.loss(rows_network(), torch.arange(30))


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    seen = ~targets.isnan()
    return (outputs - targets.nan_to_num()).square()[seen].mean()


def test_missing_values_that_a_loss_leaves_out_are_accepted() -> None:
    assert np.isfinite(loss_of(task_of((ROWS, with_hole(ROWS[:, :3])), loss=masked)))


def test_test_samples_that_the_network_does_not_accept_are_rejected_at_once() -> None:
    with pytest.raises(InputError, match=r"mine: test: the network does not accept a batch of shape \(2, 3\)"):
        task_of(None, train=(ROWS, LABELS), test=(ROWS[:, :3], LABELS))


def test_test_samples_may_have_another_shape_that_the_network_accepts() -> None:
    def mean_network() -> nn.Module:
        return nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Linear(4, 3))

    longer = np.repeat(ROWS, 2, axis=1)
    task = task_of(None, mean_network, train=(ROWS, LABELS), test=(longer, LABELS))
    assert np.isfinite(loss_of(task))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": nn.MSELoss}, r"mine: loss = MSELoss: is a class; write MSELoss\(\)"),
        ({"loss": "mse"}, "mine: loss = 'mse': must be a function"),
        ({"others": {"mae": nn.L1Loss}}, r"mine: others\.mae = L1Loss: is a class"),
        ({"score": 3, "metric": ACCURACY}, "mine: score = 3: must be a function"),
        ({"loss": nn.Bilinear(3, 3, 1)}, "mine: loss = Bilinear: has parameters, which devices would not train"),
    ],
)
def test_a_loss_or_metric_that_cannot_be_called_is_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        task_of((ROWS, LABELS), **given)


def one_output() -> nn.Module:
    return nn.Linear(4, 1)


def two_results() -> nn.Module:
    class Twice(nn.Linear):
        def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            out = super().forward(rows)
            return out, out

    return Twice(4, 3)


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs.flatten(), (targets > 0).float())


@pytest.mark.parametrize(
    ("network", "labels", "loss", "shown"),
    [
        (one_output, LABELS, logistic, r"has outputs of shape \(1,\) per sample"),
        (lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), LABELS, logistic, r"has outputs of shape \(\)"),
        (two_results, LABELS, lambda outputs, targets: outputs[0].sum(), "returns tuple"),
        (lambda: nn.Linear(4, 2), LABELS - 1, logistic, "the labels go from -1 to 1"),
    ],
    ids=["one output", "no axis", "tuple", "negative"],
)
def test_an_accuracy_that_the_outputs_do_not_hold_is_rejected(
    network: Callable[[], nn.Module], labels: np.ndarray, loss: Any, shown: str
) -> None:
    with pytest.raises(InputError, match=f"mine: score = None: is the accuracy for integer targets.*{shown}"):
        task_of((ROWS, labels), network, loss=loss)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def ranked(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that compares pairs of samples on purpose."""
    return ((outputs - outputs.T) * (targets[:, None] < targets[None])).relu().mean()


@pytest.mark.parametrize(
    ("network", "targets"),
    [(one_output, ROWS[:, 0]), (lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), ROWS[:, :1])],
    ids=["column of outputs", "column of targets"],
)
def test_a_loss_or_score_that_compares_all_pairs_by_broadcasting_is_rejected(
    network: Callable[[], nn.Module], targets: np.ndarray
) -> None:
    with pytest.raises(InputError, match="mine: loss: compares all pairs of outputs of shape"):
        task_of((ROWS, targets), network, loss=squared)
    with pytest.raises(InputError, match=r"mine: others\.mse: compares all pairs"):
        task_of((ROWS, targets), network, loss=nn.functional.mse_loss, others={"mse": squared})


def test_a_loss_may_compare_pairs_on_purpose() -> None:
    assert np.isfinite(loss_of(task_of((ROWS, ROWS[:, 0]), one_output, loss=ranked)))


def test_tensors_of_a_loss_follow_the_task_to_a_device() -> None:
    task = task_of((ROWS, LABELS), loss=nn.CrossEntropyLoss(weight=torch.ones(3)))
    moved = task.to(torch.device("meta")).loss_of
    assert isinstance(moved, nn.CrossEntropyLoss)
    assert moved.weight is not None
    assert moved.weight.device.type == "meta"
    assert task.to(torch.device("cpu")).loss_of is task.loss_of


def test_a_task_shows_its_size_and_not_its_data() -> None:
    shown = repr(task_of((ROWS, LABELS)))
    assert shown == "<OwnTask mine: 30 training samples, 30 test samples, 15 parameters, accuracy>"
