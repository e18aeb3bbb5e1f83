"""A task without data, and the training of one device on its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.field.parts import open_outbox
from torch import nn

from wayfare import Metric, local_task, simulated_task
from wayfare.engine import Burst, Compute
from wayfare.errors import InputError, ScenarioError
from wayfare.field.runtime.device import DeviceOptions, open_data
from wayfare.field.runtime.local_data import LocalData
from wayfare.field.runtime.trial import try_folder
from wayfare.field.runtime.work import Work
from wayfare.learning.batches import GrowingBatches
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.folders import FolderSamples
from wayfare.learning.tasks import load_task
from wayfare.learning.tasks.local import FolderTask, LocalTask
from wayfare.scenario import load

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(60, 4)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int64) + 2 * (INPUTS[:, 1] > 0)
FILE = """
import torch
from wayfare import local_task, own_task
def network():
    return torch.nn.Linear(4, 4)
task = local_task("signs", network=network, sample=torch.zeros(4), classes=4)
"""


def linear() -> nn.Module:
    return nn.Linear(4, 4)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 5), nn.Flatten(), nn.Linear(2 * 8 * 8, 2))


def regression() -> nn.Module:
    return nn.Linear(4, 1)


def work_of(folder: Path, *changes: str) -> Work:
    # Modules of one process need different names.
    file = folder / f"task_{folder.name}.py"
    file.write_text(FILE, encoding="utf-8")
    return Work(scenario=load("fashion-small", [f"learning.task={file}:task", *changes]))


def data_of(folder: Path, work: Work, **settings: Any) -> LocalData:
    (folder / "data").mkdir(exist_ok=True)
    return LocalData(work, folder / "data", folder / "cache", device=3, compute=Compute(), **settings)


def test_settings_of_the_operator_hold_from_the_next_burst_on_and_the_loss_falls(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "a.npz", inputs=INPUTS, labels=LABELS)
    settings: dict[str, Any] = {}
    slow, fast = (work_of(tmp_path, f"learning.learning_rate={rate}", "learning.batch_size=8") for rate in (0.01, 0.5))
    changing, expected = data_of(tmp_path, slow, settings=lambda: settings), data_of(tmp_path, fast)
    vectors = [slow.initial_model.clone() for _ in range(2)]
    assert changing.loss() is None
    changing.run([vectors[0]], [Burst(3, 1, 1)])
    first, vectors[1] = changing.loss(), vectors[0].clone()
    settings = {"learning_rate": 0.5}
    for vector, data in zip(vectors, (changing, expected), strict=True):
        data.run([vector], [Burst(3, 2, 100)])
    assert torch.equal(*vectors)
    assert changing.loss() == expected.loss()
    assert first is not None
    assert 0 < (changing.loss() or 0.0) < first / 2
    settings = {"batch_size": 3}
    changing.run([vectors[0]], [Burst(3, 102, 1)])
    assert changing._batches.batch_size == 3


def test_a_device_learns_what_its_folder_holds_and_the_steps_of_a_restart_repeat(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "a.npz", inputs=INPUTS, labels=LABELS)
    work = work_of(tmp_path, "learning.learning_rate=0.5")
    vectors = [work.initial_model.clone() for _ in range(3)]
    first, again = data_of(tmp_path, work), data_of(tmp_path, work)
    assert first.ready()
    assert first.samples() == 60
    first.run([vectors[0]], [Burst(3, 1, 200)])
    for begin in (1, 101):
        again.run([vectors[1]], [Burst(3, begin, 100)])
    assert torch.equal(vectors[0], vectors[1])
    LocalData(work, tmp_path / "data", tmp_path / "cache", device=4, compute=Compute()).run(
        [vectors[2]], [Burst(4, 1, 200)]
    )
    assert not torch.equal(vectors[0], vectors[2])
    task = first.task
    assert Evaluator(task)(vectors[0]).score > 0.9


def test_new_files_count_from_the_next_burst_on(tmp_path: Path) -> None:
    now_s = [0.0]
    data = data_of(tmp_path, work_of(tmp_path), rescan_s=10.0, clock=lambda: now_s[0])
    assert not data.ready()
    np.savez(tmp_path / "data" / "a.npz", inputs=INPUTS, labels=LABELS)
    assert not data.ready()
    now_s[0] = 10.0
    assert data.ready()
    assert data.samples() == 60


def test_local_losses_use_the_shares_of_the_local_labels(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "a.npz", inputs=INPUTS[:4], labels=[0, 0, 0, 1])
    data = data_of(tmp_path, work_of(tmp_path, "learning.local_loss=logit-adjusted", "learning.logit_smoothing=0.2"))
    offsets = data._training().local_loss.offsets
    assert torch.allclose(offsets.exp(), torch.tensor([[0.65, 0.25, 0.05, 0.05]]))


def test_every_minibatch_has_its_own_key(tmp_path: Path) -> None:
    whole = GrowingBatches(50, 8, seed=1, device=2).of(0, 1, 30)
    assert np.array_equal(GrowingBatches(50, 8, seed=1, device=2).of(0, 21, 10), whole[20:])
    assert not np.array_equal(GrowingBatches(50, 8, seed=1, device=3).of(0, 1, 30), whole)
    assert whole.min() >= 0
    assert whole.max() < 50
    seeds = GrowingBatches(50, 8, seed=1, device=2).seeds_of(0, 1, 30)
    assert len(set(seeds)) == 30
    assert GrowingBatches(60, 8, seed=1, device=2).seeds_of(0, 5, 1) == [seeds[4]]


def test_regressions_need_a_loss_and_pair_outputs_with_targets(tmp_path: Path) -> None:
    task = local_task("slope", network=regression, sample=np.zeros(4, np.float32), loss=nn.functional.mse_loss)
    np.savez(tmp_path / "a.npz", inputs=INPUTS, targets=INPUTS[:, 0])
    folder = FolderTask(task=task, samples=FolderSamples(tmp_path, task.wanted, tmp_path / ".cache"))
    assert float(folder.loss(task.model.module(), torch.arange(9)).detach()) > 0
    found = Evaluator(folder)(task.model.initial(RNG))
    assert found.score == found.loss > 0
    assert folder.class_of_samples().tolist() == [0] * 60


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": linear, "classes": 3}, r"outputs of shape \(4,\), for 3 classes"),
        ({"network": linear}, "classes = 0: must be at least 1, or give a loss"),
        ({"network": linear, "classes": 4, "score": nn.functional.mse_loss}, "metric = None: must name the score"),
        ({"network": lambda: nn.Linear(5, 4), "classes": 4}, "does not accept"),
    ],
)
def test_a_task_that_cannot_be_is_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        local_task("wrong", sample=torch.zeros(4), **settings)


def test_a_score_of_your_own_has_a_name() -> None:
    metric = Metric(name="negated", better="lower")
    task = local_task(
        "own", network=linear, sample=torch.zeros(4), classes=4, score=nn.functional.cross_entropy, metric=metric
    )
    assert task.metric is metric


def test_the_simulator_says_what_to_name_instead(tmp_path: Path) -> None:
    work = work_of(tmp_path)
    with pytest.raises(ScenarioError, match=r"simulated_task\(task, folders, heldout\)"):
        load_task(work.scenario.learning)
    with pytest.raises(ScenarioError, match=r"brings its own data; .* FILE\.py:TASK"):
        data_of(tmp_path, Work(scenario=load("fashion-small")))


def test_folders_are_the_vehicles_of_the_simulated_task(tmp_path: Path) -> None:
    for name, some in (("bus-1", slice(0, 10)), ("bus-2", slice(10, 40)), ("heldout", slice(40, 60))):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", inputs=INPUTS[some], labels=LABELS[some])
    task = local_task("signs", network=linear, sample=torch.zeros(4), classes=4)
    assert isinstance(task, LocalTask)
    own = simulated_task(task, [tmp_path / "bus-1", tmp_path / "bus-2"], tmp_path / "heldout")
    assert own.division.vehicles == ("bus-1", "bus-2")
    assert [len(held) for held in own.division.held] == [10, 30]
    assert len(own.test[1]) == 20


def test_a_schedule_that_ends_needs_an_end(tmp_path: Path) -> None:
    work = work_of(tmp_path, "learning.schedule=linear", "rounds=50")
    (tmp_path / "data").mkdir()
    options, outbox = DeviceOptions(state=tmp_path / "state", data=tmp_path / "data"), open_outbox(tmp_path / "store")
    with pytest.raises(ScenarioError, match="falls to 0 after `rounds` = 50 local steps"):
        open_data(0, work, options, outbox)
    assert open_data(0, work, DeviceOptions(state=tmp_path, data=tmp_path / "data", steps=50), outbox) is not None


def test_images_in_class_folders_train_the_network_of_the_page(tmp_path: Path) -> None:
    """The sample of that network holds real numbers, and images hold bytes."""
    for number, name in enumerate(("stop", "none")):
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 20), (200 * number, 0, 0)).save(tmp_path / name / "one.png")
    task = local_task("signs", network=convolution, sample=torch.zeros(3, 12, 12), classes=["stop", "none"])
    samples = FolderSamples(tmp_path, task.wanted, tmp_path / ".cache")
    loss = FolderTask(task=task, samples=samples).loss(convolution(), torch.arange(2))
    assert torch.isfinite(loss)
    assert simulated_task(task, [tmp_path], tmp_path).train[0].max() == pytest.approx(200 / 255)


def test_a_trial_counts_samples_and_says_whether_training_helps(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    work, steps = work_of(tmp_path, "learning.learning_rate=0.5"), []
    with pytest.raises(InputError, match="has no samples for this task"):
        try_folder(work, tmp_path / "data", steps=1, progress=lambda done, total: None)
    np.savez(tmp_path / "data" / "a.npz", inputs=INPUTS, labels=LABELS)
    found = try_folder(work, tmp_path / "data", steps=50, progress=lambda done, total: steps.append((done, total)))
    assert found.classes == {str(label): int(np.sum(label == LABELS)) for label in range(4)}
    assert (found.samples, found.entries, found.steps) == (60, 20, 50)
    assert steps == [(20, 50), (40, 50), (50, 50)]
    assert found.learned
    shares = np.array([*found.classes.values()]) / 60
    assert found.blind_loss == pytest.approx(-(shares * np.log(shares)).sum())
    assert found.after.score > found.before.score
    wild = work_of(tmp_path, "learning.learning_rate=1e9")
    assert not try_folder(wild, tmp_path / "data", steps=50, progress=lambda done, total: None).learned
