"""An example of a fleet with its own data: clothes in small images, of which every device sees some kinds."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from wayfare.errors import InputError
from wayfare.files import make_folder_atomically, write_atomically, writing
from wayfare.learning.partition import split
from wayfare.learning.tasks.fashion_small import CLASSES, fashion_small
from wayfare.scenario.partition import DirichletPartition

# The samples of a device are in several files, as if they had been recorded one after the other.
_FILES = 4


def write_example(folder: Path, devices: int) -> list[str]:
    """Write a task file, data of every device and held-out data; return one line about each."""
    if folder.exists():
        raise InputError(f"{folder}: already exists; give a new folder")
    data = fashion_small(hidden=())
    held = split(
        data.class_of_samples(), CLASSES, devices, DirichletPartition(concentration=3.0, dealing="once"), seed=0
    )
    with writing(folder, "cannot be written"), make_folder_atomically(folder) as draft:
        source = files("wayfare.field.rig").joinpath("example_task.txt").read_text(encoding="utf-8")
        write_atomically(draft / "task.py", source)
        for device, samples in enumerate(held, 1):
            for number, some in enumerate(np.array_split(samples, _FILES)):
                _write(draft / f"data/bus-{device}/part-{number}.npz", data.train_inputs[some], data.train_labels[some])
        _write(draft / "heldout/heldout.npz", data.test_inputs, data.test_labels)
    return [
        f"{folder}/task.py    the network; every host of the fleet needs this file",
        f"{folder}/data/      one folder for each of {devices} devices, for that device only",
        f"{folder}/heldout/   data that no device has, to judge the model",
    ]


def _write(file: Path, inputs: object, labels: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, inputs=np.asarray(inputs), labels=np.asarray(labels))
