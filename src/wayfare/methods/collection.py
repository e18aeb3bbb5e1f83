"""What devices collect instead of, or before, training: class statistics that add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from wayfare.errors import ScenarioError

Classifier: TypeAlias = Literal["ridge", "lda", "gaussian", "means"]
"""How the server turns sums into a classifier; the first is the default.

- ``ridge``: ridge regression to the classes, regularised by the sums' own uncertainty. Measures best.
- ``lda``: linear discriminant analysis with one covariance for all classes, from the same sums. Its outputs are log
  probabilities, up to a constant, so that training can start from it.
- ``gaussian``: normal distributions with one variance per feature; needs no covariance.
- ``means``: the nearest class mean.
"""
CLASSIFIERS: tuple[Classifier, ...] = ("ridge", "lda", "gaussian", "means")

# Of coarseness, scale and sharpness: beyond these, steps and logits leave the range of numbers.
_LEAST, _MOST = 1e-9, 1e9

PILOT: dict[str, Any] = {"pilot": 1000, "coarseness": 4.0}
"""`:pilot`: axes from a thousand samples, along which coarser steps lose no more."""


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Which statistics of its samples a device collects, how exactly, and what becomes of them.

    Sums are whole numbers of steps, rounded once on the device, so that they add up exactly in any order. Steps grow
    with the root of the mean number of samples on a device, as the sampling error of a sum does.
    """

    classifier: Classifier = "ridge"
    # The step of a sum of products, in standard deviations of sampling. Sums of features have an eighth of it.
    coarseness: float = 2.0
    scale: float = 1.0  # the typical size of a feature; backbones give 1
    min_count: int = 5  # a device sends nothing about a class of which it has fewer samples
    # Samples without labels that the operator has before the fleet starts. Their principal axes, known to all devices,
    # are the axes of products, which then are small and cost few bits. 0: the axes are the features.
    pilot: int = 0
    trains: bool = False  # whether devices then train the classifier that the sums give
    # Training starts from the classifier's logits times this. On features of a backbone they are too large, and steps
    # of a usual size then destroy what was trained before. A fleet soon learns larger ones.
    sharpness: float = 0.25

    def __post_init__(self) -> None:
        if self.classifier not in CLASSIFIERS:
            raise ScenarioError("classifier", self.classifier, f"must be one of {', '.join(CLASSIFIERS)}")
        sizes = {"coarseness": self.coarseness, "scale": self.scale, "sharpness": self.sharpness}
        for name, value in sizes.items():
            if type(value) not in (int, float) or not _LEAST <= value <= _MOST:
                raise ScenarioError(name, value, f"must be a number from {_LEAST:g} to {_MOST:g}")
        for name, whole, least in (("min_count", self.min_count, 1), ("pilot", self.pilot, 0)):
            if type(whole) is not int or whole < least:
                raise ScenarioError(name, whole, f"must be a whole number of at least {least}")
