"""Forecast what a fleet achieves at three speeds, without training."""

from __future__ import annotations

from wayfare.theory.ask import plan

if __name__ == "__main__":
    for speed_mps in (5.0, 12.0, 40.0):
        found = plan(
            "paper-cifar10-waypoint", ["rounds=500"], speed_mps=speed_mps, parameters=6_000_000, budget_joules=12.0
        )
        assert found.full_power is not None
        assert found.recommended is not None
        print(
            f"{speed_mps:4.0f} m/s: k/s {found.recommended.kept_fraction:.2f} "
            f"({found.full_power.kept_share:.2f} at full power), age {found.recommended.staleness_rounds:.0f} rounds, "
            f"{found.recommended.energy_joules:.0f} of {found.budget_joules:.0f} J"
        )
