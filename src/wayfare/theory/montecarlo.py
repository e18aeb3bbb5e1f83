"""Monte Carlo checks of the bounds: Algorithm 1 with drawn contacts on a problem with known constants.

The problem is small on purpose: a few dozen entries represent a model of millions. Each entry carries as many bits as
needed for a contact to send the same share of an update.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wayfare.arrays import Bools, Floats
from wayfare.theory.staleness import Counting


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnContacts:
    """Contact rounds of each device (rounds x devices), and the seconds of contact that they count."""

    met: Bools
    seconds: Floats


def draw_contacts(
    rng: np.random.Generator,
    *,
    contact_s: float,
    inter_contact_s: float,
    round_s: float,
    rounds: int,
    devices: int,
    counting: Counting = "start",
) -> DrawnContacts:
    """Exponential contacts of a stationary fleet. All seconds of a contact count in the round in which it starts."""
    met, seconds = np.zeros((rounds, devices), dtype=np.bool_), np.zeros((rounds, devices))
    duration_s = rounds * round_s
    # Enough cycles for all but one fleet in millions; a device that runs out has no further contacts.
    expected = duration_s / (contact_s + inter_contact_s)
    cycles = int(expected + 10 * np.sqrt(expected)) + 50
    for device in range(devices):
        gap_s, length_s = rng.exponential(inter_contact_s, cycles), rng.exponential(contact_s, cycles)
        # The process has no memory, so it is stationary if it starts in each state with that state's share of time.
        gap_s[0] *= rng.random() >= contact_s / (contact_s + inter_contact_s)
        end_s = np.cumsum(gap_s + length_s)
        start_s = end_s - length_s
        inside = start_s < duration_s
        first = (start_s[inside] // round_s).astype(np.int64)
        np.add.at(seconds[:, device], first, length_s[inside])
        met[first, device] = True
        if counting == "overlap":
            last = np.minimum((end_s[inside] // round_s).astype(np.int64), rounds - 1)
            for begin, end in zip(first, last, strict=True):
                met[begin : end + 1, device] = True
    return DrawnContacts(met=met, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """F_n(w) = (L/2) |w - o_n|^2 + u_n . w for every device, with Gaussian noise on its gradients.

    With L = 0 gradients are constant, the worst case for both staleness and memory.
    """

    optima: Floats  # o, devices x entries
    slopes: Floats  # u, devices x entries
    smoothness: float
    noise: float = 0.0  # sigma

    def gradients(self, models: Floats) -> Floats:
        """grad F_n(w_n) of every device."""
        return self.smoothness * (models - self.optima) + self.slopes

    def global_gradients(self, models: Floats) -> Floats:
        """grad F at every model."""
        return np.asarray(self.smoothness * (models - self.optima.mean(axis=0)) + self.slopes.mean(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of Algorithm 1: means over devices for each round (r = 0 .. R - 1)."""

    divergence: Floats  # |v - w_n|^2
    staleness_sq: Floats  # theta^2
    undelivered_sq: Floats  # (1/N) sum_m |e_m + g_m|^2 at kappa_n
    printed_sq: Floats  # (5 - 3 k/s) |x|^2 at kappa_n
    memory_sq: Floats  # |e_n|^2
    gradient_sq: Floats  # |grad F(w_n)|^2
    largest_gradient_sq: float  # G^2: the largest |grad F_n(w_n)|^2 + sigma^2
    kept_share: float  # mean of k/s over contacts
    staleness_at_contact_sq: float


def algorithm_1(
    problem: Problem, contacts: DrawnContacts, *, entries_per_s: float, learning_rate: float, rng: np.random.Generator
) -> Trial:
    """Run Algorithm 1: cumulative gradients, top-k with memory, aggregation, download."""
    devices, size = problem.optima.shape
    rounds = len(contacts.met)
    server, virtual = np.zeros(size), np.zeros(size)
    models, memory, cumulative = (np.zeros((devices, size)) for _ in range(3))
    kappa = np.zeros(devices, dtype=np.int64)
    backlog = np.zeros(rounds + 1)  # (1/N) sum |e + g|^2 after every round
    printed_at_kappa = np.zeros(devices)
    series = np.zeros((6, rounds))
    kept: list[float] = []
    stale: list[int] = []
    largest = 0.0
    for r in range(rounds):
        exact = problem.gradients(models)
        largest = max(largest, float(np.square(exact).sum(axis=1).max()))
        series[:, r] = (
            np.square(virtual - models).sum(axis=1).mean(),
            np.square(r - kappa).mean(),
            backlog[kappa].mean(),
            printed_at_kappa.mean(),
            np.square(memory).sum(axis=1).mean(),
            np.square(problem.global_gradients(models)).sum(axis=1).mean(),
        )
        noise = rng.standard_normal(exact.shape) * (problem.noise / np.sqrt(size)) if problem.noise else 0.0
        step = learning_rate * (exact + noise)
        virtual = virtual - step.mean(axis=0)
        cumulative = cumulative + step
        models = models - step
        met = np.flatnonzero(contacts.met[r])
        for device in met:
            update = memory[device] + cumulative[device]
            k = int(min(contacts.seconds[r, device] * entries_per_s, size))
            sent = np.zeros(size)
            chosen = np.argsort(-np.abs(update), kind="stable")[:k]
            sent[chosen] = update[chosen]
            memory[device], cumulative[device] = update - sent, 0.0
            server = server - sent / devices
            printed_at_kappa[device] = (5 - 3 * k / size) * np.square(update).sum()
            kept.append(k / size)
            stale.append(r + 1 - int(kappa[device]))
        models[met], kappa[met] = server, r + 1
        backlog[r + 1] = np.square(memory + cumulative).sum(axis=1).mean()
    return Trial(
        divergence=series[0],
        staleness_sq=series[1],
        undelivered_sq=series[2],
        printed_sq=series[3],
        memory_sq=series[4],
        gradient_sq=series[5],
        largest_gradient_sq=largest + problem.noise**2,
        kept_share=float(np.mean(kept)) if kept else 0.0,
        staleness_at_contact_sq=float(np.mean(np.square(stale))) if stale else 0.0,
    )


def constant_gradients(rng: np.random.Generator, devices: int, entries: int) -> Problem:
    """A problem with constant gradients of +-1; half of the entries are equal for all devices."""
    shared, own = rng.choice([-1.0, 1.0], entries), rng.choice([-1.0, 1.0], (devices, entries))
    slopes = np.where(np.arange(entries) % 2 == 0, shared, own)
    return Problem(optima=np.zeros((devices, entries)), slopes=slopes, smoothness=0.0)
