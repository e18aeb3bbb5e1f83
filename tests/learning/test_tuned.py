"""Training a part of a backbone: what is trained, where it starts, and what it is computed from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.backbones import MODES, Crossed, backbone, small_task, tuned
from tests.image_files import small_arrays, small_set
from torch import Tensor, nn

import wayfare
from wayfare.engine import Burst, LocalTraining, make_engine
from wayfare.errors import ScenarioError
from wayfare.learning.backbones import activations_of, load_backbone
from wayfare.learning.batches import Batches
from wayfare.learning.data import CIFAR10, IMAGE_SETS
from wayfare.learning.data.cache import save_images
from wayfare.learning.models.adapters import LowRank, with_adapters
from wayfare.learning.models.base import load_vector, read_vector, trainable
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.tuned import Tuned, Tuning
from wayfare.learning.tasks import load_task, model_of
from wayfare.learning.tasks.tuned import TunedClassification, from_activations
from wayfare.progress import listening
from wayfare.scenario.model import Learning, Trained

ARRAYS = small_arrays(CIFAR10, train=40, test=7)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    return tmp_path / "features"


@pytest.mark.parametrize("trained", MODES)
def test_a_network_starts_with_the_features_of_the_frozen_backbone(trained: Trained) -> None:
    model = tuned(trained)
    module = model.module().train()
    initial = model.initial(np.random.default_rng(0))
    assert (len(initial), model.statistics) == (model.parameters, 0)
    load_vector(module, initial)
    images = torch.from_numpy(ARRAYS.train_images[:5])
    cut = nn.Sequential(*model.backbone.blocks[: model.cut])(model.backbone.prepare(images, 32))
    head = Mlp((4, 10)).module()
    # The head is at the end of the vector, and starts as it does on cached features.
    assert torch.equal(initial[-50:], Mlp((4, 10)).initial(np.random.default_rng(0)))
    load_vector(head, initial[-50:])
    torch.testing.assert_close(module(cut), head(model.backbone(images, 32)), atol=1e-4, rtol=1e-3)


def test_only_what_is_learned_is_in_the_vector() -> None:
    depthwise, pointwise = (4 + 9) * 2, (4 + 4) * 2
    assert tuned("norms", 1).parameters == 8 + 50
    assert tuned("norms", 2).parameters == 16 + 50
    assert tuned("adapters", 1).parameters == depthwise + pointwise + 50
    assert tuned("last-block", 1).parameters == 36 + 8 + 20 + 50
    assert tuned("everything").parameters == 3 * 4 * 9 + 4 + 8 + 2 * (36 + 8 + 20) + 50
    names = set(trainable(tuned("norms", 1).module()))
    assert names == {"blocks.0.layers.1.weight", "blocks.0.layers.1.bias", "head.0.weight", "head.0.bias"}


def test_training_keeps_the_statistics_of_the_pretraining_and_draws_nothing() -> None:
    module = tuned("everything").module().train()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module(images), module(images))
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())
    assert not any("running" in name for name in module.state_dict())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 5),
        nn.Conv2d(6, 5, 1),
        nn.Conv2d(6, 4, 1, stride=2, groups=2),
        nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.Conv2d(6, 5, 3, stride=2, bias=False),
    ],
    ids=str,
)
def test_an_adapter_adds_a_matrix_of_low_rank_to_the_weight(layer: nn.Linear | nn.Conv2d) -> None:
    rng = torch.Generator().manual_seed(0)
    signal = torch.randn((2, 6) if isinstance(layer, nn.Linear) else (2, 6, 7, 7), generator=rng)
    plain, adapted = layer(signal), LowRank(layer, rank=2, alpha=3.0)
    nn.init.normal_(adapted.down, generator=rng)
    torch.testing.assert_close(adapted(signal), plain)
    nn.init.normal_(adapted.up, generator=rng)
    found = adapted(signal)
    with torch.no_grad():
        layer.weight += 1.5 * (adapted.up @ adapted.down).view_as(layer.weight)
    torch.testing.assert_close(found, layer(signal), rtol=1e-4, atol=1e-5)
    assert set(trainable(adapted)) == {"down", "up"}


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_pixels_are_the_convolution(bias: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    adapted = LowRank(nn.Conv2d(6, 5, 1, bias=bias), rank=2, alpha=3.0)
    nn.init.normal_(adapted.down, generator=rng)
    nn.init.normal_(adapted.up, generator=rng)
    signal = torch.randn(2, 6, 7, 7, generator=rng)
    torch.testing.assert_close(adapted._products(signal, adapted.scale * adapted.up), adapted(signal))


def test_a_rank_beyond_that_of_a_layer_is_cut() -> None:
    network = nn.Sequential(nn.Linear(3, 8))
    assert with_adapters(network, 6, 12.0) == 1
    adapter = network[0]
    assert isinstance(adapter, LowRank)
    assert (adapter.down.shape, adapter.up.shape, adapter.scale) == ((3, 3), (8, 3), 2.0)


def test_a_network_that_is_not_a_chain_is_trained_as_a_whole_or_not_at_all() -> None:
    assert tuned("everything", module=Crossed).parameters == 2 * (3 * 4 * 9 + 4) + 50
    for trained in ("norms", "adapters", "last-block"):
        with pytest.raises(ScenarioError, match=r"learning\.trained = .*not a chain .* must be head or everything"):
            assert tuned(trained, module=Crossed).cut  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match=r"learning\.trained_blocks = 9: must be at most 3, the blocks of pooled"):
        assert tuned("norms", 9).cut


def test_a_normalisation_belongs_to_the_block_before_it() -> None:
    class Chain(nn.Sequential):
        def __init__(self) -> None:
            pooling = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
            super().__init__(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *pooling, nn.LayerNorm(4))

    assert backbone(Chain).cuts == (0, 1)
    assert tuned("last-block", 1, module=Chain).parameters == 3 * 4 * 9 + 4 + 8 + 8 + 50
    assert tuned("adapters", 1, rank=1, module=Chain).parameters == 4 + 3 * 9 + 50


def test_a_group_normalisation_after_frozen_layers_is_trained() -> None:
    """Of an image with its channels last PyTorch's CPU kernel crashes the process if the image needs no gradient."""

    class Chain(nn.Sequential):
        def __init__(self) -> None:
            norm, pooling = nn.GroupNorm(2, 4), [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
            super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), norm, *pooling)

    task = small_task(tuned("norms", 1, module=Chain))
    cached = replace(
        task, train_stored=task.train_stored.permute(0, 2, 3, 1).contiguous().half(), prepare=from_activations
    )
    found = []
    for given in (replace(task, train_stored=task.train_stored.half()), cached):
        training = LocalTraining(task=given, batches=Batches([np.arange(30)], 8, 2, seed=0), learning_rate=0.1)
        model = task.model.initial(np.random.default_rng(0))
        make_engine("reference", training).run([model], [Burst(0, 1, 2)])
        found.append(model)
    torch.testing.assert_close(*found)
    assert found[0].abs().sum() > 0


def test_a_network_whose_layers_reject_the_image_is_not_a_chain() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, 4, 8, 8)
            self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

        def forward(self, images: Tensor) -> Tensor:
            found: Tensor = self.layer(self.embed(images).flatten(2).transpose(1, 2)).mean(1)
            return found

    assert backbone(Patches).blocks == ()


def test_parameters_without_effect_are_neither_trained_nor_sent() -> None:
    class Auxiliary(Crossed):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(4, 1000)

    assert tuned("everything", module=Auxiliary).parameters == tuned("everything", module=Crossed).parameters


def test_what_cannot_be_trained_in_this_way_is_named() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, signal: Tensor) -> Tensor:
            return nn.functional.linear(signal, self.inner.weight)

    class Chain(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), Attention())

    with pytest.raises(ScenarioError, match="a layer of pooled cannot be changed in this way"):
        assert tuned("adapters", 1, module=Chain).parameters
    with pytest.raises(
        ScenarioError,
        match=r"the last block of pooled has no normalisation; choose something else, or more learning\.trained_b",
    ):
        assert tuned("norms", 1, module=Chain).parameters
    # Without the bias, which has no effect.
    assert tuned("last-block", 1, module=Chain).parameters == 16 + 50


def test_activations_are_cached_for_each_cut(folder: Path) -> None:
    made, seen = backbone(), list[tuple[str, int, int]]()
    with listening(lambda *step: seen.append(step)):
        found = activations_of("small", ARRAYS, made, 32, 3)
    assert seen[-1] == ("activations of small", 47, 47)
    assert (found.train.shape, found.train.dtype) == ((40, 16, 16, 4), np.float16)
    expected = nn.Sequential(*made.blocks[:3])(made.prepare(torch.from_numpy(ARRAYS.test_images), 32))
    given = torch.from_numpy(found.test).float().permute(0, 3, 1, 2)
    torch.testing.assert_close(given, expected, atol=5e-3, rtol=5e-3)
    activations_of("small", ARRAYS, made, 32, 3)
    assert len(list(folder.glob("small-pooled-32px-cut3-*.npz"))) == 1
    activations_of("small", ARRAYS, made, 32, 4)
    activations_of("small", ARRAYS, made, 48, 3)
    assert len(list(folder.glob("*.npz"))) == 3


def test_activations_that_do_not_fit_half_precision_are_rejected(folder: Path) -> None:
    made = backbone()
    with torch.no_grad():
        made.module.get_parameter("stem.0.weight").mul_(1e7)
    with pytest.raises(ScenarioError, match="the activations of image 0 to 15 of small do not fit"):
        activations_of("small", ARRAYS, made, 32, 3)
    assert not list(folder.glob("*.npz"))


@pytest.mark.parametrize("trained", MODES)
@pytest.mark.parametrize("engine", ["vmap", "stacked", "auto"])
def test_engines_give_the_updates_of_the_reference(engine: str, trained: Trained) -> None:
    model = tuned(trained)
    held = [np.arange(device, 30, 4) for device in range(4)]
    training = LocalTraining(task=small_task(model), batches=Batches(held, 4, 10, seed=0), learning_rate=0.1)
    bursts = [Burst(device, 1, rounds) for device, rounds in enumerate([2, 1, 0, 3])]
    initial = torch.stack([model.initial(np.random.default_rng(device)) for device in range(4)]).double()
    expected, found = initial.clone(), initial.clone()
    make_engine("reference", training).run(list(expected.unbind()), bursts)
    make_engine(engine, training).run(list(found.unbind()), bursts)
    assert float((found - expected).norm()) <= 1e-10 * float((expected - initial).norm())
    assert torch.equal(found[2], initial[2])
    moved = (expected - initial)[3]
    # Everything but the inner factor of adapters, whose gradient is 0 at first, moves at the first step.
    assert float((moved != 0).double().mean()) > 0.4
    module = model.module()
    load_vector(module, expected[3].float())
    assert torch.equal(read_vector(module), expected[3].float())


@pytest.fixture
def cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    small = small_set(CIFAR10, ARRAYS)
    save_images(small, ARRAYS)
    monkeypatch.setitem(IMAGE_SETS, CIFAR10.name, small)  # type: ignore[arg-type]


OWN = """
import torch

def backbone():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, 2, 1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Conv2d(4, 5, 3, 2, 1),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
    )
"""


@pytest.mark.usefixtures("cifar10")
@pytest.mark.parametrize(("trained", "entries"), [("adapters", 60 + 5 * (5 + 36)), ("last-block", 60 + 185)])
def test_a_run_trains_sends_and_records_only_what_is_learned(trained: str, entries: int, tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(OWN, encoding="utf-8")
    named = ["learning.task=cifar10", f"learning.backbone={file}", "learning.backbone_pixels=32"]
    smaller = ["rounds=4", "fleet.devices=3", "learning.batch_size=4", "mobility.width_m=200", "mobility.height_m=200"]
    kinds = [f"learning.trained={trained}", "learning.trained_blocks=1"]
    scenario = wayfare.load(overrides=[*named, *smaller, *kinds])
    record = wayfare.run(scenario, "optimal", out=tmp_path / "runs")
    assert len(record.model) == model_of(scenario.learning).parameters == entries


@pytest.mark.usefixtures("cifar10")
def test_a_test_set_is_scored_by_parts_too(tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(OWN, encoding="utf-8")
    learning = Learning(task="cifar10", backbone=str(file), backbone_pixels=32, trained="everything")
    task = load_task(learning)
    assert isinstance(task, TunedClassification)
    module = task.model.module().eval()
    with torch.no_grad():
        score = task.evaluate(module).score
        (whole,) = task.scores_of_parts(module, [torch.arange(7)])
    assert score == pytest.approx(whole)
    assert task.test_classes.tolist() == ARRAYS.test_labels.tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trained": "adapters"}, r"learning\.trained = 'adapters': needs a backbone; without one"),
        ({"trained": "some"}, "learning.trained = 'some'"),
        ({"adapter_rank": 0}, "learning.adapter_rank = 0"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        wayfare.load(overrides=[f"learning.{name}={value}" for name, value in settings.items()])


def test_the_embedded_task_holds_features_only() -> None:
    learning = Learning(backbone="efficientnet-lite0", trained="norms")
    with pytest.raises(ScenarioError, match=r"learning\.trained = 'norms': fashion-small holds features only"):
        model_of(learning)


def test_efficientnet_lite0_is_a_chain_of_eighteen_blocks() -> None:
    lite0 = load_backbone("efficientnet-lite0")
    assert len(lite0.cuts) == 18
    image = lite0.trial_image
    with torch.inference_mode():
        expected = lite0.module(image)
        for blocks in (lite0.blocks, lite0.folded_blocks):
            torch.testing.assert_close(nn.Sequential(*blocks)(image), expected, rtol=1e-3, atol=1e-4)
    assert not any(isinstance(layer, nn.BatchNorm2d) for block in lite0.folded_blocks for layer in block.modules())
    model = Tuned(
        backbone=lite0, tuning=Tuning(trained="last-block", blocks=1, rank=8, alpha=16.0), head=Mlp((1280, 10))
    )
    assert (model.cut, model.parameters) == (17, 320 * 1280 + 2 * 1280 + 12_810)


@pytest.mark.parametrize(("preset", "task"), [("pretrained-cifar10", "cifar10"), ("pretrained-fashion", "fashion")])
def test_the_presets_train_a_head_on_the_contacts_of_the_paper(preset: str, task: str) -> None:
    scenario, paper = wayfare.load(preset), wayfare.load("paper-cifar10-waypoint")
    assert (scenario.learning.task, scenario.learning.trained, scenario.radio.bandwidth_hz) == (task, "head", 20e3)
    assert model_of(scenario.learning).parameters == 12_810
    for name in ("rounds", "round_s", "mobility", "fleet", "contacts"):
        assert getattr(scenario, name) == getattr(paper, name)
    assert scenario.learning.partition == paper.learning.partition
