"""Where local steps are computed, and how exactly."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from wayfare.errors import ScenarioError, UnavailableError

Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")


def checked_precision(name: str) -> Precision:
    for precision in PRECISIONS:
        if name == precision:
            return precision
    raise ScenarioError("precision", name, f"must be one of {', '.join(PRECISIONS)}")


def checked_device(name: str) -> torch.device:
    """A device by its name, whether it is here or not; `auto` is the first GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ScenarioError("device", name, "must be auto, cpu, cuda or cuda:NUMBER") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A device of PyTorch, a precision, and whether speed may cost repeatability.

    ``fp32`` is strict: no product is rounded to fewer bits. ``tf32`` multiplies with 10 bits of mantissa, ``bf16`` with
    7; both keep the models in float32. Without ``fast`` a run repeats bit by bit on the same machine.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    fast: bool = False

    def __post_init__(self) -> None:
        checked_precision(self.precision)
        if self.device.type != "cuda":
            if self.precision != "fp32":
                raise ScenarioError("precision", self.precision, "needs a CUDA device; processors compute in fp32")
            return
        if not torch.cuda.is_available():
            raise UnavailableError(f"device = '{self.device}': PyTorch finds no CUDA device here")
        if not self.fast:
            # cuBLAS repeats its sums only with a workspace of fixed size, which it reads before its first product.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    @classmethod
    def named(cls, device: str, precision: Precision = "fp32", *, fast: bool = False) -> Compute:
        return cls(device=checked_device(device), precision=precision, fast=fast)

    @property
    def hardware(self) -> str:
        """The GPU or the processor by name, as far as the system tells: sums may come out differently on another."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        try:
            with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
                names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        except OSError:
            names = []
        return names[0] if names else platform.processor() or platform.machine()

    @contextmanager
    def numerics(self) -> Iterator[None]:
        """Everything computed inside has this precision, and repeats unless ``fast``; settings come back after."""
        if self.device.type != "cuda":
            yield
            return
        before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
        fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        torch.set_float32_matmul_precision("highest" if self.precision == "fp32" else "high")
        torch.use_deterministic_algorithms(not self.fast)
        # Memory that is written before it is read need not be filled first.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            with (
                torch.backends.cudnn.flags(
                    enabled=True,
                    # A search for the fastest kernel may end differently next time.
                    benchmark=self.fast,
                    deterministic=not self.fast,
                    allow_tf32=self.precision != "fp32",
                ),
                torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False),
            ):
                yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.use_deterministic_algorithms(before[1])
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for each process: runs are many and small, and sums come out the same on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
