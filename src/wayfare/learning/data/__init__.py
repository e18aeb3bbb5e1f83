"""Image data sets: downloaded once, verified after decoding, and cached as arrays.

Nothing here imports PyTorch, so that `wayfare data` starts fast.
"""

from wayfare.learning.data.cache import Verification, cached_file, load_images, verify_images
from wayfare.learning.data.download import Watch
from wayfare.learning.data.features import CachedFeatures, cached_features, features_named
from wayfare.learning.data.fetch import Outcome, fetch_images
from wayfare.learning.data.parts import pack_images
from wayfare.learning.data.sets import CIFAR10, FASHION, IMAGE_SETS, ImageArrays, ImageSet, image_set

__all__ = [
    "CIFAR10",
    "FASHION",
    "IMAGE_SETS",
    "CachedFeatures",
    "ImageArrays",
    "ImageSet",
    "Outcome",
    "Verification",
    "Watch",
    "cached_features",
    "cached_file",
    "features_named",
    "fetch_images",
    "image_set",
    "load_images",
    "pack_images",
    "verify_images",
]
