"""A scheme of your own beside MADS: it sends at full power, but only when its model has grown old."""

import wayfare


class Patient(wayfare.Scheme):
    name = "patient"
    energy_rule = "greedy"  # what tables say of it: spends until the budget is gone

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        old = encounter.staleness_rounds >= 20
        left_joules = encounter.budget_joules - encounter.spent_joules
        return wayfare.send_top_k(encounter, link, link.max_power_watts if old else 0.0, left_joules)


if __name__ == "__main__":
    scenario = wayfare.load("fashion-small", ["rounds=200", "fleet.energy_total_joules=100"])
    for scheme in wayfare.compare(scenario, ["mads", Patient()], seeds=2).schemes:
        print(f"{scheme.name:8} {100 * scheme.score_mean:5.1f} %  {scheme.energy_joules_mean:6.1f} J")
