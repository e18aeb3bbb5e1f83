"""Pre-trained networks that turn images into feature vectors.

A scenario names one in `learning.backbone`: `efficientnet-lite0`, `torchvision:NAME`, `timm:NAME`, or a function of
your own as `mine.py:backbone`. What its frozen part gives is computed once and cached
(`wayfare.learning.backbones.features`): feature vectors if only a head is trained, and otherwise the activations at the
cut, which the first trained block gets.

Design decisions:

- A backbone is a chain of blocks, so that a cut is an index. Networks that are no chain are frozen or trained as a
  whole.
- Backbones stay in evaluation mode in training. Statistics of batch normalisation are then constants that do not
  travel, and engines need no case for them.
- The frozen part has its normalisations folded into convolutions. The trained part keeps them, except with adapters.
"""

from wayfare.learning.backbones.base import Backbone
from wayfare.learning.backbones.features import Features, activations_of, features_of
from wayfare.learning.backbones.named import load_backbone

__all__ = ["Backbone", "Features", "activations_of", "features_of", "load_backbone"]
