"""Classification on top of a pre-trained backbone: devices train and send only what `learning.trained` says."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from wayfare.errors import ScenarioError
from wayfare.learning.backbones import Backbone, activations_of, features_of, load_backbone
from wayfare.learning.data import IMAGE_SETS, load_images
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.tuned import Tuned, Tuning
from wayfare.learning.tasks import fashion_small
from wayfare.learning.tasks.base import Classification
from wayfare.learning.tasks.tuned import TunedClassification, from_activations
from wayfare.scenario.model import NO_BACKBONE, Learning

_NETWORKS = ("auto", "linear", "mlp")
_EMBEDDED = "fashion-small"


def pretrained_model(learning: Learning) -> Mlp | Tuned:
    """The trained network: a head, or a head with the trained part of the backbone.

    The head is one linear layer, or a perceptron with the scenario's hidden layers.
    """
    _check(learning)
    hidden = learning.hidden if learning.network == "mlp" else ()
    if learning.task == _EMBEDDED:
        return Mlp((fashion_small.FEATURES, *hidden, fashion_small.CLASSES))
    backbone = load_backbone(learning.backbone)
    head = Mlp((backbone.features, *hidden, len(IMAGE_SETS[learning.task].classes)))
    if learning.trained == "head":
        return head
    tuning = Tuning(
        trained=learning.trained,
        blocks=learning.trained_blocks,
        rank=learning.adapter_rank,
        alpha=learning.adapter_alpha,
    )
    return Tuned(backbone=backbone, tuning=tuning, head=head)


def pretrained_task(learning: Learning) -> Classification | TunedClassification:
    """The image set of a scenario as what the trained network gets: features, activations, or images."""
    model = pretrained_model(learning)
    return _tuned_task(learning, model) if isinstance(model, Tuned) else _features_task(learning, model)


def _features_task(learning: Learning, model: Mlp) -> Classification:
    if learning.task == _EMBEDDED:
        return fashion_small.fashion_features_task(model)
    spec = IMAGE_SETS[learning.task]
    images, backbone = load_images(spec), load_backbone(learning.backbone)
    found = features_of(spec.name, images, backbone, learning.backbone_pixels)
    return Classification(
        name=spec.name,
        model=model,
        classes=len(spec.classes),
        train_inputs=torch.from_numpy(found.train).float(),
        train_labels=torch.from_numpy(images.train_labels).long(),
        test_inputs=torch.from_numpy(found.test).float(),
        test_labels=torch.from_numpy(images.test_labels).long(),
    )


def _tuned_task(learning: Learning, model: Tuned) -> TunedClassification:
    """Cached activations at the cut; images if the first block is trained."""
    spec, pixels = IMAGE_SETS[learning.task], learning.backbone_pixels
    images = load_images(spec)
    model.backbone.check_pixels(pixels)
    train, test = torch.from_numpy(images.train_images), torch.from_numpy(images.test_images)
    prepare: Callable[[Tensor], Tensor] = partial(model.backbone.prepare, pixels=pixels)
    if model.cut:
        found = activations_of(spec.name, images, model.backbone, pixels, model.cut)
        train, test, prepare = torch.from_numpy(found.train), torch.from_numpy(found.test), from_activations
    return TunedClassification(
        name=spec.name,
        model=model,
        classes=len(spec.classes),
        class_names=spec.classes,
        train_stored=train,
        train_labels=torch.from_numpy(images.train_labels).long(),
        test_stored=test,
        test_labels=torch.from_numpy(images.test_labels).long(),
        prepare=prepare,
        on_features=partial(_features_task, learning, model.head),
    )


def backbone_digest(learning: Learning) -> str | None:
    """The digest of the scenario's backbone; None if it has none, or if its features are part of the package."""
    without = learning.backbone == NO_BACKBONE or learning.task == _EMBEDDED
    return None if without else _digest_of(load_backbone(learning.backbone))


@lru_cache(maxsize=1)
def _digest_of(backbone: Backbone) -> str:
    """A study asks for every run, and all runs share the backbone of a library."""
    return backbone.digest


def _check(learning: Learning) -> None:
    if learning.task not in (_EMBEDDED, *IMAGE_SETS):
        rule = f"needs images: learning.task must be one of {', '.join((_EMBEDDED, *IMAGE_SETS))}"
        raise ScenarioError("learning.backbone", learning.backbone, rule)
    if learning.task == _EMBEDDED and learning.backbone != fashion_small.BACKBONE:
        rule = f"{_EMBEDDED} holds features of {fashion_small.BACKBONE} only"
        raise ScenarioError("learning.backbone", learning.backbone, rule)
    if learning.task == _EMBEDDED and learning.backbone_pixels != fashion_small.BACKBONE_PIXELS:
        rule = f"{_EMBEDDED} holds features at {fashion_small.BACKBONE_PIXELS} pixels only"
        raise ScenarioError("learning.backbone_pixels", learning.backbone_pixels, rule)
    if learning.task == _EMBEDDED and learning.trained != "head":
        rule = f"{_EMBEDDED} holds features only, so it must be head; the tasks {', '.join(IMAGE_SETS)} hold images"
        raise ScenarioError("learning.trained", learning.trained, rule)
    if learning.network not in _NETWORKS:
        rule = f"on top of a backbone it must be one of {', '.join(_NETWORKS)}"
        raise ScenarioError("learning.network", learning.network, rule)
    if learning.augment:
        rule = "a backbone sees each image once, so it cannot be moved and mirrored"
        raise ScenarioError("learning.augment", learning.augment, rule)
    if learning.recalibrate_statistics:
        rule = "needs batch normalisation, and the network on top of a backbone has none"
        raise ScenarioError("learning.recalibrate_statistics", learning.recalibrate_statistics, rule)
