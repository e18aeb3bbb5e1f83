"""Compiles the Triton kernels of real launches for an H200, on a machine without it. Nothing runs.

Launches get tensors on the device `meta`, which have sizes, types and alignments but no memory. A driver in the place
of that for CUDA names the target, and Triton's compiler is replaced by a list of what it is asked to compile.
"""

from __future__ import annotations

import math
import re
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import triton
import triton.compiler
from triton.backends.compiler import GPUTarget

# Compute capability 9.0, and the most shared memory that a block of threads can have there.
_CAPABILITY, _WARP_THREADS = 90, 32
MOST_SHARED_BYTES = 227 << 10


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel for arguments of some types and for some constants, where it is first launched."""

    where: str
    source: Any
    options: dict[str, Any]

    @property
    def kernel(self) -> str:
        function = self.source.fn
        return f"{function.__module__.removeprefix('wayfare.')}.{function.__name__.strip('_')}"

    @property
    def constants(self) -> dict[str, Any]:
        names = self.source.fn.arg_names
        return {names[key[0]] if isinstance(key, tuple) else key: value for key, value in self.source.constants.items()}

    @property
    def types(self) -> dict[str, str]:
        """Of arguments that are no constants."""
        return {name: str(type_) for name, type_ in self.source.signature.items() if type_ != "constexpr"}

    @property
    def work(self) -> int:
        """The larger, the more registers and shared memory a variant of one kernel is likely to take."""
        sizes = [1 + size for size in self.constants.values() if isinstance(size, int)]
        return int(math.prod(sizes) * self.options["num_warps"] * self.options["num_stages"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a compiled kernel takes. One that does not compile only has an error."""

    seconds: float  # CPU time
    error: str = ""
    registers: int = 0  # of a thread
    spilled_bytes: int = 0  # of a thread's registers, stored in memory
    shared_bytes: int = 0

    @property
    def fault(self) -> str:
        """Why the GPU cannot run it, in one line; empty if it can."""
        if self.error or self.shared_bytes <= MOST_SHARED_BYTES:
            return self.error
        return f"needs {self.shared_bytes:,} bytes of shared memory, more than {MOST_SHARED_BYTES:,}"


class Launches(list[Launch]):
    """Every kernel that is launched, once."""

    where = ""

    def _add(self, source: Any, *, target: GPUTarget, options: dict[str, Any]) -> _Nothing:
        self.append(Launch(self.where, source, options))
        return _Nothing()

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Within it launches only add themselves, and vectors on `meta` count as those of a GPU with kernels."""
        triton.runtime.driver.set_active(_Driver())
        with (
            patch.object(triton.compiler, "compile", self._add),
            patch("wayfare.sparsify.launches._current_stream", lambda device: 0),
            patch("wayfare.sparsify.gpu.has_kernels", lambda vector: True),
        ):
            yield

    def one_of_each(self) -> list[Launch]:
        """The largest variant of every kernel."""
        return [max((each for each in self if each.kernel == name), key=lambda each: each.work) for name in self.names]

    @property
    def names(self) -> Sequence[str]:
        return list(dict.fromkeys(each.kernel for each in self))


class _Driver:
    """What Triton asks of a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", _CAPABILITY, _WARP_THREADS)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _Nothing:
    """In the place of compiled code."""

    function = packed_metadata = None

    def launch_metadata(self, *arguments: Any) -> None:
        pass

    def run(self, *arguments: Any) -> None:
        pass


def compiled(launch: Launch) -> Compiled:
    """Compile the kernel of a launch, without a cache."""
    began, log = _cpu_seconds(), StringIO()
    cache_knobs, nvidia_knobs = triton.knobs.cache, triton.knobs.nvidia
    try:
        with TemporaryDirectory() as cache, cache_knobs.scope(), nvidia_knobs.scope(), redirect_stdout(log):
            cache_knobs.dir, nvidia_knobs.dump_ptxas_log = cache, True
            made = triton.compile(launch.source, target=_Driver().get_current_target(), options=launch.options)
    except Exception as error:  # every stage of the compiler has its own
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return Compiled(seconds=_cpu_seconds() - began, error=f"does not compile: {lines[-1]}")
    return Compiled(
        seconds=_cpu_seconds() - began,
        registers=_reported(r"Used (\d+) registers", log),
        spilled_bytes=_reported(r"(\d+) bytes spill stores", log),
        shared_bytes=made.metadata.shared,
    )


def _reported(pattern: str, log: StringIO) -> int:
    """A number from the report of the assembler."""
    found = re.search(pattern, log.getvalue())
    assert found is not None, log.getvalue()
    return int(found[1])


def _cpu_seconds() -> float:
    """Of this process and its children, such as the assembler."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
