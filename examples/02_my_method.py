"""Compare your own method with MADS: it sends at full power, but only if its model is at least 20 rounds old."""

import wayfare


class Patient(wayfare.UploadRule):
    name = "patient"
    energy_rule = "greedy"  # shown in tables: this rule spends until the budget is gone

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        old = encounter.staleness_rounds >= 20
        return wayfare.send_top_k(encounter, link, link.max_power_watts if old else 0.0, encounter.left_joules)


if __name__ == "__main__":
    scenario = wayfare.load("fashion-small", ["rounds=100", "fleet.energy_total_joules=50"])
    # The rule alone, and with parts of other methods: see docs/how-to/methods.md.
    compared = wayfare.compare(scenario, ["mads", Patient(), "mads + decay(share=0.5)"], seeds=2)
    for scheme in compared.schemes:
        print(f"{scheme.name:24} {100 * scheme.score_mean:5.1f} %  {scheme.energy_joules_mean:6.1f} J")
