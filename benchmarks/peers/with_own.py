"""A user's own module in Wayfare: `own_task`, and the engine that `auto` chooses."""

from __future__ import annotations

import job
import with_wayfare

from wayfare.learning.tasks import own_task


def main() -> None:
    arrays = job.data()
    task = own_task(
        "peers",
        train=(arrays["train_inputs"], arrays["train_labels"]),
        test=(arrays["test_inputs"], arrays["test_labels"]),
        network=job.network,
    )
    with_wayfare.train(task)


if __name__ == "__main__":
    main()
