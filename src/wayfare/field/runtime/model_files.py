"""Model files of the server: there whole or not at all, believed only with their checksum."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.files import write_atomically

_log = logging.getLogger("wayfare.field")

Stored: TypeAlias = tuple[int, Tensor, NDArray[np.int64]]
"""A version, its model, and the version that last changed each entry."""


def write_model(folder: Path, version: int, model: Tensor, changed: NDArray[np.int64]) -> tuple[str, str]:
    """A new file of a version: its name and checksum. Only when both are committed elsewhere does it count."""
    buffer = io.BytesIO()
    np.savez(buffer, model=model.numpy(), changed=changed)
    data = buffer.getvalue()
    name = f"model-{version}.npz"
    write_atomically(folder / name, data)
    return name, hashlib.sha256(data).hexdigest()


def newest_model(folder: Path, named: Iterable[tuple[int, str, str]], entries: int) -> Stored | None:
    """The first of some named files that is whole; None if there is none, and then everything is replayed."""
    for version, name, sha256 in named:
        try:
            data = (folder / name).read_bytes()
            if hashlib.sha256(data).hexdigest() != sha256:
                raise ValueError("its checksum differs")
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                model, changed = arrays["model"].astype(np.float32), arrays["changed"].astype(np.int64)
            if len(model) != entries or len(changed) != entries:
                raise ValueError("it is of another size")
        except (OSError, ValueError, KeyError) as error:
            _log.warning("%s cannot be used (%s); an older one is", folder / name, error)
            continue
        return version, torch.from_numpy(model), changed
    return None
