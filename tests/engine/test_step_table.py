"""The table that steps of `batched` read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wayfare.engine.batched.table import STEPS, Rows, StepTable

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def rows(steps: int, batch: int, *, augment: bool) -> Rows:
    rng = np.random.default_rng(steps)
    crops = rng.integers(-4, 5, (steps, batch, 3)) if augment else None
    return Rows(rng.integers(0, 50_000, (steps, batch)), crops, rng.random(steps, np.float32))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("augment", [False, True])
def test_steps_find_the_minibatches_rates_and_rows_of_their_bursts(device: str, augment: bool) -> None:
    table = StepTable(5, 3, torch.device(device), augment=augment)
    bursts = [rows(steps, 3, augment=augment) for steps in (STEPS + 2, STEPS + 1, 4, 1)]
    for first in (0, STEPS):
        table.step += 7
        table.fill([9, 2, 4, 0], bursts, first)
        assert table.step.tolist() == [0]
        assert table.row_of[:4].tolist() == [9, 2, 4, 0]
        for place, burst in enumerate(bursts):
            here = slice(first, first + STEPS)
            count = len(burst.rates[here])
            assert np.array_equal(table.samples[:count, place].cpu(), burst.samples[here])
            assert np.array_equal(table.rates[:count, place].cpu(), burst.rates[here])
            if burst.crops is None:
                assert table.crops is None
            else:
                assert table.crops is not None
                assert np.array_equal(table.crops[:count, place].cpu(), burst.crops[here])


@pytest.mark.gpu
def test_tables_filled_one_after_another_do_not_mix() -> None:
    """Memory from which a GPU still reads is not used again."""
    table, found = StepTable(4, 8, torch.device("cuda"), augment=False), []
    bursts = [[rows(1 + number % 3, 8, augment=False)] * 4 for number in range(50)]
    for burst in bursts:
        torch.cuda._sleep(100_000)
        table.fill(range(4), burst, 0)
        found.append(table.samples[0].clone())
    for burst, samples in zip(bursts, found, strict=True):
        assert np.array_equal(samples.cpu()[2], burst[2].samples[0])
