"""Linear discriminant analysis from exact sums of features, in fewer directions: what do they cost in accuracy?

    python benchmarks/pretrained_sums.py [--task cifar10] [--pixels 160]

The sums are those of all training images in one place, without a fleet and without rounding.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from wayfare.learning.tasks import load_task
from wayfare.learning.tasks.base import Classification
from wayfare.scenario.model import Learning

DIRECTIONS = (64, 128, 256, 512)


def accuracies(
    train: NDArray[np.float64], labels: NDArray[np.int64], test: NDArray[np.float64], wanted: NDArray[np.int64]
) -> tuple[float, float]:
    """The accuracy in per cent of the nearest class mean and of linear discriminant analysis."""
    means = np.stack([train[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    away = train - means[labels]
    weights = np.linalg.solve(away.T @ away / len(train) + 1e-6 * np.eye(train.shape[1]), means.T).T
    found = [(test @ each.T - 0.5 * (each * means).sum(axis=1)).argmax(axis=1) == wanted for each in (means, weights)]
    return 100 * float(found[0].mean()), 100 * float(found[1].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cifar10")
    parser.add_argument("--pixels", type=int, default=160)
    arguments = parser.parse_args()
    settings = {"task": arguments.task, "backbone": "efficientnet-lite0", "backbone_pixels": arguments.pixels}
    task = load_task(Learning.model_validate(settings))
    assert isinstance(task, Classification)
    train, test = task.train_inputs.double().numpy(), task.test_inputs.double().numpy()
    labels, wanted = task.train_labels.numpy(), task.test_labels.numpy()
    centred = train - train.mean(axis=0)
    # Eigenvalues rise.
    principal = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    drawn = np.linalg.qr(np.random.default_rng(0).standard_normal(principal.shape))[0]
    print("directions  random, %  principal, %")
    for count in DIRECTIONS:
        bases = drawn[:, :count], principal[:, :count]
        scores = [accuracies(train @ basis, labels, test @ basis, wanted)[1] for basis in bases]
        print(f"{count:>10} {scores[0]:>10.1f} {scores[1]:>13.1f}", flush=True)
    nearest, whole = accuracies(train, labels, test, wanted)
    print(f"{train.shape[1]:>10} {whole:>10.1f} {whole:>13.1f}\nnearest class mean: {nearest:.1f} %")


if __name__ == "__main__":
    main()
