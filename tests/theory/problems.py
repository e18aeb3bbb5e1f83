"""Counts and problems for the tests of the theory."""

from __future__ import annotations

import numpy as np

from wayfare.theory.montecarlo import Problem


def ages(met: np.ndarray) -> np.ndarray:
    """theta = r - kappa^(r) at the end of every round (rounds x devices); kappa is 0 before the first contact."""
    numbers = np.arange(1, len(met) + 1)[:, None]
    return numbers - np.maximum.accumulate(np.where(met, numbers, 0), axis=0)


def ages_at_contacts(met: np.ndarray) -> np.ndarray:
    """r - kappa^(r-1) of all contact rounds but each device's first, whose age is cut by the start."""
    return np.concatenate([np.empty(0, np.int64), *(np.diff(np.flatnonzero(column)) for column in met.T)])


def quadratic_problem(rng: np.random.Generator, devices: int, entries: int, *, noise: float) -> Problem:
    """Bowls with L = 1 around optima that differ from device to device."""
    optima = 1.0 + rng.standard_normal((devices, entries))
    return Problem(optima=optima, slopes=np.zeros((devices, entries)), smoothness=1.0, noise=noise)


def loss(problem: Problem, model: np.ndarray) -> float:
    """F(w)."""
    square = 0.5 * problem.smoothness * np.square(model - problem.optima).sum(axis=1)
    return float((square + problem.slopes @ model).mean())
