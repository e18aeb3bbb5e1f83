"""The virtual energy queue: how far a device is ahead of its spending pace, in joules."""

from __future__ import annotations


def spend(backlog_joules: float, energy_joules: float, pace_joules_per_round: float) -> float:
    """One round with an upload: q <- max(q + E - E_con / R, 0)."""
    return max(backlog_joules + energy_joules - pace_joules_per_round, 0.0)


def idle(backlog_joules: float, rounds: int, pace_joules_per_round: float) -> float:
    """Several rounds without a contact: max(. - c, 0) applied m times is max(. - m c, 0)."""
    return max(backlog_joules - rounds * pace_joules_per_round, 0.0)
