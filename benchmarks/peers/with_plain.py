"""The obvious code: a module, an optimiser, a loop over devices."""

from __future__ import annotations

import job
import torch
from torch import nn


def main() -> None:
    torch.set_num_threads(1)
    arrays, clock = job.data(), job.Clock()
    shared, local, generator = job.network(), job.network(), torch.Generator().manual_seed(0)
    for round_ in range(1, job.WARM_ROUNDS + job.rounds() + 1):
        total = {name: torch.zeros_like(entry) for name, entry in shared.state_dict().items()}
        for held in arrays["held"]:
            local.load_state_dict(shared.state_dict())
            optimiser = torch.optim.SGD(local.parameters(), lr=job.LEARNING_RATE)
            for _ in range(job.STEPS):
                batch = held[torch.randint(len(held), (job.BATCH,), generator=generator)]
                optimiser.zero_grad()
                logits = local(arrays["train_inputs"][batch])
                nn.functional.cross_entropy(logits, arrays["train_labels"][batch]).backward()
                optimiser.step()
            for name, entry in local.state_dict().items():
                total[name] += entry
        shared.load_state_dict({name: entry / job.DEVICES for name, entry in total.items()})
        clock.after_round(round_)
    clock.write(job.accuracy(shared))


if __name__ == "__main__":
    main()
