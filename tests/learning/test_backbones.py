"""Frozen backbones: known features, preprocessing, and a cache that notices every change."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.backbones import backbone as chain
from tests.image_files import small_arrays, small_set
from torch import Tensor, nn

import wayfare
from wayfare.errors import ScenarioError
from wayfare.files import lock
from wayfare.identity import changes, identity_of
from wayfare.learning.backbones import (
    Backbone,
    activations_of,
    efficientnet_lite0,
    features,
    features_of,
    load_backbone,
)
from wayfare.learning.data import CIFAR10, IMAGE_SETS, ImageArrays
from wayfare.learning.data.cache import save_images
from wayfare.learning.tasks import load_task, model_of
from wayfare.methods import make_method
from wayfare.progress import listening
from wayfare.scenario.model import Learning
from wayfare.studies.keys import run_key
from wayfare.studies.single import Execution
from wayfare.threads import one_thread

ARRAYS = small_arrays(CIFAR10, train=150, test=7)
# Of 16 images: ten of the training set and one of the test set; before them one tries the size, and two whether the
# features of an image depend on others.
BATCHES = 14
FACTOR = 0.5


class Means(nn.Module):
    """Means of the channels and their squares, times a weight; counts how often it is asked in a file."""

    def __init__(self, weight: float = 1.0, asked: Path | None = None) -> None:
        super().__init__()
        self.weight, self.asked = nn.Parameter(torch.tensor(weight)), asked

    def forward(self, images: Tensor) -> Tensor:
        if self.asked is not None:
            with self.asked.open("a") as file:
                file.write(".")
        return self.weight * torch.cat([images.mean(dim=(2, 3)), images.square().mean(dim=(2, 3))], dim=1)


def backbone(weight: float = 1.0, asked: Path | None = None) -> Backbone:
    module = Means(weight, asked)
    return Backbone(name="means", module=module, features=6, mean=(127.0,) * 3, deviation=(128.0,) * 3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    # A forked copy of a process that has used several threads of PyTorch may hang.
    monkeypatch.setattr(features, "available_cores", lambda: 1)
    return tmp_path / "features"


def picture(pixels: int) -> Tensor:
    rows, columns, channels = torch.arange(pixels), torch.arange(pixels), torch.arange(3).view(3, 1, 1)
    return ((rows.view(-1, 1) * (channels + 1) + columns * 3) % 256).to(torch.uint8)[None]


def test_efficientnet_lite0_gives_the_features_of_another_implementation() -> None:
    """The numbers are those of the package efficientnet-lite-pytorch 0.1.0, for the same picture and weights."""
    lite0 = load_backbone("efficientnet-lite0")
    with torch.inference_mode():
        (found,) = lite0.module(lite0.prepare(picture(224), 224))
    assert found.shape == (1280,)
    torch.testing.assert_close(found[:4], torch.tensor([0.0, 0.0, 0.3492000103, 0.2385326326]))
    assert float(found.sum()) == pytest.approx(213.829239, rel=1e-5)
    assert (int(found.argmax()), float(found.max())) == (113, pytest.approx(5.486025, rel=1e-5))
    assert not any(parameter.requires_grad for parameter in lite0.module.parameters())


def test_efficientnet_lite0_gives_the_logits_of_another_implementation() -> None:
    """With the last layer of the weights; the numbers are those of the same package, for all of its network."""
    lite0 = load_backbone("efficientnet-lite0")
    stored = torch.load(efficientnet_lite0.weights_file(), weights_only=True)
    with torch.inference_mode():
        features = lite0.module(lite0.prepare(picture(224), 224))
        (logits,) = nn.functional.linear(features, stored["_fc.weight"], stored["_fc.bias"])
    best = logits.topk(3)
    assert best.indices.tolist() == [885, 854, 418]
    torch.testing.assert_close(best.values, torch.tensor([8.3077, 6.9556, 6.8281]), atol=1e-4, rtol=0)
    assert float(logits.sum()) == pytest.approx(-84.9860, abs=1e-3)


def test_images_become_three_channels_of_the_asked_size() -> None:
    grey = torch.full((2, 1, 28, 28), 191, dtype=torch.uint8)
    prepared = backbone().prepare(grey, 40)
    assert prepared.shape == (2, 3, 40, 40)
    assert torch.allclose(prepared, torch.tensor(FACTOR))
    edge = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    edge[..., 4:] = 255
    resized = backbone().prepare(edge, 32)
    assert (float(resized.min()), float(resized.max())) == (-127 / 128, 1.0)
    same = backbone().prepare(picture(32), 32)
    assert torch.equal(same, (picture(32).float() - 127) / 128)


def test_every_feature_vector_has_mean_0_and_deviation_1() -> None:
    found = backbone()(torch.from_numpy(ARRAYS.train_images[:5]), 32)
    torch.testing.assert_close(found.mean(dim=1), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std(dim=1, correction=0), torch.ones(5), atol=1e-3, rtol=0)


def test_features_are_computed_once_and_cached(folder: Path, tmp_path: Path) -> None:
    asked, seen = tmp_path / "asked", list[tuple[str, int, int]]()
    with listening(lambda *step: seen.append(step)):
        first = features_of("small", ARRAYS, backbone(asked=asked), 32)
    assert asked.read_text() == "." * BATCHES
    assert seen[0] == ("features of small", 16, 157)
    assert seen[-1] == ("features of small", 157, 157)
    expected = backbone()(torch.from_numpy(ARRAYS.test_images), 32)
    torch.testing.assert_close(torch.from_numpy(first.test).float(), expected, atol=2e-3, rtol=0)
    assert (first.train.shape, first.train.dtype) == ((150, 6), np.float16)
    again = features_of("small", ARRAYS, backbone(asked=asked), 32)
    assert np.array_equal(again.train, first.train)
    # One image tells whether the network still gives what is stored.
    assert asked.read_text() == "." * (BATCHES + 1)
    assert [file.suffix for file in sorted(folder.iterdir())] == [".lock", ".npz"]


def test_other_weights_images_sizes_and_scales_give_other_features(folder: Path) -> None:
    changed = ImageArrays(ARRAYS.train_images.copy(), ARRAYS.train_labels, ARRAYS.test_images, ARRAYS.test_labels)
    changed.train_images[0, 0, 0, 0] ^= 1
    brighter = Backbone(name="means", module=Means(), features=6, mean=(0.0,) * 3, deviation=(128.0,) * 3)
    features_of("small", ARRAYS, backbone(), 32)
    features_of("small", ARRAYS, backbone(2.0), 32)
    features_of("small", changed, backbone(), 32)
    features_of("small", ARRAYS, backbone(), 48)
    features_of("small", ARRAYS, brighter, 32)
    assert len(list(folder.glob("*.npz"))) == 5


def test_a_damaged_file_is_made_again(folder: Path) -> None:
    # A copy: the array is mapped from the file that is damaged here.
    first = np.array(features_of("small", ARRAYS, backbone(), 32).test)
    (file,) = folder.glob("*.npz")
    for damaged in (file.read_bytes()[:-200], file.read_bytes().replace(first.tobytes(), first[::-1].tobytes())):
        file.write_bytes(damaged)
        assert np.array_equal(features_of("small", ARRAYS, backbone(), 32).test, first)
        assert np.array_equal(np.load(file)["test"], first)


def test_work_that_is_interrupted_leaves_nothing_and_drafts_of_killed_processes_go(folder: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), listening(stop):
        features_of("small", ARRAYS, backbone(), 32)
    assert [file.suffix for file in folder.iterdir()] == [".lock"]
    (lock,) = folder.iterdir()
    (folder / f".{lock.stem}.npz.0123.new").write_bytes(b"half")
    features_of("small", ARRAYS, backbone(), 32)
    assert not list(folder.glob(".*.new"))


def test_drafts_of_other_features_go_too_unless_a_process_still_writes_them(folder: Path) -> None:
    """A draft can take a gigabyte, and nobody may ever ask for the same features again."""
    folder.mkdir()
    abandoned, written, other = (folder / f".{name}.0123.new" for name in ("gone.npz", "busy.npz", "mine.txt"))
    for draft in (abandoned, written, other):
        draft.write_bytes(b"half")
    (folder / "gone.lock").touch()
    with (folder / "busy.lock").open("w") as held:
        lock(held.fileno())
        features_of("small", ARRAYS, backbone(), 32)
    assert sorted(folder.glob(".*.new")) == [written, other]


def test_features_use_all_cores_even_in_a_run_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    together, numbers = threading.Barrier(2, timeout=20), list[int]()

    class Meeting(Means):
        def forward(self, images: Tensor) -> Tensor:
            numbers.append(torch.get_num_threads())
            # The second and the third batch wait until both are under way. Three trials come before the first.
            if len(numbers) in (5, 6):
                together.wait()
            return super().forward(images)

    expected = features_of("small", ARRAYS, backbone(), 32)
    monkeypatch.setattr(features, "available_cores", lambda: 2)
    with one_thread():
        meeting = Backbone(name="meeting", module=Meeting(), features=6, mean=(127.0,) * 3, deviation=(128.0,) * 3)
        found = features_of("small", ARRAYS, meeting, 32)
        assert torch.get_num_threads() == 1
    assert set(numbers) == {1}
    assert np.array_equal(found.train, expected.train)


def test_features_that_do_not_fit_half_precision_are_rejected_by_the_name_of_the_backbone() -> None:
    broken = Backbone(name="means", module=Means(np.nan), features=6, mean=(127.0,) * 3, deviation=(128.0,) * 3)
    rule = r"learning\.backbone = 'means': the features of image 0 to 15 of small do not fit half precision"
    with pytest.raises(ScenarioError, match=rule):
        features_of("small", ARRAYS, broken, 32)


def _compute(asked: Path) -> None:
    features_of("small", ARRAYS, backbone(asked=asked), 32)


def test_two_processes_do_not_compute_the_same_features(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_compute, args=(asked,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert asked.read_text() == "." * (BATCHES + 1)


def _compute_forever(asked: Path) -> None:
    def stop_here(what: str, done: int, total: int) -> None:
        asked.write_text("half")
        time.sleep(60)

    with listening(stop_here):
        activations_of("small", ARRAYS, chain(), 32, 2)


def test_a_killed_process_leaves_nothing_that_counts(folder: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    worker = multiprocessing.get_context("fork").Process(target=_compute_forever, args=(asked,))
    worker.start()
    while not asked.exists():
        time.sleep(0.01)
    worker.kill()
    worker.join(60)
    assert [file.suffix for file in sorted(folder.iterdir())] == [".new", ".lock"]
    found = activations_of("small", ARRAYS, chain(), 32, 2)
    assert [file.suffix for file in sorted(folder.iterdir())] == [".lock", ".npz"]
    assert found.test.shape == (7, 16, 16, 4)


@pytest.fixture
def cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    small = small_set(CIFAR10, ARRAYS)
    save_images(small, ARRAYS)
    monkeypatch.setitem(IMAGE_SETS, CIFAR10.name, small)  # type: ignore[arg-type]


OWN = """
import torch

class Corner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(SCALE))

    def forward(self, images):
        return self.scale * images[:, :, :4, :4].flatten(1) + torch.arange(48) / 48

def backbone():
    return Corner()
"""


WHOLE = """
from wayfare.learning.backbones import Backbone

def whole():
    return Backbone(name="corner", module=Corner(), features=48, mean=(0.0,) * 3, deviation=(1.0,) * 3)
"""


def test_an_edited_file_that_gives_a_whole_backbone_is_another_backbone(tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    digests = []
    for text in ("torch.arange(48) / 48", "torch.arange(48) / 47"):
        file.write_text(OWN.replace("SCALE", "1.0").replace("torch.arange(48) / 48", text) + WHOLE, encoding="utf-8")
        digests.append(load_backbone(f"{file}:whole").digest)
    assert digests[0] != digests[1]


@pytest.mark.usefixtures("cifar10")
def test_a_backbone_of_ones_own_is_a_function_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(OWN.replace("SCALE", "1.0"), encoding="utf-8")
    named = ["learning.task=cifar10", f"learning.backbone={file}", "learning.backbone_pixels=32"]
    smaller = ["rounds=4", "fleet.devices=3", "learning.batch_size=4", "mobility.width_m=200", "mobility.height_m=200"]
    scenario = wayfare.load(overrides=[*named, *smaller])
    assert model_of(scenario.learning).parameters == 48 * 10 + 10
    record = wayfare.run(scenario, "optimal", out=tmp_path / "runs")
    assert len(record.model) == 490
    mads = make_method("mads", scenario)
    before, key = identity_of(scenario, mads), run_key(scenario, mads, 0, Execution())
    file.write_text(OWN.replace("SCALE", "2.0"), encoding="utf-8")
    assert changes(before, identity_of(scenario, mads)) == ["the content of learning.backbone"]
    assert run_key(scenario, mads, 0, Execution()) != key
    # The content counts, not the folder.
    file.write_text(OWN.replace("SCALE", "1.0"), encoding="utf-8")
    assert run_key(scenario, mads, 0, Execution()) == key
    deeper = wayfare.load(overrides=[*named, "learning.network=mlp", "learning.hidden=[5]"])
    assert model_of(deeper.learning).parameters == 48 * 5 + 5 + 5 * 10 + 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "lite"}, "learning.backbone = 'lite': must be none, efficientnet-lite0, torchvision:NAME"),
        ({"backbone": "efficientnet-lite0", "task": "argoverse"}, "needs images: learning.task must be one of"),
        ({"backbone": "efficientnet-lite0", "network": "resnet9"}, "must be one of auto, linear, mlp"),
        ({"backbone": "efficientnet-lite0", "augment": True}, "learning.augment = True: a backbone sees each image"),
        ({"backbone": "efficientnet-lite0", "recalibrate_statistics": 9}, "recalibrate_statistics = 9: needs batch"),
        ({"backbone": "timm:resnet18", "task": "fashion-small"}, "holds features of efficientnet-lite0 only"),
        (
            {"backbone": "efficientnet-lite0", "task": "fashion-small", "backbone_pixels": 224},
            "learning.backbone_pixels = 224: fashion-small holds features at 160 pixels only",
        ),
        ({"network": "linear"}, "learning.network = 'linear': must be resnet9 or cnn for the task cifar10"),
    ],
)
def test_settings_that_do_not_fit_a_backbone_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        model_of(Learning.model_validate({"task": "cifar10", **settings}))


def test_a_backbone_does_not_apply_to_a_task_of_ones_own(tmp_path: Path) -> None:
    data = np.ones((20, 3), np.float32), np.arange(20) % 2
    task = wayfare.own_task("mine", train=data, test=data, network=lambda: nn.Linear(3, 2))
    scenario = wayfare.load(overrides=["learning.backbone=efficientnet-lite0"])
    with pytest.raises(
        ScenarioError, match=r"learning\.backbone = 'efficientnet-lite0': does not apply to your own task"
    ):
        wayfare.compare(scenario, ["mads"], seeds=1, task=task, out=tmp_path)


def test_the_file_of_a_backbone_is_relative_to_the_scenario(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    for named, expected in (
        ("mine.py:net", f"{tmp_path}/mine.py:net"),
        ("timm:small@w.pth", f"timm:small@{tmp_path}/w.pth"),
        ("efficientnet-lite0", "efficientnet-lite0"),
    ):
        file.write_text(f'[learning]\ntask = "cifar10"\nbackbone = "{named}"\n', encoding="utf-8")
        assert wayfare.load(file).learning.backbone == expected


def test_an_edited_file_is_another_backbone(tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    digests = []
    for code in ("self.scale * images", "self.scale - images", "self.scale * images"):
        file.write_text(OWN.replace("SCALE", "1.0").replace("self.scale * images", code), encoding="utf-8")
        digests.append(load_backbone(str(file)).digest)
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.usefixtures("cifar10")
def test_a_network_of_one_image_size_says_so(tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    network = "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, 4))"
    file.write_text(f"import torch\nbackbone = {network.replace('SIZE', '224')}", encoding="utf-8")
    assert load_backbone(str(file)).trial_image.shape == (1, 3, 224, 224)
    learning = Learning(task="cifar10", backbone=str(file), backbone_pixels=160)
    with pytest.raises(ScenarioError, match=r"learning\.backbone_pixels = 160: .* does not take images of this size"):
        load_task(learning)
    file.write_text(f"import torch\nbackbone = {network.replace('SIZE', '50')}", encoding="utf-8")
    with pytest.raises(ScenarioError, match="takes no images of 64, 224, 256, 384 pixels"):
        load_backbone(str(file))
    file.write_text("import torch\nbackbone = torch.nn.Flatten()", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"160: .* gives 76800 features for this size, but 12288 for another"):
        load_task(learning)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("other = 1", "the file has no backbone"),
        ("backbone = 7", "gave int; must be a torch module from images to features"),
        ("import torch\nbackbone = torch.nn.Identity()", r"gives \(1, 3, 64, 64\) for one image"),
    ],
)
def test_a_file_without_a_backbone_says_why(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ScenarioError, match=message):
        load_backbone(str(file))


def test_the_embedded_features_are_of_the_embedded_images_and_beat_them(tmp_path: Path) -> None:
    short = ["rounds=150", "learning.evaluate_every_rounds=50", "learning.final_evaluations=1"]
    pixels = wayfare.load(overrides=short)
    features = wayfare.load(overrides=[*short, "learning.backbone=efficientnet-lite0"])
    labels = [load_task(scenario.learning).class_of_samples() for scenario in (pixels, features)]
    assert np.array_equal(*labels)
    scores = [
        float(wayfare.run(scenario, "mads", out=tmp_path / str(place)).evaluations["score"][-1])
        for place, scenario in enumerate((pixels, features))
    ]
    assert scores[1] > scores[0] + 0.1
