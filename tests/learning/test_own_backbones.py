"""A backbone in a file of the user: what it must give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from wayfare.errors import ScenarioError
from wayfare.learning.backbones import Backbone, load_backbone


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


def test_weights_of_any_type_have_a_digest() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    halved = nn.Sequential(nn.Flatten(), nn.Linear(3, 2).to(torch.bfloat16))
    halved.load_state_dict(module.state_dict())
    digests = {
        Backbone(name="a", module=each, features=2, mean=(0.0,) * 3, deviation=(1.0,) * 3).digest  # type: ignore[arg-type]
        for each in (module, halved)
    }
    assert len(digests) == 2
