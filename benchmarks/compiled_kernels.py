"""What Wayfare's Triton kernels take on an H200, compiled on a machine without one: registers, spills, shared memory.

    python benchmarks/compiled_kernels.py [--one-each] [--only mads-rd "ResNet-9 tf32"] [--json FILE]

Needs Triton and no GPU. The launches are those of a run: ResNet-9 in the engine `batched` and trained parts of
EfficientNet-Lite0, with 20 devices and minibatches of 32, norms of LaneGCN, and contacts of MADS and MADS-RD. Every
variant of a kernel is compiled once and listed with the first part that launches it. The exit status is 1 if one does
not compile or needs more shared memory than the GPU has. Seconds are CPU time, without a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from kernel_compiler import Compiled, Launch, Launches, compiled
from rounds import BATCH, DEVICES, tuned_cases
from wayfare.codec.length import size_in_steps
from wayfare.codec.steps import ValueBits
from wayfare.engine.batched.network import Network, plan_of
from wayfare.engine.batched.sums import norms
from wayfare.engine.batched.tiles import FORMATS
from wayfare.engine.compute import Precision
from wayfare.engine.lanegcn.gpu_kernels import FusedNorm, sum_of_two
from wayfare.engine.traced.stepping import StackedStep
from wayfare.engine.tuned.layers import Form, convolution
from wayfare.engine.tuned.network import tuned_network
from wayfare.learning.models.base import trainable
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.models.tuned import Tuned
from wayfare.sparsify import top_k, with_tail
from wayfare.sparsify.memory import remainder
from wayfare.sparsify.spectrum import norm_alone, norm_and_spectrum
from wayfare.sparsify.topk import Sparse

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
LANEGCN: tuple[Precision, ...] = ("fp32", "bf16")
# Entries of ResNet-9 that a contact keeps, and bits per value that a kernel counts.
KEPT = 100_000
QUANTISED: tuple[ValueBits, ...] = (8, 4, 2)
# What a norm of LaneGCN covers: the features of a row, or the times and features of a track.
NORMS = (128,), (20, 32), (10, 64), (5, 128), (10, 128), (20, 128)
ROWS = 640


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def contact() -> Sparse:
    """A contact of MADS: the norm, the largest entries with the statistics, and what remains."""
    model = Resnet9()
    update = empty(model.parameters + model.statistics)
    parameters = update[: model.parameters]
    norm_alone(parameters)
    kept = with_tail(top_k(parameters, KEPT), update, model.parameters)
    remainder(update, kept)
    return kept


def contact_by_spectrum() -> None:
    """What MADS-RD launches besides: the spectrum, and counts of symbols."""
    parameters = Resnet9().parameters
    norm_and_spectrum(empty(parameters))
    kept, everything = contact(), Sparse(empty(parameters, dtype=torch.int64), empty(parameters))
    for bits in QUANTISED:
        next(size_in_steps(kept, parameters, bits, KEPT))
        next(size_in_steps(everything, parameters, bits, parameters))


def resnet9(precision: Precision) -> None:
    """Local steps in the engine `batched`: plain ones, and those of other descents."""
    model = Resnet9()
    network = Network(plan_of(model), FORMATS[precision], DEVICES, BATCH, torch.device("meta"), 2 * DEVICES)
    block = empty(1, model.parameters + model.statistics)
    images, labels = empty(DEVICES, BATCH, 3, 32, 32), empty(DEVICES, BATCH, dtype=torch.int64)
    rates, rows = empty(DEVICES), empty(DEVICES, dtype=torch.int32)
    network.load(block, 1)
    network.step(images, labels, None, rates, rows)
    network.read(block, 1)
    gradients = network.gradients(images, labels, empty(DEVICES, model.classes))
    norms(gradients)
    network.update(gradients, rates)


def backbone(name: str, precision: Precision) -> None:
    """A step of a trained part of EfficientNet-Lite0, forward and backward."""
    case = next(each for each in tuned_cases() if each.name == f"EfficientNet-Lite0 {name}")
    assert isinstance(case.model, Tuned)
    module = case.model.module().to("meta").train()
    image = (3, 160, 160) if case.model.cut == 0 else (case.shape[2], *case.shape[:2])
    signals = torch.bfloat16 if precision == "bf16" else torch.float32
    weights = [empty(DEVICES, *entry.shape).requires_grad_() for entry in trainable(module).values()]
    network = tuned_network(module, (empty(3, *image), empty(5, *image)), signals=signals, kernels=True)
    with products_in(precision):
        logits = network(empty(DEVICES * BATCH, *image), StackedStep(count=DEVICES, weights=weights, statistics=()))
        torch.autograd.grad(logits.sum(), weights)


def bottleneck(precision: Precision) -> None:
    """The layers of a block of EfficientNet-Lite0 with a stride, as trained by `everything`, without a trace of it."""
    signals = torch.bfloat16 if precision == "bf16" else torch.float32
    product = Form(kernel=(1, 1), stride=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1)
    window = Form(kernel=(5, 5), stride=(2, 2), padding=(1, 2, 1, 2), dilation=(1, 1), groups=240)
    layers = (
        (replace(product, limit=6.0, gated=True), (240, 40, 1, 1)),
        (replace(window, limit=6.0, gate=6.0, gated=True), (240, 1, 5, 5)),
        (replace(product, gate=6.0), (80, 240, 1, 1)),
        # ReLU after a product that cuBLAS computes in single precision.
        (replace(product, limit=6.0), (320, 80, 1, 1)),
    )
    signal = empty(DEVICES * BATCH, 40, 20, 20, dtype=signals).contiguous(memory_format=torch.channels_last)
    trained: list[Tensor] = []
    with products_in(precision):
        for form, shape in layers:
            weight, bias, factor = (empty(DEVICES, *each).requires_grad_() for each in (shape, shape[:1], shape[:1]))
            signal = convolution(signal, weight, bias, form, DEVICES, kernels=True, factor=factor)
            trained += [weight, bias, factor]
        torch.autograd.grad(signal.sum(), trained)


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def lanegcn(precision: Precision) -> None:
    """Every norm of LaneGCN, with and without a sum and ReLU, and sums of rows."""
    signals = torch.bfloat16 if precision == "bf16" else torch.float32
    for shape in NORMS:
        weight, bias = (empty(DEVICES, shape[-1]).requires_grad_() for _ in range(2))
        for added, rectified in ((False, False), (False, True), (True, False), (True, True)):
            rows, more = (empty(DEVICES, ROWS, *shape, dtype=signals).requires_grad_() for _ in range(2))
            out: Tensor = FusedNorm.apply(rows, weight, bias, more if added else None, rectified, 1e-5)  # type: ignore[no-untyped-call]
            torch.autograd.grad(out.sum(), [rows, weight])
    places = empty(ROWS, dtype=torch.int32)
    sum_of_two(empty(ROWS, 128, dtype=signals), places, empty(ROWS, 128, dtype=signals), places)


def parts() -> dict[str, Callable[[], object]]:
    """What launches kernels, by name."""
    found: dict[str, Callable[[], object]] = {"mads": contact, "mads-rd": contact_by_spectrum}
    found |= {f"ResNet-9 {precision}": partial(resnet9, precision) for precision in FORMATS}
    found |= {
        f"{name} {precision}": partial(backbone, name, precision)
        for name in ("adapters 7", "last-block 4", "norms 7", "everything 18")
        for precision in PRECISIONS
    }
    found |= {f"bottleneck {precision}": partial(bottleneck, precision) for precision in PRECISIONS}
    return found | {f"LaneGCN {precision}": partial(lanegcn, precision) for precision in LANEGCN}


def variant(one: Launch, launches: Sequence[Launch]) -> str:
    """The constants in which a launch differs from others of the same kernel."""
    same = [each.constants for each in launches if each.kernel == one.kernel]
    differ = [name for name in one.constants if len({str(each[name]) for each in same}) > 1]
    return ", ".join([one.where, *(f"{name} {one.constants[name]}" for name in differ)])


def as_row(launch: Launch, found: Compiled) -> dict[str, Any]:
    constants = {name: str(value) for name, value in launch.constants.items()}
    options = {name: launch.options[name] for name in ("num_warps", "num_stages")}
    return {
        "kernel": launch.kernel,
        "where": launch.where,
        "types": launch.types,
        "constants": constants,
        **options,
        **asdict(found),
        "fault": found.fault,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(parts()), metavar="PART", help=", ".join(parts()))
    parser.add_argument("--one-each", action="store_true", help="only the largest variant of every kernel")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set, so Triton would not compile")
    launches = Launches()
    with launches.collected():
        for name in arguments.only or parts():
            launches.where = name
            parts()[name]()
    print(f"Triton {triton.__version__}, capability 9.0")
    print(f"{'kernel':>36} {'registers':>9} {'spilled':>7} {'shared':>7} {'seconds':>7}  variant")
    rows = []
    for launch in launches.one_of_each() if arguments.one_each else launches:
        found = compiled(launch)
        figures = f"{found.registers:9} {found.spilled_bytes:7,} {found.shared_bytes:7,} {found.seconds:7.2f}"
        name = ".".join(launch.kernel.split(".")[-2:])
        print(f"{name:>36} {figures}  {variant(launch, launches)}{found.fault and ': ' + found.fault}", flush=True)
        rows.append(as_row(launch, found))
    print(f"{len(rows)} kernels in {sum(row['seconds'] for row in rows):.1f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(row["fault"] for row in rows))


if __name__ == "__main__":
    main()
