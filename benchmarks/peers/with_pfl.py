"""pfl: federated averaging on its simulated backend, in one process."""

from __future__ import annotations

from typing import Any

import job
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Classifier(nn.Module):
    """The network with the two methods that pfl requires."""

    def __init__(self) -> None:
        super().__init__()
        self.network = job.network()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(inputs, labels)) * len(inputs), len(inputs))}


class Rounds:
    """Reports rounds to the clock; pfl calls these three methods."""

    def __init__(self, clock: job.Clock) -> None:
        self._clock = clock

    def on_train_begin(self, *, model: Any) -> Any:
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        self._clock.after_round(central_iteration + 1)
        return False, Metrics()

    def on_train_end(self, *, model: Any) -> None:
        pass


def main() -> None:
    torch.set_num_threads(1)
    arrays, clock, classifier = job.data(), job.Clock(), Classifier()
    users = [
        PyTorchTensorDataset((arrays["train_inputs"][held], arrays["train_labels"][held])) for held in arrays["held"]
    ]
    turn = iter(range(10**9))
    dataset = FederatedDataset(lambda user: users[user], lambda: next(turn) % job.DEVICES)
    model = PyTorchModel(classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), lr=1.0))
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=dataset, val_data=dataset),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.WARM_ROUNDS + job.rounds(),
            evaluation_frequency=10**9,
            train_cohort_size=job.DEVICES,
            val_cohort_size=None,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=job.STEPS,
            local_learning_rate=job.LEARNING_RATE,
            local_batch_size=job.BATCH,
        ),
        callbacks=[Rounds(clock)],
    )
    clock.write(job.accuracy(classifier.network))


if __name__ == "__main__":
    main()
