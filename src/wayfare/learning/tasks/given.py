"""Conversion of user data to tensors: arrays, frames, lists, images and data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.errors import InputError

Data: TypeAlias = object
"""A pair of inputs and targets, or a data set of such pairs. Each may be anything that NumPy accepts as an array."""

_RULE = "must be a pair of arrays, or a data set of PyTorch or Hugging Face, with at least one sample"
# Usual names of target columns.
_TARGETS = ("label", "labels", "target", "targets")


@runtime_checkable
class _Items(Sized, Protocol):
    """A data set of PyTorch or torchvision: pairs of an input and a target, by number."""

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class _Table(Sized, Protocol):
    """A data set of Hugging Face: samples by number, columns by name."""

    @property
    def column_names(self) -> Any: ...

    def __getitem__(self, key: Any, /) -> Any: ...


@runtime_checkable
class _Column(Protocol):
    """A frame or series of pandas or a similar library."""

    def to_numpy(self) -> NDArray[Any]: ...


@runtime_checkable
class _Frame(_Column, Protocol):
    @property
    def columns(self) -> Any: ...

    def __getitem__(self, name: Any, /) -> Any: ...


def read_pair(data: Data, name: str, part: str) -> tuple[Tensor, Tensor | list[str]]:
    """Inputs, and targets as numbers or strings. Raises InputError if the data are invalid.

    ``part`` is `train` or `test`, and selects an entry of a dictionary of data sets.
    """
    where = f"{name}: {part}"
    if isinstance(data, Mapping):
        data = _split_of(data, part, where)
    if isinstance(data, _Frame):
        columns = ", ".join(map(str, data.columns))
        raise InputError(
            f"{where}: is a single frame (columns {columns}); give inputs and targets as a pair, such as "
            "(frame.drop(columns='target'), frame['target'])"
        )
    is_pair = isinstance(data, tuple | list) and len(data) == 2 and not all(isinstance(each, tuple) for each in data)
    if is_pair:
        inputs, targets = data[0], data[1]  # type: ignore[index]
    elif isinstance(data, _Items) and not isinstance(data, Tensor | np.ndarray | str):
        if not len(data):
            raise InputError(f"{where}: has no samples; {_RULE}")
        inputs, targets = _of_table(data, where) if isinstance(data, _Table) else _of_items(data, where)
    elif isinstance(data, Iterable) and not isinstance(data, Sized):
        raise InputError(f"{where}: is a stream without a length; first read its samples into arrays or a data set")
    else:
        raise InputError(f"{where}: {_RULE}")
    values, judged_by = _array(inputs, f"{where}: inputs"), _array(targets, f"{where}: targets")
    if len(values) != len(judged_by) or not len(values):
        raise InputError(f"{where}: has {len(values)} inputs and {len(judged_by)} targets")
    if not isinstance(judged_by, Tensor) and judged_by.dtype.kind in "OUS":
        return _tensor(values, f"{where}: inputs"), _texts(judged_by, where)
    whole_or_real = _tensor(judged_by, f"{where}: targets")
    return (
        _tensor(values, f"{where}: inputs"),
        whole_or_real if whole_or_real.is_floating_point() else whole_or_real.long(),
    )


def _split_of(data: Mapping[Any, Any], part: str, where: str) -> Data:
    """The entry `part` of a dictionary of data sets."""
    if part not in data:
        names = [*data]
        raise InputError(
            f"{where}: has {', '.join(map(str, names))}; give one of them, such as data[{names[-1]!r}], or a pair"
            if names
            else f"{where}: is empty; {_RULE}"
        )
    return data[part]


def _of_table(data: _Table, where: str) -> tuple[Any, Any]:
    """The inputs and targets of a Hugging Face data set, in any format."""
    # A format may omit columns, so look at a row.
    inputs, targets = _two_columns([*map(str, data[:1])], where)
    return data[inputs], data[targets]


def _of_items(data: _Items, where: str) -> tuple[list[Any], list[Any]]:
    """The inputs and targets of a PyTorch data set, whose samples are pairs or dictionaries of two."""
    first = data[0]
    one: Any = 0
    other: Any = 1
    if isinstance(first, Mapping):
        one, other = _two_columns([*first], where)
    elif not isinstance(first, tuple | list) or len(first) != 2:
        what = f"has {len(first)} parts" if isinstance(first, tuple | list) else f"is a {type(first).__name__}"
        raise InputError(f"{where}: a sample must be a pair of an input and a target; the first one {what}")
    items = [data[index] for index in range(len(data))]
    return [item[one] for item in items], [item[other] for item in items]


def _two_columns(names: Sequence[Any], where: str) -> tuple[Any, Any]:
    """The names of the input and the target column; tables with other columns are ambiguous."""
    targets = [name for name in names if name in _TARGETS]
    if len(names) == 2 and len(targets) == 1:
        return next(name for name in names if name not in targets), targets[0]
    target = targets[0] if targets else names[-1]
    columns = ", ".join(map(str, names))
    example = f"(data[{names[0]!r}], data[{target!r}])"
    raise InputError(f"{where}: samples have the columns {columns}; give a pair, such as {example}")


def _array(values: Any, where: str) -> Tensor | NDArray[Any]:
    match values:
        case Tensor():
            return values.detach().cpu()
        case _Frame():
            return _rows(values, where)
        case _Column():
            column = values.to_numpy()
            # The entries of a column may be arrays.
            return _array([*column], where) if column.dtype == object and np.ndim(column[0]) else column
        case str() | bytes() | Mapping():
            raise InputError(f"{where}: must be an array, not {type(values).__name__}")
        case _ if hasattr(values, "__array__") or hasattr(values, "__array_interface__"):
            return np.asarray(values)
        case Sequence() if len(values) and not isinstance(values[0], int | float | str):
            rows = [np.asarray(each.detach().cpu() if isinstance(each, Tensor) else each) for each in values]
            for number, row in enumerate(rows):
                if row.shape != rows[0].shape:
                    raise InputError(
                        f"{where}: sample {number} has the shape {row.shape} and the first one {rows[0].shape}; all "
                        "samples need the same shape"
                    )
            return np.stack(rows)
        case Sequence():
            return np.asarray(values)
    raise InputError(f"{where}: must be an array, not {type(values).__name__}")


def _rows(frame: _Frame, where: str) -> NDArray[Any]:
    """A frame as an array, built column by column, because mixed types would give an array of objects."""
    columns = {str(name): np.asarray(frame[name]) for name in frame.columns}
    texts = [name for name, column in columns.items() if column.dtype.kind not in "fiub"]
    if texts and len(columns) > 1:
        raise InputError(f"{where}: the columns {', '.join(texts)} are not numeric; encode or drop them")
    return np.stack([*columns.values()], axis=1)


def _tensor(values: Tensor | NDArray[Any], where: str) -> Tensor:
    """Numbers in types that networks and losses accept; bytes stay bytes."""
    if not isinstance(values, Tensor):
        if values.dtype.kind not in "fiub":
            raise InputError(f"{where}: must be numbers, not {values.dtype}; encode them first")
        if values.dtype.kind in "ui" and values.dtype != np.uint8:
            values = values.astype(np.int64)
        values = torch.from_numpy(np.array(values, order="C"))
    return values.float() if values.is_floating_point() else values


def _texts(values: NDArray[Any], where: str) -> list[str]:
    labels = values.reshape(len(values), -1)
    if labels.shape[1] != 1 or not all(isinstance(label, str | bytes) for label in labels[:, 0]):
        raise InputError(f"{where}: targets must be numbers, or one string per sample, not {values.dtype}")
    return [label.decode() if isinstance(label, bytes) else str(label) for label in labels[:, 0]]


def encode_texts(train: list[str], test: list[str] | Tensor, where: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Encode string labels as numbers in alphabetical order; also return their names."""
    names = tuple(sorted(set(train)))
    if isinstance(test, Tensor) or not set(test) <= set(names):
        unknown = "numbers" if isinstance(test, Tensor) else ", ".join(sorted(set(test) - set(names)))
        raise InputError(f"{where}: test has labels that train does not have: {unknown}")
    numbers = {name: number for number, name in enumerate(names)}
    return *(torch.tensor([numbers[label] for label in labels]) for labels in (train, test)), names  # type: ignore[return-value]


def encode_numbers(train: Tensor, test: Tensor, outputs: int, where: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Map labels outside 0 to `outputs` - 1 to numbers from 0 on, and return their names.

    Labels that start at 0 stay unchanged and have no names.
    """
    low, high = int(torch.cat([train, test]).min()), int(torch.cat([train, test]).max())
    if int(train.min()) == 0 or (low >= 0 and high < outputs):
        return train, test, ()
    found = train.unique()
    if len(found) == outputs:
        names = tuple(str(int(label)) for label in found)
    elif low >= 1 and high == outputs:
        names, found = tuple(map(str, range(1, outputs + 1))), torch.arange(1, outputs + 1)
    else:
        raise InputError(
            f"{where}: has {len(found)} labels from {low} to {high}, but the network has {outputs} outputs per sample; "
            f"use labels from 0 to {outputs - 1}"
        )
    unknown = sorted(set(test.tolist()) - set(found.tolist()))
    if unknown:
        raise InputError(f"{where}: test has labels that train does not have: {', '.join(map(str, unknown))}")
    return torch.searchsorted(found, train), torch.searchsorted(found, test), names
