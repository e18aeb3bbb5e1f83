"""Central training on top of a pre-trained backbone: what each way of training can reach, without a fleet.

    python benchmarks/pretrained_central.py --device cuda [--pixels 160 224] [--epochs 10] [--json FILE]
    python benchmarks/pretrained_central.py --only adapters --blocks 2 4 7 --ranks 4 8 --alphas 8 16 --train 10000

One model is trained by SGD with momentum and a cosine schedule on the image set of the cache, with the network, the
activations and the initial values of the package. The last state counts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from wayfare.learning.models.base import load_vector, trainable
from wayfare.learning.tasks import load_task
from wayfare.learning.tasks.base import Classification
from wayfare.learning.tasks.tuned import TunedClassification
from wayfare.progress import listening
from wayfare.scenario.model import Learning
from wayfare.streams import FLEET, Stream, generator

MODES = ("head", "norms", "adapters", "last-block", "everything")


def settings_of(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The sections `learning` to try, from cheap to expensive."""
    for pixels in arguments.pixels:
        base = {"task": arguments.task, "backbone": arguments.backbone, "backbone_pixels": pixels}
        for trained in [mode for mode in MODES if mode in arguments.only]:
            cuts = [1] if trained in ("head", "everything") else arguments.blocks
            for blocks in cuts:
                ranks = [(rank, alpha) for rank in arguments.ranks for alpha in arguments.alphas]
                for rank, alpha in ranks if trained == "adapters" else [(8, 16.0)]:
                    shape = {"trained_blocks": blocks, "adapter_rank": rank, "adapter_alpha": alpha}
                    yield {**base, "trained": trained, **shape}


def train(
    task: Classification | TunedClassification, rate: float, arguments: argparse.Namespace
) -> tuple[float, float, float]:
    """Accuracy, training loss of the last epoch, and seconds."""
    device = torch.device(arguments.device)
    module = task.model.module()
    load_vector(module, task.model.initial(generator(arguments.seed, Stream.INITIAL_MODEL, FLEET)))
    module.to(device).train()
    optimiser = torch.optim.SGD(trainable(module).values(), lr=rate, momentum=arguments.momentum)
    order = generator(arguments.seed, Stream.MINIBATCH, FLEET)
    count = min(arguments.train or len(task.train_labels), len(task.train_labels))
    # The first samples of a set are as mixed as the others.
    per_epoch = count // arguments.batch
    started, total = time.perf_counter(), torch.zeros((), device=device)
    for epoch in range(arguments.epochs):
        total = torch.zeros((), device=device)
        batches = torch.from_numpy(order.permutation(count)).to(device)[: per_epoch * arguments.batch]
        for number, samples in enumerate(batches.split(arguments.batch)):
            share = (epoch * per_epoch + number) / (arguments.epochs * per_epoch)
            for group in optimiser.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * share))
            loss = task.loss(module, samples)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.detach()
    with torch.no_grad():
        score = task.evaluate(module.eval()).score
    return score, float(total) / per_epoch, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pixels", type=int, nargs="+", default=[160])
    parser.add_argument("--only", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 4, 7, 10], help="trained blocks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--alphas", type=float, nargs="+", default=[16.0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.003, 0.01, 0.03])
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--train", type=int, help="use only the first so many training images")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    rows = []
    print(f"{'trained':>11} {'pixels':>6} {'blocks':>6} {'rank':>4} {'alpha':>5} {'rate':>6} {'entries':>9} "
          f"{'accuracy':>8} {'loss':>6} {'s':>6}")  # fmt: skip
    for settings in settings_of(arguments):
        learning = Learning.model_validate(settings)
        with listening(lambda what, done, total: None):
            task = load_task(learning).to(torch.device(arguments.device))
        assert isinstance(task, Classification | TunedClassification)
        for rate in arguments.rates:
            score, loss, seconds = train(task, rate, arguments)
            rows.append({**settings, "rate": rate, "entries": task.model.parameters, "accuracy": score, "s": seconds})
            print(
                f"{learning.trained:>11} {learning.backbone_pixels:>6} {learning.trained_blocks:>6} "
                f"{learning.adapter_rank:>4} {learning.adapter_alpha:>5g} {rate:>6g} {task.model.parameters:>9,} "
                f"{100 * score:>7.2f}% {loss:>6.3f} {seconds:>6.1f}",
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
