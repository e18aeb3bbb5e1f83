"""Kernels are looked up once and launched with the same arguments from then on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.engine.kernels import with_kernels

from wayfare.sparsify import launches
from wayfare.sparsify.launches import Kind, Launches, kind


class Compiled:
    """Notes how it is launched, as Triton's compiled code."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def run(self, *arguments: Any) -> None:
        self.calls.append(arguments)


class Kernel:
    """Notes how it is launched, as Triton's kernel."""

    def __init__(self, compiled: Compiled) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._compiled = compiled

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def launched(*arguments: Any, **named: Any) -> Compiled:
            self.calls.append((grid, arguments, named))
            return self._compiled

        return launched


def test_compiled_code_gets_all_arguments_and_constants_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_current_stream", lambda device: f"stream of {device}")
    compiled, one, other = Compiled(), Kind(1, ((0, False),)), Kind(1, ((4, False),))
    kernel = Kernel(compiled)
    launch = Launches(kernel, {"block": 64, "steps": 2}, {"num_warps": 8})
    launch(one, (3, 1, 1), "vector", 5)
    launch(one, (4, 1, 1), "vector", 6)
    launch(other, (1, 1, 1), "vector", 7)
    constants = {"block": 64, "steps": 2, "num_warps": 8}
    assert kernel.calls == [((3, 1, 1), ("vector", 5), constants), ((1, 1, 1), ("vector", 7), constants)]
    # Grid, stream, code, no hooks, arguments, constants.
    grid, code, hooks = (4, 1, 1), ("function", "metadata"), (None, None, None)
    assert compiled.calls == [(*grid, "stream of 1", *code, *hooks, "vector", 6, 64, 2)]


@pytest.mark.gpu
def test_later_launches_do_the_same_on_the_current_stream() -> None:
    from wayfare.sparsify.gpu_kernels import subtract_at

    vector, indices = torch.arange(5000.0, device="cuda"), torch.arange(0, 5000, 7, device="cuda")
    values = torch.full((len(indices),), 0.5, device="cuda")
    expected = vector.clone().index_add_(0, indices, values, alpha=-3.0)
    subtract_at(vector, indices, values, 1.0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        vector += 1
        subtract_at(vector, indices, values, 1.0)
        vector -= 1
        subtract_at(vector, indices, values, 1.0)
    stream.synchronize()
    assert torch.equal(vector, expected)


def test_vectors_of_other_alignment_need_other_code() -> None:
    vector = torch.zeros(9)
    assert kind(vector) == kind(vector[:5]) == kind(vector[4:])
    assert kind(vector) != kind(vector[1:])
    assert kind(vector, vector[1:]) != kind(vector[1:], vector)


# Parameters that are memory on a GPU.
VECTORS = {"vector", "state", "indices", "values", "all_indices", "all_values", "sent", "scratch", "sums"}
VECTORS |= {"restored", "counts"}


@with_kernels
def test_constants_are_the_last_parameters_and_no_number_is_specialised() -> None:
    from wayfare.codec import gpu_kernels as counting
    from wayfare.sparsify import gpu_kernels, gpu_largest

    found = [value for module in (gpu_kernels, gpu_largest) for value in vars(module).values()]
    every = [
        value
        for value in (*found, counting._launches(8, True), gpu_kernels._sorting(16))
        if isinstance(value, Launches)
    ]
    assert len(every) == 13
    for each in every:
        names, constants = list(each._kernel.arg_names), list(each._constants)
        assert names[-len(constants) :] == constants
        # The interpreter keeps the settings of a kernel in a table.
        settings = {**vars(each._kernel), **vars(each._kernel).get("kwargs", {})}
        plain = settings["do_not_specialize"]
        assert set(names) - set(constants) - set(plain) <= VECTORS
