"""Frozen pre-trained networks that turn images into feature vectors.

A scenario names one in `learning.backbone`: `efficientnet-lite0`, `torchvision:NAME`, `timm:NAME`, or a function of
your own as `mine.py:backbone`. Features are computed once and cached (`wayfare.learning.backbones.features`).
"""

from wayfare.learning.backbones.base import Backbone
from wayfare.learning.backbones.features import Features, features_of
from wayfare.learning.backbones.named import load_backbone

__all__ = ["Backbone", "Features", "features_of", "load_backbone"]
