"""From sums to a linear classifier: logits = weights x + bias."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

from wayfare.learning.sums.layout import Found, Sums
from wayfare.threads import one_thread

# The logit of a class that no device has reported.
_UNSEEN = -30.0
# The least variance, as a share of the mean variance, and in units of the rounding error's spectrum.
_EMPTY, _RAISED = 1e-4, 1.5
# Single precision finds eigenvalues to about 1e-7 of the largest: those above the floor are then exact to 1e-3.
_SINGLE = 1e-4
# How far the norm of the eigenvalues may be from that of the matrix.
_SOLVED = 1e-4


@torch.no_grad()
@one_thread()
def linear_classifier(vector: Tensor, layout: Sums) -> tuple[Tensor, Tensor]:
    """Weights (classes, features) and bias (classes,) from a vector of sums. Without sums, both are 0.

    All classes have the same prior, because devices that have not sent yet may hold any class. One thread gives the
    same bits whatever the number of cores, so that a server can repeat what it has added to a model.
    """
    found = layout.unpacked(vector)
    seen = found.counts > 0
    if not bool(seen.any()):
        return vector.new_zeros(layout.classes, layout.features), vector.new_zeros(layout.classes)
    means = found.sums / found.counts.clamp(min=1).unsqueeze(1)
    match layout.collection.classifier:
        case "ridge":
            weights, bias = _ridge(found, layout)
        case classifier:
            weights = _solved(found, layout, means) if classifier != "means" else means
            bias = -0.5 * (weights * means).sum(1)
    bias = torch.where(seen, bias, bias[seen].min() + _UNSEEN)
    if layout.basis is not None:
        weights = weights @ layout.basis.to(weights).T
    return weights.to(vector.dtype), bias.to(vector.dtype)


def _solved(found: Found, layout: Sums, means: Tensor) -> Tensor:
    """Sigma^-1 mu for every class, with the covariance, or with the variances alone."""
    freedom = float(found.freedom)
    if freedom < 1:
        return means
    if not layout.has_products:
        variances = found.products.diagonal() / freedom
        floor = max(float(variances.mean()) * _EMPTY, _noise(found, layout, features=1))
        return means / variances.clamp(min=floor) if floor > 0 else means
    eigenvalues, vectors = _spectrum(found, layout, found.products / freedom, freedom)
    return (means @ vectors / eigenvalues) @ vectors.T


def _spectrum(found: Found, layout: Sums, covariance: Tensor, freedom: float) -> tuple[Tensor, Tensor]:
    """The eigenvalues of a covariance and its eigenvectors, regularised for rounding and for few samples.

    Rounding adds a symmetric matrix of independent errors of deviation e = step sqrt(devices / 12) / freedom. Its
    eigenvalues are within 2 e sqrt(features) (Wigner), so those of the sum are raised to 1.5 e sqrt(features), which
    measures best between 1 and 2. Sampling is covered by the shrinkage of Chen, Wiesel, Eldar and Hero (2010), which
    needs nothing but traces.

    Where devices train on, the server solves again whenever sums arrive, hundreds of times in a run. Single precision
    halves the time of it, and is taken where rounding hides the difference.
    """
    size = len(covariance)
    noise = _noise(found, layout, features=size)
    single = layout.collection.trains and noise > _SINGLE * float(covariance.norm())
    eigenvalues, vectors = _eigen(covariance, single=single)
    mean = float(eigenvalues.clamp(min=0).mean())
    floor = max(noise, _EMPTY * mean)
    eigenvalues = eigenvalues.clamp(min=floor if floor > 0 else 1.0)
    square, trace = float(eigenvalues.square().sum()), float(eigenvalues.sum())
    spread = square - trace**2 / size
    share = ((1 - 2 / size) * square + trace**2) / ((freedom + 1 - 2 / size) * spread) if spread > 0 else 1.0
    share = min(share, 1.0)
    return (1 - share) * eigenvalues + share * trace / size, vectors


def _eigen(matrix: Tensor, *, single: bool) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, in single precision if that is wanted and succeeds.

    MKL's solver in single precision fails on some matrices, such as those of products that arrived in part: with one
    thread it gives NaN or raises an error. A check of the norm is cheap and notices both.
    """
    if single:
        # LinAlgError is one of these.
        with suppress(RuntimeError):
            eigenvalues, vectors = (part.double() for part in torch.linalg.eigh(matrix.float()))
            if bool(vectors.isfinite().all()) and torch.allclose(eigenvalues.norm(), matrix.norm(), rtol=_SOLVED):
                return eigenvalues, vectors
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    return eigenvalues, vectors


def _noise(found: Found, layout: Sums, features: int) -> float:
    error = layout.product_step * math.sqrt(float(found.devices) / 12) / max(float(found.freedom), 1.0)
    return _RAISED * error * math.sqrt(features)


def _ridge(found: Found, layout: Sums) -> tuple[Tensor, Tensor]:
    """Least squares to +1 for the class and 0 for the others, with an intercept; the covariance is regularised.

    The scatter about the common mean is that within classes plus that between them. Every class counts as much as any
    other, as in `lda`.
    """
    seen = found.counts > 0
    means = found.sums / found.counts.clamp(min=1).unsqueeze(1)
    centre = means[seen].mean(0)
    away = torch.where(seen.unsqueeze(1), means - centre, 0.0)
    classes, freedom = int(seen.sum()), float(found.freedom)
    between = away.T @ away / classes
    within = found.products / max(freedom, 1.0)
    eigenvalues, vectors = _spectrum(found, layout, within + between, max(freedom, 1.0))
    weights = ((away / classes) @ vectors / eigenvalues) @ vectors.T
    return weights, 1 / classes - weights @ centre
