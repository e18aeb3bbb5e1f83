"""A backbone in a file of the user: what it must give."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import wayfare
from wayfare.errors import ScenarioError
from wayfare.identity import changes, identity_of
from wayfare.learning.backbones import Backbone, load_backbone
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.tuned import Tuned, Tuning
from wayfare.methods import make_method


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (
            "random",
            r"gives other weights at every call; load them from a file, or call torch.manual_seed\(0\)",
        ),
        ("scaled", "must be a function without arguments, or a torch module"),
        ("Corner", "must be a function without arguments, or a torch module"),
        ("missing", "the file has no missing"),
        ("named", r"gives dict for one image; must be a tensor of real numbers of the shape \(1, features\)"),
        ("counted", r"gives \(1, 2\) for one image, of the type torch\.int32; must be a tensor of real numbers"),
        ("empty", r"gives \(1, 0\) for one image, of the type torch\.float32; must be"),
        ("doubled", r"gives \(2, 48\) for one image, of the type torch\.float32; must be"),
    ],
)
def test_a_function_that_gives_no_certain_backbone_is_refused(function: str, rule: str, tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    code = """
import torch

class Corner(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = torch.nn.Parameter(scale)

    def forward(self, images):
        return self.scale * images[:, :, :4, :4].flatten(1)

class Other(Corner):
    def __init__(self, of):
        super().__init__(torch.ones(1))
        self.of = of

    def forward(self, images):
        return self.of(super().forward(images))

def named():
    return Other(lambda features: {"features": features})

def counted():
    return Other(lambda features: features[:, :2].int())

def empty():
    return Other(lambda features: features[:, :0])

def doubled():
    return Other(lambda features: torch.cat([features, features]))

def scaled(scale):
    return Corner(scale)

def random():
    return Corner(torch.rand(1))

def seeded():
    torch.manual_seed(0)
    return random()
"""
    file.write_text(code, encoding="utf-8")
    with pytest.raises(ScenarioError, match=rf"learning\.backbone = '.*py:{function}': {rule}"):
        load_backbone(f"{file}:{function}")
    with torch.random.fork_rng():
        assert load_backbone(f"{file}:seeded").digest == load_backbone(f"{file}:seeded").digest


def test_code_that_the_file_imports_is_part_of_the_identity(tmp_path: Path) -> None:
    """The features change with it, so runs with the old code must not be taken for runs with the new one."""
    file, layers = (tmp_path / f"{tmp_path.name}_{name}.py" for name in ("mine", "layers"))
    mine = f"""
import torch
from {layers.stem} import Corner

def backbone():
    return Corner()
"""
    scenario = wayfare.load("pretrained-cifar10", [f"learning.backbone={file}"])
    identities = []
    for code in ("relu", "negative", "relu"):
        text = """
import torch

def changed(x):
    return x.CODE()

class Corner(torch.nn.Module):
    def forward(self, images):
        return changed(images[:, :, :4, :4].flatten(1))
"""
        file.write_text(mine, encoding="utf-8")
        layers.write_text(text.replace("CODE", code), encoding="utf-8")
        # As in a new process.
        for module in (file, layers):
            sys.modules.pop(module.stem, None)
        identities.append(identity_of(scenario, make_method("mads", scenario)))
    first, second, third = identities
    assert first == third
    assert changes(first, second) == ["the content of learning.backbone"]
    assert load_backbone(f"{file}").digest == first["backbone"].split()[0]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_scripted_network_gives_features_and_only_a_head_is_trained_on_it() -> None:
    with torch.random.fork_rng():
        plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    made = [
        Backbone(name="net", module=module, features=4, mean=(0.0,) * 3, deviation=(255.0,) * 3)
        for module in (plain, torch.jit.script(plain))
    ]
    images = torch.arange(3 * 32 * 32).view(1, 3, 32, 32) % 256
    torch.testing.assert_close(*(each(images, 32) for each in made))
    tuning = Tuning(trained="last-block", blocks=1, rank=1, alpha=1.0)
    with pytest.raises(ScenarioError, match=r"trained = 'last-block': net has scripted layers .*; must be head"):
        assert Tuned(backbone=made[1], tuning=tuning, head=Mlp((4, 2))).parameters


def test_weights_of_any_type_have_a_digest() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    halved = nn.Sequential(nn.Flatten(), nn.Linear(3, 2).to(torch.bfloat16))
    halved.load_state_dict(module.state_dict())
    digests = {
        Backbone(name="a", module=each, features=2, mean=(0.0,) * 3, deviation=(1.0,) * 3).digest  # type: ignore[arg-type]
        for each in (module, halved)
    }
    assert len(digests) == 2
