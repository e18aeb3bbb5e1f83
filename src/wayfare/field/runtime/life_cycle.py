"""Models for other programs: the vector of a version, and the network that it fills, as safetensors or ONNX."""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.errors import FieldError, InputError
from wayfare.field.fleet.subjects import SERVER_NAME
from wayfare.field.runtime.housekeeping import Judge
from wayfare.field.runtime.ledger import FILE
from wayfare.field.runtime.model_files import newest_model
from wayfare.field.runtime.orders import outcome, place
from wayfare.field.runtime.released import ReleaseState
from wayfare.field.runtime.status import Judged
from wayfare.files import write_atomically
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.models.base import Model, load_vector
from wayfare.learning.sums import SumsModel, task_of_sums, with_model
from wayfare.learning.tasks import Classification, Task, is_local, load_task, local_task_of
from wayfare.learning.tasks.local import folder_task
from wayfare.learning.tasks.own import OwnTask
from wayfare.scenario.model import Learning
from wayfare.server import ServerState


def ledger_in(folder: Path) -> Path:
    """The ledger in the folder of a server's state, or in that of a fleet whose server runs from it."""
    for state in (folder, folder / "state", folder / SERVER_NAME / "state"):
        if (state / FILE).is_file():
            return state / FILE
    rule = "give the folder of the server's state, or of the fleet if the server's state is in it"
    raise InputError(f"{folder}: no ledger; {rule}")


def latest_version(state: Path) -> int:
    if not (state / FILE).is_file():
        raise InputError(f"{state}: no ledger; give the folder of the server's state")
    with closing(sqlite3.connect(f"file:{state / FILE}?mode=ro", uri=True, timeout=30)) as connection:
        return int(connection.execute("SELECT coalesce(max(version), 0) FROM rounds").fetchone()[0])


def vector_at(state: Path, version: int, model: Model, *, wait_s: float = 60.0) -> Tensor:
    """The model of a version that is evaluated and exported: from a model file, or from the running server."""
    with closing(sqlite3.connect(f"file:{state / FILE}?mode=ro", uri=True, timeout=30)) as connection:
        named = connection.execute("SELECT version, file, sha256 FROM models WHERE version = ?", (version,)).fetchall()
    found = newest_model(state, named)
    vector = _replayed(state, version, wait_s) if found is None else found.state.judged
    entries = model.parameters + model.statistics
    if len(vector) != entries:
        rule = "give the server's task, scheme, scenario and settings"
        raise InputError(f"version {version} has {len(vector)} entries, the network of this scenario {entries}; {rule}")
    return vector


def _replayed(state: Path, version: int, wait_s: float) -> Tensor:
    number = place(state / FILE, "export", {"version": version})
    answer = outcome(state / FILE, number, wait_s)
    if answer is None:
        raise FieldError(f"{state}: no server replayed version {version} within {wait_s:g} s; is it running?")
    kind, _, rest = answer.partition(": ")
    if kind != "done":
        raise InputError(rest)
    return torch.from_numpy(np.load(state / rest, allow_pickle=False))


def judge_of(
    learning: Learning,
    model: Model,
    data: Path | None = None,
    cache: Path | None = None,
    *,
    initial: Tensor | None = None,
) -> Judge:
    """Evaluates versions on held-out data, for which a cache is needed, or on the test set of a task.

    ``initial`` is the untrained model, whose loss tells which changes of the loss are small.
    """
    if data is None or cache is None:
        task: Task = load_task(learning)
        if isinstance(model, SumsModel):
            task, _ = task_of_sums(task, model.layout.collection, learning.task)
            task = with_model(task, model)
    else:
        task = folder_task(replace(local_task_of(learning), model=model), data, cache)
    evaluate = Evaluator(task)

    @lru_cache(1)
    def untrained_loss() -> float | None:
        return None if initial is None else evaluate(initial).loss

    def judge(version: int, model: Tensor) -> Judged:
        found, name = evaluate(model), task.metric.name
        return Judged(version=version, metric=name, score=found.score, loss=found.loss, untrained_loss=untrained_loss())

    return judge


def newest_state(state: Path) -> ServerState:
    """The state in the newest model file, which the server writes every few seconds."""
    with closing(sqlite3.connect(f"file:{state / FILE}?mode=ro", uri=True, timeout=30)) as connection:
        named = connection.execute("SELECT version, file, sha256 FROM models ORDER BY version DESC").fetchall()
    found = newest_model(state, named)
    return ServerState(model=torch.zeros(0)) if found is None else found.state


def groups_of(state: Path) -> Mapping[str, Sequence[str]]:
    """The groups of devices for releases."""
    latest_version(state)  # rejects a folder without a ledger
    with closing(sqlite3.connect(f"file:{state / FILE}?mode=ro", uri=True, timeout=30)) as connection:
        rows = connection.execute("SELECT value FROM facts WHERE name = 'released'").fetchall()
    return ReleaseState(**json.loads(rows[0][0])).groups if rows else {}


def sample_of(learning: Learning) -> Tensor:
    """One input of the network of a task, as its exporter needs it."""
    if is_local(learning):
        local = local_task_of(learning)
        return local.form.converted(local.form.arranged(local.sample[None]), torch.float32)[0]
    task = load_task(learning)
    if isinstance(task, Classification):
        return task.train_inputs[0]
    if isinstance(task, OwnTask):
        return task.form.converted(task.train[0][:1], torch.float32)[0]
    raise InputError(f"learning.task = {learning.task!r}: has no single input tensor, which ONNX needs")


def network_of(model: Model, vector: Tensor) -> nn.Module:
    """The network with the values of a vector; of class statistics, the classifier that they give."""
    if isinstance(model, SumsModel) and model.trained is None:
        layer = nn.Linear(model.layout.features, model.layout.classes)
        load_vector(layer, model.classifier(vector))
        return layer.eval()
    module = model.module().eval()
    load_vector(module, vector)
    return module


def write_safetensors(module: nn.Module, file: Path, version: int, **metadata: str) -> None:
    try:
        from safetensors.torch import save
    except ImportError:
        raise InputError("safetensors is not installed: pip install 'wayfare[field]'") from None
    tensors = {name: value.detach().contiguous().clone() for name, value in module.state_dict().items()}
    write_atomically(file, save(tensors, metadata={"version": str(version), **metadata}))


def write_onnx(module: nn.Module, sample: Tensor, file: Path) -> None:
    """Export for batches of any size."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise InputError("onnx is not installed: pip install 'wayfare[onnx]'") from None
    part, names = file.with_name(f".{file.name}.part"), ["inputs"]
    with warnings.catch_warnings():
        # PyTorch's newer exporter takes ten seconds for a perceptron and needs another package.
        warnings.simplefilter("ignore", DeprecationWarning)
        axes = {"inputs": {0: "batch"}}
        torch.onnx.export(module, (sample[None],), part, input_names=names, dynamic_axes=axes, dynamo=False)
    part.replace(file)
