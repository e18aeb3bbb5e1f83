"""Read the record of a run: every contact and every evaluation, as columns."""

import numpy as np

import wayfare


def main() -> None:
    scenario = wayfare.load("fashion-small", ["rounds=200", "fleet.energy_total_joules=100"])
    record = wayfare.run(scenario, "mads", seed=1)
    contacts = record.contacts
    print(f"{len(contacts['round'])} contacts of {contacts['contact_s'].mean():.1f} s on average")
    busiest = int(np.bincount(contacts["device"].astype(int)).argmax())
    mine = contacts["device"] == busiest
    delivered_mbit = contacts["bits"][mine].sum() / 1e6
    print(f"device {busiest} met the server {mine.sum()} times and delivered {delivered_mbit:.1f} Mbit")
    for round_, accuracy in zip(record.evaluations["round"], record.evaluations["score"], strict=True):
        if round_ % 60 == 0:
            print(f"round {round_:3.0f}: {100 * accuracy:4.1f} %")


if __name__ == "__main__":
    main()
