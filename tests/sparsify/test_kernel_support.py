"""Kernels are used where they compile; elsewhere plain operations."""

from __future__ import annotations

import sys

import pytest
import torch

from wayfare.sparsify import gpu


def test_a_vector_of_a_processor_never_imports_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_compiles", None)
    assert not gpu.has_kernels(torch.zeros(3))


def test_without_triton_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wayfare.sparsify.gpu_largest", None)
    assert not gpu._compiles.__wrapped__(torch.device("cpu"))


def test_a_compiler_that_fails_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def largest(vector: torch.Tensor, k: int) -> None:
            raise RuntimeError("no C compiler")

    monkeypatch.setitem(sys.modules, "wayfare.sparsify.gpu_largest", Broken)
    with pytest.warns(UserWarning, match="Triton cannot compile for cpu; contacts are slower.*no C compiler"):
        assert not gpu._compiles.__wrapped__(torch.device("cpu"))
