"""fluke: federated averaging in one process.

fluke counts epochs, so each device trains on 320 of its 500 samples: an epoch is then ten minibatches of 32.
"""

from __future__ import annotations

from typing import Any

import job
import torch
import torchvision_operators  # noqa: F401 - before fluke
from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from torch import nn


class Rounds:
    """Reports rounds to the clock."""

    def __init__(self, clock: job.Clock) -> None:
        self._clock = clock

    def end_round(self, round: int) -> None:  # noqa: A002 - the name that fluke uses
        self._clock.after_round(round)


def main() -> None:
    torch.set_num_threads(1)
    arrays, clock, network = job.data(), job.Clock(), job.network()
    environment: Any = FlukeENV()
    environment.set_device("cpu")
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimiser = OptimizerConfigurator(
        DDict(name="SGD", lr=job.LEARNING_RATE), DDict(name="StepLR", step_size=10**9, gamma=1.0)
    )
    share = job.STEPS * job.BATCH / arrays["held"].shape[1]
    clients = [
        Client(
            index=device,
            train_set=FastDataLoader(
                arrays["train_inputs"][held],
                arrays["train_labels"][held],
                num_labels=10,
                batch_size=job.BATCH,
                shuffle=True,
                percentage=share,
            ),
            test_set=None,
            optimizer_cfg=optimiser,
            loss_fn=nn.CrossEntropyLoss(),
            local_epochs=1,
        )
        for device, held in enumerate(arrays["held"])
    ]
    server = Server(model=network, test_set=None, clients=clients)
    federation = CentralizedFL(job.DEVICES, None, {}, clients=clients, server=server)
    federation.attach(Rounds(clock))
    federation.run(n_rounds=job.WARM_ROUNDS + job.rounds(), eligible_perc=1.0, finalize=False)
    clock.write(job.accuracy(server.model))


if __name__ == "__main__":
    main()
