"""Forecast the paths of cars: LaneGCN on synthetic scenes, trained by a fleet with occasional contacts."""

import wayfare
from wayfare.learning.argoverse.metrics import one_guess
from wayfare.learning.tasks import load_task
from wayfare.learning.tasks.argoverse import Forecasting


def main() -> None:
    # With a copy of Argoverse 1: learning.argoverse.folder=..., learning.argoverse.map_folder=... (docs/how-to).
    scenario = wayfare.load(
        "argoverse-small",
        [
            *(
                "rounds=20",
                "learning.learning_rate=0.05",
                "fleet.devices=5",
                "mobility.width_m=400",
                "mobility.height_m=400",
            ),
            *("learning.argoverse.synthetic_scenes=120", "learning.evaluate_every_rounds=10"),
        ],
    )
    task = load_task(scenario.learning)
    assert isinstance(task, Forecasting)
    val = task.val.batch_of_all()
    straight = one_guess(val.straight_on(), val.future[val.agents])
    print(f"straight on       ADE {straight.ade_m:.2f} m, {100 * straight.miss_rate:.0f} % missed by over 2 m")
    record = wayfare.run(scenario, "mads")
    for round_, ade_m in zip(record.evaluations["round"], record.evaluations["score"], strict=True):
        print(f"LaneGCN, round {round_:2.0f} ADE {ade_m:.2f} m")


if __name__ == "__main__":
    main()
