"""What the steps of a group read, in one block of memory: a GPU gets it in one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from wayfare.arrays import Ints

# The most steps of a burst that are loaded at once.
STEPS = 256


@dataclass(frozen=True, slots=True)
class Rows:
    """What the steps of one burst read."""

    samples: Ints  # (steps, batch)
    crops: Ints | None  # (steps, batch, 3)
    rates: npt.NDArray[np.float32]  # (steps,)


class StepTable:
    """The rows of a group's models, the number of the current step, and minibatches and rates of up to 256 steps.

    Its tensors are views of one block. Of a burst that has ended, and of places without a burst, they are undefined.
    """

    def __init__(self, width: int, batch: int, where: torch.device, *, augment: bool) -> None:
        self._head = -(-width // 2) + 1
        self._batch, self._images = batch, width * batch
        self._in_crops = 3 * self._images if augment else 0
        self._in_step = self._images + self._in_crops + -(-width // 2)
        self._block = torch.zeros(self._head + STEPS * self._in_step, dtype=torch.int64, device=where)
        body = self._block[self._head :].view(STEPS, self._in_step)
        # The first is aligned for kernels. Others are copied before kernels read them.
        self.row_of = self._block.view(torch.int32)[:width]
        self.step = self._block[self._head - 1 : self._head]
        self.samples = body[:, : self._images].view(STEPS, width, batch)
        crops = body[:, self._images : self._images + self._in_crops]
        self.crops = crops.view(STEPS, width, batch, 3) if augment else None
        self.rates = body[:, self._images + self._in_crops :].view(torch.float32)[:, :width]

    def fill(self, row_of: Sequence[int], bursts: Sequence[Rows], first: int) -> None:
        """Load the next steps of bursts, the longest first, from the step with the index ``first`` on."""
        steps = min(STEPS, len(bursts[0].rates) - first)
        # A GPU copies from pinned memory without the host. PyTorch does not reuse that memory before it has been read.
        here = torch.empty(self._head + steps * self._in_step, dtype=torch.int64, pin_memory=self._block.is_cuda)
        numbers: Ints = here.numpy()
        numbers.view(np.int32)[: len(row_of)] = row_of
        numbers[self._head - 1] = 0
        body = numbers[self._head :].reshape(steps, self._in_step)
        crops_to = self._images + self._in_crops
        samples, crops, rates = body[:, : self._images], body[:, self._images : crops_to], body[:, crops_to:]
        rates = rates.view(np.float32)
        for place, each in enumerate(bursts):
            mine, images = slice(first, first + steps), place * self._batch
            count = len(each.rates[mine])
            samples[:count, images : images + self._batch] = each.samples[mine]
            rates[:count, place] = each.rates[mine]
            if each.crops is not None:
                crops[:count, 3 * images : 3 * (images + self._batch)] = each.crops[mine].reshape(
                    count, 3 * self._batch
                )
        self._block[: len(numbers)].copy_(here, non_blocking=True)
