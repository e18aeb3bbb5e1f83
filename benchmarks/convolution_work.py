"""The convolutions of ResNet-9 for 20 devices x batch 32, by PyTorch: work, times and exact results.

Used by batched_convolutions.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from wayfare.engine import Precision
from wayfare.engine.unfolded import _neighbourhoods

DEVICES, BATCH, STREAMS = 20, 32, 10
WHERE = "cuda"
PASSES = ("forward", "input", "weight")
TYPES: dict[Precision, torch.dtype] = {"tf32": torch.float32, "bf16": torch.bfloat16}
# Relative errors (Euclidean norm) that the rounding of factors, and of bf16 results, explains.
LIMITS: dict[Precision, float] = {"tf32": 2e-3, "bf16": 5e-3}
# Today the gradients of weights are plain products in TF32 up to this image size.
UNFOLDED_PIXELS = 64


@dataclass(frozen=True, slots=True)
class Layer:
    name: str
    inputs: int
    outputs: int
    width: int
    times: int = 1

    @property
    def flops(self) -> float:
        """Of one pass of all devices."""
        return 2.0 * DEVICES * BATCH * self.width**2 * 9 * self.inputs * self.outputs


LAYERS = (
    Layer("3-64", 3, 64, 32),
    Layer("64-128", 64, 128, 32),
    Layer("128-128", 128, 128, 16, 2),
    Layer("128-256", 128, 256, 16),
    Layer("256-512", 256, 512, 8),
    Layer("512-512", 512, 512, 4, 2),
)


def milliseconds(work: Callable[[], object], launches: int = 4, repeats: int = 5) -> float:
    """The median time of one call, from graphs of several calls, without the cost of launching."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
        work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # `torch.cuda.graph` would also empty the cache of the allocator, which takes longer than the measurement.
        graph.capture_begin()
        for _ in range(launches):
            work()
        graph.capture_end()
        graph.replay()
        times = []
        for _ in range(repeats):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / launches)
    return float(statistics.median(times))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    flops_per_s: float
    bytes_per_s: float


def rates(precision: Precision) -> Rates:
    one = torch.randn(8192, 8192, device=WHERE, dtype=TYPES[precision])
    product_ms = milliseconds(lambda: one @ one, 2, 3)
    block = torch.empty(1 << 30, dtype=torch.uint8, device=WHERE)
    other = torch.empty_like(block)
    copy_ms = milliseconds(lambda: other.copy_(block), 2, 3)
    return Rates(flops_per_s=2 * 8192**3 / product_ms * 1e3, bytes_per_s=2 * len(block) / copy_ms * 1e3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The tensors of a layer: (devices, height, width, batch, channels) and (devices, outputs, 9, inputs)."""

    layer: Layer
    signal: Tensor
    gradient: Tensor
    weights: Tensor

    def results(self, pass_: str) -> Tensor:
        return {"forward": self.gradient, "input": self.signal, "weight": self.weights}[pass_]

    def bytes_moved(self, pass_: str) -> int:
        sizes = [each.numel() * each.element_size() for each in (self.signal, self.gradient, self.weights)]
        if pass_ == "weight":
            sizes[2] = 4 * self.weights.numel()
        return sum(sizes)


def made(layer: Layer, precision: Precision) -> Work:
    """Random tensors: signals as after ReLU, small gradients."""
    random = torch.Generator(WHERE).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=WHERE)

    side, type_ = layer.width, TYPES[precision]
    return Work(
        layer=layer,
        signal=normal(DEVICES, side, side, BATCH, layer.inputs).relu_().to(type_),
        gradient=normal(DEVICES, side, side, BATCH, layer.outputs).mul_(1e-3).to(type_),
        weights=normal(DEVICES, layer.outputs, 9, layer.inputs).mul_(0.05).to(type_),
    )


def images_of(signal: Tensor) -> Tensor:
    """(devices, batch, channels, height, width) with channels last."""
    return signal.permute(0, 3, 1, 2, 4).contiguous().permute(0, 1, 4, 2, 3)


def kernels_of(weights: Tensor) -> Tensor:
    """(devices, outputs, inputs, 3, 3) with channels last."""
    kernels: Tensor = weights.unflatten(2, (3, 3))
    return kernels.permute(0, 1, 4, 2, 3)


def library(pass_: str, images: Tensor, kernel: Tensor, gradient: Tensor, groups: int = 1) -> Tensor:
    """A pass of one convolution by PyTorch."""
    if pass_ == "forward":
        return functional.conv2d(images, kernel, padding=1, groups=groups)
    one, mask = [1, 1], [pass_ == "input", pass_ == "weight", False]
    found = torch.ops.aten.convolution_backward(
        gradient, images, kernel, None, one, one, one, False, [0, 0], groups, mask
    )
    return found[PASSES.index(pass_) - 1]  # type: ignore[no-any-return]


def unfolded(images: Tensor, kernel: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of weights as a product, as in `unfolded`."""
    outputs, inputs = kernel.shape[:2]
    flat = gradient.permute(0, 2, 3, 1).reshape(-1, outputs)
    return (flat.t() @ _neighbourhoods(images)).view(outputs, 3, 3, inputs).permute(0, 3, 1, 2)


def today(work: Work, pass_: str, precision: Precision) -> tuple[float, list[Tensor]]:
    """Milliseconds of all devices, one by one on ten streams, and the results."""
    images, kernels, gradients = images_of(work.signal), kernels_of(work.weights), images_of(work.gradient)
    as_product = pass_ == "weight" and precision == "tf32" and work.layer.width**2 <= UNFOLDED_PIXELS
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]

    def each(device: int) -> Tensor:
        if as_product:
            return unfolded(images[device], kernels[device], gradients[device])
        return library(pass_, images[device], kernels[device], gradients[device])

    def run() -> None:
        here = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(here)
        for device in range(DEVICES):
            with torch.cuda.stream(streams[device % STREAMS]):
                each(device)
        for stream in streams:
            here.wait_stream(stream)

    return milliseconds(run, 2), [each(device) for device in (0, DEVICES - 1)]


def grouped(work: Work, pass_: str) -> float:
    def joined(images: Tensor) -> Tensor:
        return images.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)

    images, gradient = joined(images_of(work.signal)), joined(images_of(work.gradient))
    kernel = kernels_of(work.weights).flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return milliseconds(lambda: library(pass_, images, kernel, gradient, DEVICES), 1, 3)


def one_model(work: Work, pass_: str) -> float:
    images, gradient = images_of(work.signal).flatten(0, 1), images_of(work.gradient).flatten(0, 1)
    return milliseconds(lambda: library(pass_, images, kernels_of(work.weights)[0], gradient))


def exact(work: Work, pass_: str) -> list[Tensor]:
    """Results of the first and the last device in double precision, in the layout of `Work`."""
    found = []
    for device in (0, DEVICES - 1):
        one = slice(device, device + 1)
        images, gradient = images_of(work.signal[one])[0].double(), images_of(work.gradient[one])[0].double()
        result = library(pass_, images, kernels_of(work.weights[one])[0].double(), gradient)
        found.append(as_stored(result, pass_))
    return found


def as_stored(result: Tensor, pass_: str) -> Tensor:
    return result.permute(0, 2, 3, 1).flatten(1, 2) if pass_ == "weight" else result.permute(2, 3, 0, 1)


def error(found: Iterable[Tensor], truth: Iterable[Tensor]) -> float:
    return max(float((one.double() - other).norm() / other.norm()) for one, other in zip(found, truth, strict=True))


def neighbourhoods(signal: Tensor) -> Tensor:
    """(devices, height, width, batch, 32): the 27 values around each position, for the first layer."""
    images = images_of(signal)
    rows = _neighbourhoods(images.flatten(0, 1)).view(DEVICES, BATCH, *signal.shape[1:3], -1)
    return functional.pad(rows.permute(0, 2, 3, 1, 4), (0, 32 - rows.shape[-1])).contiguous()
