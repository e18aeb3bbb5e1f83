"""The life of a model: exported, evaluated, rolled back, backed up and restored, by commands beside the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import wayfare
from tests.field.parts import aggregation
from tests.field.test_ledger import deliver
from wayfare.cli.field import field_app
from wayfare.errors import FieldError, InputError, RunFolderError
from wayfare.field.runtime.backup import back_up, restore
from wayfare.field.runtime.ledger import FILE, Ledger
from wayfare.field.runtime.messages import Chunk, layout_of
from wayfare.field.runtime.orders import place
from wayfare.learning.models.base import load_vector
from wayfare.learning.tasks import model_of
from wayfare.methods.guard import Guard
from wayfare.records.lock import RunLock
from wayfare.sparsify import Sparse
from wayfare.streams import FLEET, Stream, generator

NETWORK = "learning.hidden=[4]"
LEARNING = wayfare.load("fashion-small", [NETWORK]).learning
MODEL = model_of(LEARNING)
LAYOUT = layout_of("fashion-small", MODEL)

OWN = f"""
import torch, wayfare
from wayfare.learning.tasks import model_of
network = model_of(wayfare.load("fashion-small", ["{NETWORK}"]).learning).module
task = wayfare.local_task("own", network=network, sample=torch.zeros(196), classes=10)
"""


def lived(folder: Path, versions: int = 4) -> Ledger:
    initial = MODEL.initial(generator(0, Stream.INITIAL_MODEL, FLEET))
    rule = aggregation(guard=Guard())
    ledger = Ledger(folder, initial, layout=LAYOUT, aggregation=rule, identity={"name": "x"}, names=["bus-1", "bus-2"])
    for number in range(1, versions + 1):
        values = torch.randn(len(initial), generator=torch.Generator().manual_seed(number)) * 0.01
        chunk = Chunk(number, 0, 1, number, number - 1, 0, 0.0, Sparse(torch.arange(len(initial)), values))
        deliver(ledger, 0, [chunk.packed(LAYOUT)])
    ledger.save_model()
    return ledger


def run(*words: object) -> str:
    found = CliRunner().invoke(field_app, [str(word) for word in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.output


def test_a_version_is_exported_as_safetensors_that_fill_the_network(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ledger = lived(tmp_path / "mes")
    file = tmp_path / "model.safetensors"
    assert "version 4" in run("export", tmp_path / "mes", 4, "--safetensors", file, "--set", NETWORK)
    module, expected = MODEL.module(), MODEL.module()
    module.load_state_dict(load_file(file))
    load_vector(expected, ledger.model)
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), expected.parameters(), strict=True))


def test_a_version_without_a_file_is_replayed_by_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wayfare.field.runtime import life_cycle

    ledger = lived(tmp_path)
    with pytest.raises(FieldError, match="is it running"):
        life_cycle.vector_at(tmp_path, 2, MODEL, wait_s=0.0)
    asked: Callable[..., int] = place

    def served(*order: object) -> int:
        number = asked(*order)
        ledger.obey()
        return number

    monkeypatch.setattr(life_cycle, "place", served)
    assert torch.equal(life_cycle.vector_at(tmp_path, 2, MODEL), ledger.model_at(2))
    with pytest.raises(InputError, match="version = 9: must be 0 to 4"):
        life_cycle.vector_at(tmp_path, 9, MODEL)


def test_a_version_is_evaluated_on_the_test_set(tmp_path: Path) -> None:
    lived(tmp_path)
    found = json.loads(run("evaluate", tmp_path, "--set", NETWORK, "--json"))
    assert found["version"] == 4
    assert 0 <= found["score"] <= 1
    assert "accuracy" in run("evaluate", tmp_path, "--set", NETWORK)
    with pytest.raises(InputError, match="no ledger"):
        run("evaluate", tmp_path / "nothing", "--set", NETWORK)


def test_orders_wait_for_the_server(tmp_path: Path) -> None:
    ledger = lived(tmp_path)
    for words in (["rollback", tmp_path, 1], ["set", tmp_path, "guard.clip=3"], ["compact", tmp_path, "--keep-mb", 0]):
        assert "the server carries it out when it runs" in run(*words, "--wait-s", 0)
    first = ledger.model_at(1)
    ledger.obey()
    assert torch.equal(ledger.model, first)
    # The snapshot is not older than the rollback, whose target is gone.
    assert (ledger.version, ledger.base_version) == (6, 5)
    with pytest.raises(InputError, match="must be NAME=VALUE"):
        run("set", tmp_path, "guard.clip")
    with pytest.raises(InputError, match=r"guard\.clip = '3x': must be a number"):
        run("set", tmp_path, "guard.clip=3x")
    assert "no device is in quarantine" in run("quarantine", tmp_path)
    with pytest.raises(InputError, match="must be a device of this fleet"):
        run("quarantine", tmp_path, "--release", "bus-9")


def test_a_state_is_backed_up_while_it_is_in_use_and_restored(tmp_path: Path) -> None:
    ledger = lived(tmp_path / "mes")
    assert "version 4" in run("backup", tmp_path / "mes", tmp_path / "copy")
    model = ledger.model
    deliver_one_more = lived(tmp_path / "other", versions=5)
    assert deliver_one_more.version == 5
    assert "version 4" in run("restore", tmp_path / "copy", tmp_path / "again")
    restored = lived(tmp_path / "again", versions=0)
    assert restored.version == 4
    assert torch.equal(restored.model, model)
    assert torch.equal(restored.replay().model, model)
    for target, reason in ((tmp_path / "copy", "new or empty"), (tmp_path / "copy" / FILE, "new or empty")):
        with pytest.raises(InputError, match=reason):
            back_up(tmp_path / "mes", target)
    with pytest.raises(InputError, match="no ledger"):
        restore(tmp_path / "nothing", tmp_path / "more")


def test_a_lock_inside_its_folder_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """The units let a service write its state folder and nothing else."""
    with RunLock(tmp_path / "mes", inside=True):
        assert [path.name for path in tmp_path.iterdir()] == ["mes"]
    assert not list((tmp_path / "mes").iterdir())


def test_a_damaged_backup_and_a_running_server_are_refused(tmp_path: Path) -> None:
    lived(tmp_path / "mes")
    back_up(tmp_path / "mes", tmp_path / "copy")
    with RunLock(tmp_path / "busy", inside=True), pytest.raises(RunFolderError, match="is writing"):
        restore(tmp_path / "copy", tmp_path / "busy")
    (tmp_path / "copy" / "model-4.npz").write_bytes(b"x")
    with pytest.raises(FieldError, match="checksum differs"):
        restore(tmp_path / "copy", tmp_path / "again")


def test_a_version_is_exported_as_onnx(tmp_path: Path) -> None:
    import onnx

    lived(tmp_path / "mes")
    file = tmp_path / "model.onnx"
    run("export", tmp_path / "mes", 4, "--onnx", file, "--set", NETWORK)
    graph = onnx.load(file).graph
    assert [each.dim_param != "" for each in graph.input[0].type.tensor_type.shape.dim][:1] == [True]


def test_a_task_without_data_is_exported_and_evaluated_on_a_folder(tmp_path: Path) -> None:
    import onnx

    lived(tmp_path / "mes")
    file = tmp_path / "task_to_export.py"
    file.write_text(OWN, encoding="utf-8")
    models = tmp_path / "model.onnx", tmp_path / "model.safetensors"
    task = "--task", f"{file}:task"
    run("export", tmp_path / "mes", 4, *task, "--onnx", models[0], "--safetensors", models[1])
    assert [each.dim_value for each in onnx.load(models[0]).graph.input[0].type.tensor_type.shape.dim] == [0, 196]
    assert models[1].stat().st_size > 0
    with pytest.raises(InputError, match="--data: give a folder with data that no device has"):
        run("evaluate", tmp_path / "mes", *task)
    with pytest.raises(InputError, match="the network of this scenario 84618; give the server's task"):
        run("evaluate", tmp_path / "mes")


def test_a_task_is_tried_on_a_folder_without_a_fleet(tmp_path: Path) -> None:
    file = tmp_path / "task_to_check.py"
    file.write_text(OWN, encoding="utf-8")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "a.npz", inputs=np.zeros((6, 196)), labels=[0, 0, 0, 1, 1, 2])
    said = run("check", "--task", f"{file}:task", "--data", tmp_path / "data", "--steps", 3)
    assert "own: 838 parameters, 0.00 MB" in said
    assert "6 samples, 3 0, 2 1, 1 2, 0 3" in said
    assert "after 3 local steps (learning rate 0.005, batches of 32), on the same data:" in said
    assert "1.011 without looking at the inputs\nThe network has learned nothing" in said
