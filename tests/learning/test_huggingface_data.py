"""Data sets of Hugging Face and frames of pandas, as they are and not as imitations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.learning.test_own_data import COLOURS, IMAGES, LABELS, ROWS, image_network, rows_network, task_of
from torch import nn
from torch.utils.data import Subset, TensorDataset

from wayfare.errors import InputError
from wayfare.identity.fingerprint import fingerprint
from wayfare.learning.tasks import own_task

datasets: Any = None
pandas: Any = None


@pytest.fixture(autouse=True, scope="module")
def _libraries() -> None:
    """Import them where these tests run. Every process collects them, and the import takes a second."""
    global datasets, pandas
    datasets = pytest.importorskip("datasets", reason="needs datasets: pip install 'wayfare[dev]'")
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install 'wayfare[dev]'")


TOKENS = np.random.default_rng(2).integers(0, 50, (30, 6))


def words_network() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(4 * 6, 3))


def rows_set(**more: Any) -> Any:
    return datasets.Dataset.from_dict({"x": ROWS.tolist(), "label": LABELS.tolist(), **more})


@pytest.mark.parametrize("form", [None, "numpy", "torch", "pandas"])
def test_a_data_set_with_inputs_and_labels_is_taken_in_every_format(form: str | None) -> None:
    task = task_of(rows_set().with_format(form))
    assert torch.equal(task.train[0], torch.from_numpy(ROWS))
    assert torch.equal(task.train[1], torch.from_numpy(LABELS))
    assert fingerprint(task.train) == fingerprint(task_of((ROWS, LABELS)).train)


def test_columns_are_taken_as_a_pair() -> None:
    data = rows_set(vehicle=[f"cab{number % 4}" for number in range(30)])
    task = task_of((data["x"], data["label"]), vehicles=data["vehicle"])
    assert task.division is not None
    assert task.division.vehicles == ("cab0", "cab1", "cab2", "cab3")


def test_set_format_chooses_the_columns() -> None:
    data = rows_set(noise=[0.5] * 30)
    data.set_format("torch", columns=["x", "label"])
    assert torch.equal(task_of(data).train[0], torch.from_numpy(ROWS))


def test_images_and_names_of_classes_are_taken() -> None:
    from PIL import Image

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=COLOURS)})
    images = [Image.fromarray(image) for image in IMAGES]
    data = datasets.Dataset.from_dict({"image": images, "label": LABELS.tolist()}, features=features)
    task = task_of(data, image_network)
    assert torch.equal(task.train[0], torch.from_numpy(IMAGES).permute(0, 3, 1, 2))
    assert torch.equal(task.train[1], torch.from_numpy(LABELS))


def test_tokens_are_taken() -> None:
    task = task_of(datasets.Dataset.from_dict({"input_ids": TOKENS.tolist(), "labels": LABELS.tolist()}), words_network)
    assert torch.equal(task.train[0], torch.from_numpy(TOKENS))


def test_the_splits_of_a_dictionary_are_taken_by_their_names() -> None:
    data = datasets.DatasetDict(train=rows_set(), test=rows_set().select(range(10)))
    alone = own_task("mine", train=data, network=rows_network)
    for task in (task_of(data), alone):
        assert (len(task.train[1]), len(task.test[1])) == (30, 10)


def test_a_missing_test_set_is_told() -> None:
    with pytest.raises(InputError, match="mine: test = None: must be test data"):
        own_task("mine", train=rows_set(), network=rows_network)
    with pytest.raises(InputError, match="test: has train; give one of them"):
        own_task("mine", train=datasets.DatasetDict(train=rows_set()), network=rows_network)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: datasets.DatasetDict(train=rows_set(), validation=rows_set()),
            r"test: has train, validation; give one of them, such as data\['validation'\]",
        ),
        (
            lambda: rows_set(noise=[0.5] * 30),
            r"have the columns x, label, noise; .*\(data\['x'\], data\['label'\]\)",
        ),
        (lambda: rows_set().rename_column("label", "kind"), r"have the columns x, kind; .*data\['kind'\]"),
        (lambda: rows_set().to_iterable_dataset(), "is a stream without a length"),
        (
            lambda: datasets.Dataset.from_dict({"x": [[0.0] * (1 + n % 2) for n in range(30)], "label": [0] * 30}),
            r"sample 1 has the shape \(2,\) and the first one \(1,\)",
        ),
        (
            lambda: datasets.Dataset.from_dict({"text": ["a word"] * 30, "label": LABELS.tolist()}),
            "must be numbers, not <U6; encode them first",
        ),
        (lambda: rows_set().select(range(0)), "has no samples"),
    ],
)
def test_what_cannot_be_taken_is_told_precisely(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        task_of(make())


def test_frames_of_pandas_are_taken_as_a_pair() -> None:
    frame = pandas.DataFrame(ROWS, columns=list("abcd")).assign(colour=[COLOURS[label] for label in LABELS])
    task = task_of((frame.drop(columns="colour"), frame["colour"]), vehicles=frame["colour"])
    assert task.class_names == ("blue", "green", "red")
    assert torch.equal(task.train[0], torch.from_numpy(ROWS))
    with pytest.raises(InputError, match=r"is a single frame \(columns a, b, c, d, colour\)"):
        task_of(frame)


def test_data_sets_of_pytorch_are_taken() -> None:
    tensors = torch.from_numpy(ROWS), torch.from_numpy(LABELS)
    assert torch.equal(task_of(TensorDataset(*tensors)).train[0], tensors[0])
    assert torch.equal(task_of(Subset(TensorDataset(*tensors), [4, 2])).train[1], tensors[1][[4, 2]])
    with pytest.raises(InputError, match="must be a pair of an input and a target; the first one has 3 parts"):
        task_of(TensorDataset(*tensors, tensors[1]))


class Tables(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples as dictionaries, as many tutorials write them."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {"values": ROWS[place], "target": int(LABELS[place])}


def test_samples_of_pytorch_that_are_dictionaries_are_taken() -> None:
    assert torch.equal(task_of(Tables(), rows_network).train[1], torch.from_numpy(LABELS))
