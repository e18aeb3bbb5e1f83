"""Runs share a process in threads. One traces its network while others build, call and read theirs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from wayfare.engine.traced.probing import traced
from wayfare.learning.models.cnn import SmallCnn
from wayfare.learning.models.lanegcn import LaneGcn
from wayfare.learning.models.layers import Layers
from wayfare.learning.models.mlp import Mlp
from wayfare.learning.models.resnet9 import Resnet9


def test_other_threads_use_their_networks_while_one_is_traced() -> None:
    reached, used = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            reached.set()
            assert used.wait(10)
            return self.layer(inputs)  # type: ignore[no-any-return]

    # Building it draws random numbers, for which a run waits until the trace has ended.
    other = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with ThreadPoolExecutor(1) as pool:
        tracing = pool.submit(traced, Slow(), (torch.zeros(2, 3), torch.zeros(4, 3)))
        assert reached.wait(10)
        try:
            found = other(torch.ones(1, 3))
        finally:
            used.set()
        assert type(found) is Tensor
        assert [node.op for node in tracing.result()[1].nodes] == [
            *("placeholder", "get_attr", "get_attr", "call_function", "output")
        ]


@pytest.mark.parametrize("model", [Mlp((3, 2)), SmallCnn(), Resnet9(width=4), LaneGcn(width=8)])
def test_a_network_can_be_traced_while_other_threads_build_theirs(model: Layers) -> None:
    reached = threading.Event()

    class Slow(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            reached.set()
            time.sleep(0.05)
            return super().forward(inputs)

    def build() -> None:
        assert reached.wait(10)
        model.module()

    network = nn.Sequential(Slow(3, 2))
    before = torch.default_generator.get_state()
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(build)
        traced(network, (torch.zeros(2, 3), torch.zeros(4, 3)))
        built.result()
    assert torch.equal(torch.default_generator.get_state(), before)
