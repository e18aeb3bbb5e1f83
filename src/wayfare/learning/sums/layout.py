"""The layout of class statistics in a vector."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wayfare.codec.whole import MAX_WHOLE
from wayfare.errors import ScenarioError
from wayfare.methods import Collection

# Entries before those of the classes: devices that contributed, and degrees of freedom.
_HEAD = 2
# Sums of features are few, so they have finer steps than sums of products.
_FINER = 8
# The server holds several matrices of this size in double precision, of 0.5 GB each.
_MOST_FEATURES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What is summed: devices, degrees of freedom, counts and sums by class, variances, products of two features.

    Entries are in this order. Variances and products are missing where the classifier does not use them.
    """

    collection: Collection
    classes: int
    features: int
    samples: float  # the mean number of samples of a device
    basis: Tensor | None = field(default=None, repr=False, compare=False)  # (features, features): columns are axes

    def __post_init__(self) -> None:
        if self.has_products and self.features > _MOST_FEATURES:
            entries = self.features * (self.features - 1) // 2
            rule = (
                f"products of {self.features:,} features are {entries:,} entries; use gaussian or means, or a backbone "
                f"with at most {_MOST_FEATURES:,} features"
            )
            raise ScenarioError("classifier", self.collection.classifier, rule)

    @property
    def has_variances(self) -> bool:
        return self.collection.classifier != "means"

    @property
    def has_products(self) -> bool:
        return self.collection.classifier in ("lda", "ridge")

    @property
    def first(self) -> int:
        """The number of entries that go before all others: everything but products of two features."""
        variances = self.features if self.has_variances else 0
        return _HEAD + self.classes * (1 + self.features) + variances

    @property
    def entries(self) -> int:
        return self.first + (self.features * (self.features - 1) // 2 if self.has_products else 0)

    @property
    def product_step(self) -> float:
        """The power of two next to coarseness sqrt(samples) scale^2."""
        return _power_of_two(self._deviation * self.collection.scale**2)

    @property
    def sum_step(self) -> float:
        return _power_of_two(self._deviation * self.collection.scale / _FINER)

    @property
    def _deviation(self) -> float:
        return self.collection.coarseness * math.sqrt(self.samples)

    def check_range(self, vector: Tensor) -> None:
        """Raise ScenarioError if single precision cannot add these steps exactly."""
        steps = float(vector.abs().max())
        # NaN is not below the limit either.
        if not steps < MAX_WHOLE:
            rule = (
                f"a sum has {steps:,.0f} steps, and sums are exact below {MAX_WHOLE:,}; "
                "set the typical size of a feature, or a larger coarseness"
            )
            raise ScenarioError("scale", self.collection.scale, rule)

    def packed(self, found: Found) -> Tensor:
        """The vector of some statistics, in whole steps."""
        pieces = [found.devices.view(1), found.freedom.view(1), found.counts, found.sums.flatten() / self.sum_step]
        if self.has_variances:
            pieces.append(found.products.diagonal() / self.product_step)
        if self.has_products:
            pieces.append(found.products[self._above_diagonal(found.products)] / self.product_step)
        return torch.cat(pieces).round()

    def unpacked(self, vector: Tensor) -> Found:
        """Statistics in double precision from a vector."""
        numbers = vector.double()
        classes, features = self.classes, self.features
        counts, sums, variances, above = numbers[_HEAD : self.entries].split(
            [classes, classes * features, features * self.has_variances, self.entries - self.first]
        )
        products = torch.diag(variances) if self.has_variances else numbers.new_zeros(features, features)
        if self.has_products:
            products[self._above_diagonal(products)] = above
            products = products + products.triu(1).T
        return Found(
            devices=numbers[0],
            freedom=numbers[1],
            counts=counts,
            sums=self.sum_step * sums.view(classes, features),
            products=self.product_step * products,
        )

    def _above_diagonal(self, like: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = torch.triu_indices(self.features, self.features, 1, device=like.device)
        return rows, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Statistics of some samples."""

    devices: Tensor  # that contributed
    freedom: Tensor  # samples less one per device and class: the expected products are freedom times the covariance
    counts: Tensor  # (classes,)
    sums: Tensor  # (classes, features)
    products: Tensor  # (features, features): of deviations from the class mean of the device


def _power_of_two(number: float) -> float:
    return 2.0 ** round(math.log2(number))
