"""The device and precision of local steps."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from wayfare.errors import ScenarioError, UnavailableError

Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")

# While a thread captures a graph, no other may launch on the captured stream (PyTorch has 32, and reuses them) or wait
# for the whole GPU. So whoever captures, launches local steps or waits for the GPU holds this lock.
gpu_lock = threading.RLock()


class _OwnStreams(threading.local):
    """The streams of a thread, by the number of the GPU. One stream for all its runs reuses their memory."""

    def __init__(self) -> None:
        self.of_gpu: dict[int, torch.cuda.Stream] = {}


_own_streams = _OwnStreams()


def checked_precision(name: str) -> Precision:
    for precision in PRECISIONS:
        if name == precision:
            return precision
    raise ScenarioError("precision", name, f"must be one of {', '.join(PRECISIONS)}")


def checked_device(name: str) -> torch.device:
    """Parse the name of a device; `auto` is the first GPU, or the CPU without one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ScenarioError("device", name, "must be auto, cpu, cuda or cuda:NUMBER") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A PyTorch device, a precision, and whether speed may cost reproducibility.

    ``fp32`` is strict: no product is rounded to fewer bits. ``tf32`` multiplies with 10 bits of mantissa, ``bf16`` with
    7; both keep the models in float32. Without ``fast`` repeated runs on the same machine are bit-identical.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    fast: bool = False

    def __post_init__(self) -> None:
        checked_precision(self.precision)
        if self.device.type != "cuda":
            if self.precision != "fp32":
                raise ScenarioError("precision", self.precision, "needs a CUDA device; CPUs compute in fp32")
            return
        if not torch.cuda.is_available():
            raise UnavailableError(f"device = '{self.device}': PyTorch finds no CUDA device here")
        if not self.fast:
            # cuBLAS is reproducible only with a fixed workspace, which it reads before its first product.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    @classmethod
    def named(cls, device: str, precision: Precision = "fp32", *, fast: bool = False) -> Compute:
        return cls(device=checked_device(device), precision=precision, fast=fast)

    @property
    def hardware(self) -> str:
        """The name of the GPU or CPU, if the system reports it. Sums may round differently on another."""
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
        """Compute with this precision, reproducibly unless ``fast``; restore the settings afterwards."""
        if self.device.type != "cuda":
            yield
            return
        before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
        fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        torch.set_float32_matmul_precision("highest" if self.precision == "fp32" else "high")
        _use_deterministic_algorithms(not self.fast)
        # Filling uninitialised memory costs time and is not needed: it is written before it is read.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        try:
            with (
                torch.backends.cudnn.flags(
                    enabled=True,
                    # A search for the fastest kernel may find another one next time.
                    benchmark=self.fast,
                    deterministic=not self.fast,
                    allow_tf32=self.precision != "fp32",
                ),
                torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False),
            ):
                yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            _use_deterministic_algorithms(before[1])
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """Work on this thread's own stream of a GPU, and wait for the GPU at the end.

        A GPU prefers it to local steps, so that contacts do not wait for steps that are not urgent.
        """
        if self.device.type != "cuda":
            yield
            return
        number = torch.cuda.current_device() if self.device.index is None else self.device.index
        if number not in _own_streams.of_gpu:
            _own_streams.of_gpu[number] = torch.cuda.Stream(self.device, priority=-1)
        stream = _own_streams.of_gpu[number]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            # Memory that local steps still use must not be given to the next run.
            with gpu_lock:
                torch.cuda.synchronize(self.device)


def _use_deterministic_algorithms(wanted: bool) -> None:
    """`torch.use_deterministic_algorithms` also tells its compiler, and takes two seconds to import it for that."""
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(wanted)
    else:
        torch._C._set_deterministic_algorithms(wanted)
