"""Kernels are used where they compile; elsewhere plain operations."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from wayfare.sparsify import gpu


def test_a_vector_of_a_processor_never_imports_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "compiles", None)
    assert not gpu.has_kernels(torch.zeros(3))


def forget() -> None:
    gpu.compiles.cache_clear()
    gpu.missing_compiler.cache_clear()


@pytest.fixture
def _untried() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.mark.usefixtures("_untried")
def test_without_triton_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wayfare.sparsify.gpu_largest", None)
    assert not gpu.compiles(torch.device("cpu"))
    assert gpu.missing_compiler(torch.device("cpu")) == "Triton is not installed"


@pytest.mark.usefixtures("_untried")
def test_a_compiler_that_fails_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def largest(vector: torch.Tensor, k: int) -> None:
            raise RuntimeError("no C compiler\nin any folder")

    monkeypatch.setitem(sys.modules, "wayfare.sparsify.gpu_largest", Broken)
    with pytest.warns(UserWarning, match=r"^Triton cannot compile for cpu: no C compiler. Runs are slower"):
        assert not gpu.compiles(torch.device("cpu"))
    # Warnings are errors.
    assert not gpu.compiles(torch.device("cpu"))
