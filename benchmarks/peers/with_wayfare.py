"""Wayfare's built-in perceptron: ten steps of all devices at once, then their mean."""

from __future__ import annotations

import job
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from wayfare.engine import Burst, LocalTraining, make_engine
from wayfare.learning.batches import Batches
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.tasks import Classification, Task


def main() -> None:
    arrays = job.data()
    task = Classification(
        name="peers",
        model=Mlp((784, 64, 10)),
        classes=10,
        train_inputs=arrays["train_inputs"],
        train_labels=arrays["train_labels"],
        test_inputs=arrays["test_inputs"],
        test_labels=arrays["test_labels"],
    )
    train(task)


def train(task: Task) -> None:
    """The job with the engine that `auto` chooses."""
    torch.set_num_threads(1)
    clock, network = job.Clock(), job.network()
    held = list(job.data()["held"].numpy())
    steps = job.STEPS * (job.WARM_ROUNDS + job.rounds())
    batches = Batches(held, job.BATCH, steps, seed=0)
    engine = make_engine("auto", LocalTraining(task=task, batches=batches, learning_rate=job.LEARNING_RATE))
    shared = parameters_to_vector(network.parameters()).detach()
    for round_ in range(1, job.WARM_ROUNDS + job.rounds() + 1):
        models = shared.repeat(job.DEVICES, 1)
        first = job.STEPS * (round_ - 1) + 1
        engine.run(list(models.unbind()), [Burst(device, first, job.STEPS) for device in range(job.DEVICES)])
        shared = models.mean(dim=0)
        clock.after_round(round_)
    vector_to_parameters(shared, network.parameters())
    clock.write(job.accuracy(network))


if __name__ == "__main__":
    main()
