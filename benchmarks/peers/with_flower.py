"""Flower: federated averaging on its simulation engine (Ray), one core per client."""

from __future__ import annotations

from typing import Any

import job
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn


def train(message: Any, context: Any) -> Any:
    mine = job.data()
    held = mine["held"][int(context.node_config["partition-id"])]
    module = job.network()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=job.LEARNING_RATE)
    # The network uses a fixed seed; minibatches must not.
    generator = torch.Generator().manual_seed(int(message.content["config"]["server-round"]))
    for _ in range(job.STEPS):
        batch = held[torch.randint(len(held), (job.BATCH,), generator=generator)]
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(mine["train_inputs"][batch]), mine["train_labels"][batch]).backward()
        optimiser.step()
    records = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(held)})}
    return Message(content=RecordDict(records), reply_to=message)


def main() -> None:
    torch.set_num_threads(1)
    clock = job.Clock()
    client, server = ClientApp(), ServerApp()
    client.train()(train)

    @server.main()  # type: ignore[untyped-decorator]
    def serve(grid: Any, context: Any) -> None:
        def after_round(round_: int, record: Any) -> Any:
            clock.after_round(round_)
            return MetricRecord()

        result = FedAvg(fraction_evaluate=0.0, min_available_nodes=job.DEVICES).start(
            grid,
            ArrayRecord(job.network().state_dict()),
            num_rounds=job.WARM_ROUNDS + job.rounds(),
            evaluate_fn=after_round,
        )
        module = job.network()
        module.load_state_dict(result.arrays.to_torch_state_dict())
        clock.write(job.accuracy(module))

    run_simulation(server, client, job.DEVICES, backend_config={"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}})


if __name__ == "__main__":
    main()
