"""Model files of the server: written atomically, accepted only with a correct checksum."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.field.runtime.aggregation import Snapshot, changed_at
from wayfare.field.runtime.database import tree_bytes, tree_of
from wayfare.files import write_atomically
from wayfare.server import ServerState

EXPORTS = "exports"
_log = logging.getLogger("wayfare.field")


def write_model(folder: Path, snapshot: Snapshot) -> tuple[str, str]:
    """Write a file for a version; return its name and checksum, which the ledger must commit."""
    state, buffer = snapshot.state, io.BytesIO()
    arrays: dict[str, NDArray[np.generic]] = {
        "model": state.model.numpy(),
        "changed": snapshot.changed,
        "round": np.array(snapshot.round),
        "rule_state": np.frombuffer(tree_bytes(state.rule_state), np.uint8),
        "guard_state": np.frombuffer(tree_bytes(state.guard_state), np.uint8),
    }
    if state.averaged is not None:
        arrays["averaged"] = state.averaged.numpy()
    np.savez(buffer, allow_pickle=False, **arrays)
    data = buffer.getvalue()
    name = f"model-{snapshot.version}.npz"
    write_atomically(folder / name, data)
    return name, hashlib.sha256(data).hexdigest()


def export_file(folder: Path, version: int, model: Tensor) -> str:
    """Write the vector of a version for other programs; return the file's name."""
    buffer, name = io.BytesIO(), f"{EXPORTS}/{version}.npy"
    np.save(buffer, model.numpy(), allow_pickle=False)
    (folder / EXPORTS).mkdir(exist_ok=True)
    for old in (folder / EXPORTS).glob("*.npy"):
        old.unlink(missing_ok=True)
    write_atomically(folder / name, buffer.getvalue())
    return name


def newest_model(folder: Path, named: Iterable[tuple[int, str, str]], entries: int | None = None) -> Snapshot | None:
    """The first valid one of some registered files; None if there is none, so that everything is replayed."""
    for version, name, sha256 in named:
        try:
            data = (folder / name).read_bytes()
            if hashlib.sha256(data).hexdigest() != sha256:
                raise ValueError("wrong checksum")
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                vectors = {key: arrays[key] for key in ("model", "changed", "averaged") if key in arrays}
                round_, rule_state = int(arrays["round"]), tree_of(arrays["rule_state"].tobytes())
                guard_state = tree_of(arrays["guard_state"].tobytes())
            if entries is not None and any(len(vector) != entries for vector in vectors.values()):
                raise ValueError("wrong size")
        except (OSError, ValueError, KeyError) as error:
            _log.warning("%s is invalid (%s); using an older one", folder / name, error)
            continue
        averaged = torch.from_numpy(vectors["averaged"]) if "averaged" in vectors else None
        model = torch.from_numpy(vectors["model"])
        state = ServerState(model=model, rule_state=rule_state, averaged=averaged, guard_state=guard_state)
        return Snapshot(version=version, round=round_, state=state, changed=changed_at(version, vectors["changed"]))
    return None
