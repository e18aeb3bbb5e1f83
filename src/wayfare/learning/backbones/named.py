"""Backbones by name: our own, those of torchvision and timm, and those of a user's file."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from inspect import signature
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from wayfare.errors import ScenarioError, UnavailableError
from wayfare.learning.backbones.base import Backbone
from wayfare.learning.backbones.chain import folded
from wayfare.learning.backbones.downloads import cached_or_from_hub, check_download, no_weights
from wayfare.learning.chance import private_draws
from wayfare.methods.from_file import module_of
from wayfare.scenario.load import names_python_file

_FIELD = "learning.backbone"
_IMAGENET_MEAN, _IMAGENET_DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
# The last layers of torchvision's classifiers, by the name of the attribute that holds them.
_LAST_LAYERS = ("fc", "classifier", "heads", "head")
# Convolutional networks take the first size. Vision transformers take only the one that they were trained with.
_SIZES = (64, 224, 256, 384)
_LOCAL = "name a file with its weights as NAME@FILE"


def load_backbone(name: str) -> Backbone:
    """The backbone of a name, with its weights."""
    if not isinstance(name, str):
        raise ScenarioError(_FIELD, name, "must be a name or FILE.py:FUNCTION")
    if names_python_file(name):
        with private_draws():
            return _from_file(name)
    _, _, weights = name.partition("@")
    try:
        changed_ns = Path(weights).stat().st_mtime_ns if weights else 0
    except OSError as error:
        raise UnavailableError(f"{_FIELD} = {name!r}: the file of weights: {error.strerror}") from None
    with private_draws():
        return _installed(name, changed_ns)


@lru_cache(maxsize=2)
def _installed(name: str, changed_ns: int) -> Backbone:
    """Shared by all runs of a process; a changed file of weights is read again."""
    if name == "efficientnet-lite0":
        return _efficientnet_lite0()
    library, _, model = name.partition(":")
    model, _, weights = model.partition("@")
    if model and library in _LIBRARIES:
        try:
            return _LIBRARIES[library](f"{library}:{model}", model, weights)
        except ImportError:
            rule = f"needs {library}: pip install {library}"
            raise UnavailableError(f"{_FIELD} = {name!r}: {rule}") from None
        except (ValueError, KeyError, RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            raise UnavailableError(f"{_FIELD} = {name!r}: {library} cannot load it: {reason}") from None
    rule = (
        "must be none, efficientnet-lite0, torchvision:NAME, timm:NAME (NAME@FILE with a file of weights), "
        "or your own as FILE.py:FUNCTION"
    )
    raise ScenarioError(_FIELD, name, rule)


def _efficientnet_lite0() -> Backbone:
    from wayfare.learning.backbones.efficientnet_lite0 import DEVIATION, FEATURES, MEAN, pretrained

    network = pretrained()
    return Backbone(
        name="efficientnet-lite0",
        module=folded(network),
        features=FEATURES,
        mean=(MEAN,) * 3,
        deviation=(DEVIATION,) * 3,
        chain=network.chain,
    )


def _torchvision(name: str, model: str, weights: str) -> Backbone:
    models: Any = importlib.import_module("torchvision.models")
    known = models.get_model_weights(model)
    entry = known["DEFAULT"] if "DEFAULT" in known.__members__ else None
    if not weights and entry is None:
        raise ValueError(f"torchvision has no weights for {model}; {_LOCAL}")
    if not weights and entry is not None:
        check_download(entry.url)
    try:
        module: nn.Module = models.get_model(model, weights=None if weights else entry)
    except OSError as error:
        raise no_weights(f"they cannot be downloaded ({error})") from None
    last = next((layer for layer in _LAST_LAYERS if hasattr(module, layer)), None)
    if last is None:
        raise ValueError(f"has none of the last layers {', '.join(_LAST_LAYERS)}; give your own function")
    setattr(module, last, _before_classes(getattr(module, last)))
    if weights:
        _load_weights(module, weights, last)
    if entry is None:
        return _measured(name, module, _IMAGENET_MEAN, _IMAGENET_DEVIATION, "bilinear")
    settings = entry.transforms()
    return _measured(name, module, *_in_bytes(settings.mean, settings.std), settings.interpolation.value)


def _before_classes(classifier: nn.Module) -> nn.Module:
    """What a classifier does before its linear layers. One of convolutions is replaced by the mean over all pixels."""
    layers = list(classifier) if isinstance(classifier, nn.Sequential) else [classifier]
    linear = next((index for index, layer in enumerate(layers) if isinstance(layer, nn.Linear)), None)
    if linear is None:
        return nn.AdaptiveAvgPool2d(1)
    kept = [layer for layer in layers[:linear] if not isinstance(layer, nn.Dropout)]
    return nn.Sequential(*kept) if kept else nn.Identity()


def _timm(name: str, model: str, weights: str) -> Backbone:
    timm: Any = importlib.import_module("timm")
    module: nn.Module = timm.create_model(model, pretrained=False, num_classes=0)
    settings: Any = module.pretrained_cfg
    if weights:
        _load_weights(module, weights, settings.get("classifier") or "head")
    else:
        if not (settings.get("url") or settings.get("hf_hub_id") or settings.get("file")):
            raise ValueError(f"timm has no weights for {model}; {_LOCAL}")
        if settings.get("url") and not settings.get("hf_hub_id"):
            check_download(settings["url"])
        with cached_or_from_hub():
            module = timm.create_model(model, pretrained=True, num_classes=0)
    found = timm.data.resolve_model_data_config(module)
    return _measured(name, module, *_in_bytes(found["mean"], found["std"]), found["interpolation"])


_LIBRARIES: dict[str, Callable[[str, str, str], Backbone]] = {"torchvision": _torchvision, "timm": _timm}


def _load_weights(module: nn.Module, file: str, last: str) -> None:
    """Load a state dict. It must hold every entry of the network, and besides them only those of its last layer."""
    state: Any
    try:
        if file.endswith(".safetensors"):
            state = importlib.import_module("safetensors.torch").load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except ImportError:
        raise ValueError(f"{file} needs safetensors: pip install safetensors") from None
    except UnpicklingError:
        raise ValueError(
            f"{file} is damaged, or holds more than tensors, which could run any code; save network.state_dict() in it"
        ) from None
    except Exception as error:
        # A damaged file can raise any error. PyTorch adds advice for developers to some.
        reason = str(error).partition(". ")[0]
        raise ValueError(f"{file} cannot be read: {type(error).__name__}: {reason}") from None
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not (isinstance(state, Mapping) and all(isinstance(entry, Tensor) for entry in state.values())):
        held = f"; it holds {', '.join(map(str, list(state)[:5]))}" if isinstance(state, Mapping) else ""
        raise ValueError(f"{file} is not a state dict: a table of tensors by name{held}")
    for name, entry in module.state_dict().items():
        if name in state and state[name].shape != entry.shape:
            shapes = f"{name} has the shape {tuple(state[name].shape)} and must have {tuple(entry.shape)}"
            raise ValueError(f"{file} holds the weights of another network: {shapes}")
    found = module.load_state_dict(dict(state), strict=False)
    others = [name for name in found.unexpected_keys if name.partition(".")[0] != last.partition(".")[0]]
    if found.missing_keys or others:
        what = [f"lacks {name}" for name in found.missing_keys[:1]] + [f"holds {name}" for name in others[:1]]
        raise ValueError(f"{file} holds the weights of another network: it {' and '.join(what)}")


def _in_bytes(mean: Any, deviation: Any) -> tuple[Any, Any]:
    return tuple(255 * value for value in mean), tuple(255 * value for value in deviation)


def _from_file(name: str) -> Backbone:
    module, function = module_of(name, _FIELD)
    found = vars(module).get(function or "backbone")
    if found is None:
        raise ScenarioError(_FIELD, name, f"the file has no {function or 'backbone'}")
    # The name of the file without its folder: the content counts.
    code = hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()
    made = _made(name, found, code)
    if (name, code) not in _STEADY:
        if _made(name, found, code).digest != made.digest:
            rule = "gives other weights at every call; load them from a file, or call torch.manual_seed(0) in it first"
            raise ScenarioError(_FIELD, name, rule)
        _STEADY.add((name, code))
    return made


# Names and code of files whose backbone was equal at two calls. A run makes it several times, in several processes.
_STEADY: set[tuple[str, str]] = set()


def _made(name: str, found: Any, code: str) -> Backbone:
    """The backbone that an object of a file is or gives."""
    if callable(found) and not isinstance(found, nn.Module):
        try:
            signature(found).bind()
        except TypeError:
            raise ScenarioError(_FIELD, name, "must be a function without arguments, or a torch module") from None
        found = found()
    if isinstance(found, nn.Module):
        found = _measured(Path(name).name, found, _IMAGENET_MEAN, _IMAGENET_DEVIATION, "bicubic")
    if not isinstance(found, Backbone):
        rule = f"gave {type(found).__name__}; must be a torch module from images to features, or a wayfare Backbone"
        raise ScenarioError(_FIELD, name, rule)
    return replace(found, code=code)


def _measured(name: str, module: nn.Module, mean: Any, deviation: Any, interpolation: str) -> Backbone:
    """Count the features by one image, of the first size that the network takes."""
    for pixels in _SIZES:
        try:
            with torch.inference_mode():
                features = module.eval()(torch.zeros(1, 3, pixels, pixels))
            break
        except Exception as error:
            # Networks raise many kinds of errors for a wrong size.
            problem = error
    else:
        sizes = ", ".join(map(str, _SIZES))
        raise ScenarioError(_FIELD, name, f"takes no images of {sizes} pixels: {problem}")
    real = isinstance(features, Tensor) and features.is_floating_point()
    if not real or features.shape[:-1] != (1,) or not features.numel():
        given = f"{type(features).__name__} for one image"
        if isinstance(features, Tensor):
            given = f"{tuple(features.shape)} for one image, of the type {features.dtype}"
        rule = f"gives {given}; must be a tensor of real numbers of the shape (1, features)"
        raise ScenarioError(_FIELD, name, rule)
    return Backbone(
        name=name,
        module=module,
        features=features.shape[1],
        mean=mean,
        deviation=deviation,
        interpolation="bilinear" if interpolation == "bilinear" else "bicubic",
        trial_pixels=pixels,
    )
