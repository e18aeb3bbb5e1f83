"""Backbones by name: our own, those of torchvision and timm, and those of a user's file."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from wayfare.errors import ScenarioError, UnavailableError
from wayfare.learning.backbones.base import Backbone
from wayfare.methods.from_file import module_of
from wayfare.scenario.load import names_python_file

_FIELD = "learning.backbone"
_IMAGENET_MEAN, _IMAGENET_DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
# The last layers of torchvision's classifiers, by the name of the attribute that holds them.
_LAST_LAYERS = ("fc", "classifier", "heads", "head")


def load_backbone(name: str) -> Backbone:
    """The backbone of a name, with its weights."""
    return _from_file(name) if names_python_file(name) else _installed(name)


@lru_cache(maxsize=2)
def _installed(name: str) -> Backbone:
    if name == "efficientnet-lite0":
        return _efficientnet_lite0()
    library, _, model = name.partition(":")
    if model and library in _LIBRARIES:
        try:
            return _LIBRARIES[library](name, model)
        except ImportError:
            rule = f"needs {library}: pip install {library}"
            raise UnavailableError(f"{_FIELD} = {name!r}: {rule}") from None
        except (ValueError, KeyError, RuntimeError, OSError) as error:
            raise UnavailableError(f"{_FIELD} = {name!r}: {library} cannot load it: {error}") from None
    rule = "must be none, efficientnet-lite0, torchvision:NAME, timm:NAME, or your own as FILE.py:FUNCTION"
    raise ScenarioError(_FIELD, name, rule)


def _efficientnet_lite0() -> Backbone:
    from wayfare.learning.backbones.efficientnet_lite0 import DEVIATION, FEATURES, MEAN, pretrained

    return Backbone(
        name="efficientnet-lite0", module=pretrained(), features=FEATURES, mean=(MEAN,) * 3, deviation=(DEVIATION,) * 3
    )


def _torchvision(name: str, model: str) -> Backbone:
    module: nn.Module = importlib.import_module("torchvision.models").get_model(model, weights="DEFAULT")
    last = next((layer for layer in _LAST_LAYERS if hasattr(module, layer)), None)
    if last is None:
        raise ValueError(f"has none of the last layers {', '.join(_LAST_LAYERS)}; give it as a function of your own")
    setattr(module, last, nn.Identity())
    return _measured(name, module, _IMAGENET_MEAN, _IMAGENET_DEVIATION)


def _timm(name: str, model: str) -> Backbone:
    timm: Any = importlib.import_module("timm")
    module: nn.Module = timm.create_model(model, pretrained=True, num_classes=0)
    settings = timm.data.resolve_model_data_config(module)
    mean, deviation = (tuple(255 * value for value in settings[part]) for part in ("mean", "std"))
    return _measured(name, module, mean, deviation)


_LIBRARIES: dict[str, Callable[[str, str], Backbone]] = {"torchvision": _torchvision, "timm": _timm}


def _from_file(name: str) -> Backbone:
    module, function = module_of(name, _FIELD)
    found = vars(module).get(function or "backbone")
    if found is None:
        raise ScenarioError(_FIELD, name, f"the file has no {function or 'backbone'}")
    made = found() if callable(found) and not isinstance(found, nn.Module) else found
    if isinstance(made, nn.Module):
        made = _measured(name, made, _IMAGENET_MEAN, _IMAGENET_DEVIATION)
    if not isinstance(made, Backbone):
        rule = f"gave {type(made).__name__}; must be a torch module from images to features, or a wayfare Backbone"
        raise ScenarioError(_FIELD, name, rule)
    return made


def _measured(name: str, module: nn.Module, mean: Any, deviation: Any) -> Backbone:
    """Count the features by one image."""
    with torch.inference_mode():
        features = module.eval()(torch.zeros(1, 3, 64, 64))
    if features.ndim != 2:
        raise ScenarioError(_FIELD, name, f"gives {tuple(features.shape)} for one image; must be (1, features)")
    return Backbone(name=name, module=module, features=features.shape[1], mean=mean, deviation=deviation)
