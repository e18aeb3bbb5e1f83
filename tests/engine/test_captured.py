"""Captures of graphs are not disturbed by garbage."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest
import torch
from tests.engine.jobs import job, run, starts

from wayfare.engine import Burst, Compute
from wayfare.engine.captured import without_collection
from wayfare.learning.models.resnet9 import Resnet9


def test_python_collects_garbage_again_afterwards_also_after_an_error() -> None:
    assert gc.isenabled()
    with suppress(RuntimeError), without_collection():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()


def test_a_program_that_collects_no_garbage_still_collects_none_afterwards() -> None:
    gc.disable()
    try:
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.gpu
def test_graphs_of_an_earlier_run_that_are_garbage_do_not_disturb_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    from wayfare.engine.batched.lane import Lane

    local = job(Resnet9(width=16), batch=16, compute=Compute.named("cuda", "tf32"))
    initial, bursts = starts(local, torch.float32), [Burst(0, 1, 2)]
    expected = run("batched", local, initial, bursts)
    old, work = [_graph() for _ in range(20)], Lane._work

    def with_garbage(self: Lane, *arguments: object) -> None:
        if torch.cuda.is_current_stream_capturing():
            cycle: list[object] = [old.pop()]
            cycle.append(cycle)
            del cycle
            # With the threshold below, any of these would make Python collect.
            assert len([[] for _ in range(100)]) == 100
        work(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Lane, "_work", with_garbage)
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert torch.equal(run("batched", local, initial, bursts), expected)
    finally:
        gc.set_threshold(*thresholds)
    assert len(old) < 20


def _graph() -> torch.cuda.CUDAGraph:
    graph, number = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        number += 1
    return graph
