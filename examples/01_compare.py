"""Compare two schemes on a slower fleet, in a few lines of Python."""

import wayfare


def main() -> None:
    # A short run of the embedded default: 20 devices, here at 5 m/s for 100 rounds.
    scenario = wayfare.load("fashion-small", ["mobility.speed_mps=5", "rounds=100", "fleet.energy_total_joules=50"])
    comparison = wayfare.compare(scenario, ["mads", "afl"], seeds=2)
    for scheme in comparison.schemes:
        print(
            f"{scheme.name:5} {100 * scheme.score_mean:5.1f} %"
            f"  {scheme.energy_joules_mean:6.1f} of {scheme.budget_joules:.0f} J"
            f"  {100 * scheme.kept_fraction_mean:3.0f} % of an update sent"
        )


if __name__ == "__main__":
    main()
