"""Whether the kernels of this package can train a network on a machine. Imports no Triton."""

from __future__ import annotations

import torch

from wayfare.engine.base import LocalTraining
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.base import Labelled
from wayfare.sparsify.gpu import missing_compiler

# The smallest side of a product of tiles in Triton.
_SMALLEST = 16
# A program holds the logits of 32 images in registers.
_MOST_CLASSES = 128
# Rectangles of operands are fetched by a unit that older GPUs lack, and tiles were chosen for its shared memory.
_CAPABILITY = 9, 0


def obstacle(training: LocalTraining) -> str | None:
    """What keeps the kernels from training this task here, in one line; None if nothing does."""
    model, compute, batch = training.task.model, training.compute, training.batches.batch_size
    if not (isinstance(training.task, Labelled) and isinstance(model, Resnet9)):
        return f"the network of {training.task.name} is not ResNet-9"
    if model.normalisation != "batch":
        return f"normalisation = '{model.normalisation}' is not 'batch'"
    if model.width % _SMALLEST:
        return f"width = {model.width} is not a multiple of {_SMALLEST}"
    if batch % _SMALLEST:
        return f"batch_size = {batch} is not a multiple of {_SMALLEST}"
    if model.classes > _MOST_CLASSES:
        return f"classes = {model.classes} is more than {_MOST_CLASSES}"
    if compute.device.type != "cuda" or compute.precision == "fp32":
        return "they need a CUDA device and `precision=tf32` or `precision=bf16`"
    if torch.cuda.get_device_capability(compute.device) < _CAPABILITY:
        return f"{torch.cuda.get_device_name(compute.device)} is older than the Hopper generation"
    return missing_compiler(compute.device)
