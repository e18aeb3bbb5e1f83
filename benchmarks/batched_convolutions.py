"""Convolutions of ResNet-9 for 20 devices x batch 32 on one GPU: cuDNN against one kernel over all devices.

    python benchmarks/batched_convolutions.py [--precision tf32 bf16] [--out FILE]

For every convolution and pass (forward, gradient of the input, gradient of the weights) it times what engines use
today, one model at batch 640, and our kernel over a list of tiles; it checks values against double precision and that
they repeat bit for bit. The floor of a pass is the larger of its arithmetic at the measured rate of a large product
and its memory traffic at the measured rate of a copy. The whole takes about a minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from wayfare.engine import Compute, Precision
from wayfare.engine.batched.convolutions import (
    Tile,
    convolve,
    padded_signal,
    tiles_per_device,
    turned_signal,
    turned_weights,
)
from wayfare.engine.batched.weight_gradients import WeightTile, weight_gradient
from wayfare.engine.unfolded import _neighbourhoods

DEVICES, BATCH, STREAMS = 20, 32, 10
WHERE = "cuda"
PASSES = ("forward", "input", "weight")
TYPES: dict[Precision, torch.dtype] = {"tf32": torch.float32, "bf16": torch.bfloat16}
# Relative errors (Euclidean norm) that the rounding of factors, and of bf16 results, explains.
LIMITS: dict[Precision, float] = {"tf32": 2e-3, "bf16": 5e-3}
# Today the gradients of weights are plain products in TF32 up to this image size.
UNFOLDED_PIXELS = 64
AnyTile: TypeAlias = Tile | WeightTile


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


def tiles(precision: Precision, inputs: int) -> list[Tile]:
    """Tiles of results, (positions, outputs, warps, stages)."""
    step = min(inputs, 32 if precision == "tf32" else 64)
    shapes = [
        (128, 128, 4, 3),
        (128, 128, 8, 3),
        (128, 128, 8, 4),
        (256, 128, 8, 3),
        (256, 128, 8, 4),
        (128, 256, 8, 3),
        (128, 256, 8, 4),
        (128, 64, 4, 4),
        (256, 64, 8, 3),
        (256, 64, 4, 3),
    ]
    return [
        Tile(positions=positions, outputs=outputs, inputs=step, warps=warps, stages=stages)
        for positions, outputs, warps, stages in shapes
    ]


def weight_tiles(precision: Precision, *, turned: bool) -> list[WeightTile]:
    """Tiles of weight gradients, (outputs, inputs, warps, stages, row of taps). Parts are chosen per layer."""
    shapes = [
        (128, 128, 4, 3, False),
        (128, 128, 8, 4, False),
        (256, 128, 8, 4, False),
        (128, 128, 8, 3, True),
        (128, 64, 4, 4, False),
        (128, 64, 8, 4, True),
        (64, 32, 4, 4, False),
    ]
    if precision == "tf32" and not turned:
        # The compiler turns operands in shared memory: a comparison, not a hope.
        shapes = [(128, 128, 8, 3, False), (128, 64, 4, 3, False)]
    return [
        WeightTile(outputs=outputs, inputs=inputs, positions=step, parts=1, warps=warps, stages=stages, row_of_taps=row)
        for outputs, inputs, warps, stages, row in shapes
        for step in ([32] if precision == "tf32" else [64, 128] if stages == 3 and not row else [64])
    ]


def kinds(precision: Precision) -> list[tuple[str, AnyTile, Precision, int, bool]]:
    """Everything to compile: (kernel, tile, precision, taps, turned)."""
    found: list[tuple[str, AnyTile, Precision, int, bool]] = []
    found += [("convolve", tile, precision, 9, False) for tile in tiles(precision, 64)]
    found += [("moments", tile, precision, 9, False) for tile in tiles(precision, 64)]
    found += [("convolve", tile, precision, 1, False) for tile in tiles(precision, 32) if tile.outputs == 64]
    for turned in [True, False] if precision == "tf32" else [False]:
        for tile in weight_tiles(precision, turned=turned):
            found.append(("weight", tile, precision, 1 if tile.inputs == 32 else 9, turned))
    return found


def compile_one(kind: tuple[str, AnyTile, Precision, int, bool]) -> str:
    """Run a kernel on the smallest work, so that the compiled code is in the cache; return the error, if any."""
    kernel, tile, precision, taps, turned = kind
    try:
        torch.zeros(1, device=WHERE)
        small = {"device": WHERE, "dtype": TYPES[precision]}
        if isinstance(tile, Tile):
            signal = torch.zeros(1, 1, tile.positions // BATCH + 1, BATCH, tile.inputs, **small)
            out = torch.zeros(1, 1, tile.positions // BATCH + 1, BATCH, tile.outputs, **small)
            weights = torch.zeros(1, tile.outputs, taps, tile.inputs, **small)
            moments = torch.zeros(1, 1, 2, tile.outputs, device=WHERE) if kernel == "moments" else None
            convolve(signal, weights, out, tile, moments)
        else:
            signal, gradient = (torch.zeros(1, 2, 5, BATCH, each, **small) for each in (tile.inputs, tile.outputs))
            if turned:
                signal, gradient = turned_signal(signal), turned_signal(gradient)
            weight_gradient(gradient, signal, taps, tile, turned=turned)
        torch.cuda.synchronize()
    except Exception as error:  # too much shared memory, say: the tile is left out and named
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def compile_all(every: Sequence[tuple[str, AnyTile, Precision, int, bool]]) -> dict[AnyTile, str]:
    """Compile in processes forked before this one uses the GPU. Returns the errors."""
    began = time.perf_counter()
    workers = min(12, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        errors = list(pool.map(compile_one, every))
    print(f"compiled {len(every)} kernels in {time.perf_counter() - began:.1f} s with {workers} processes", flush=True)
    bad = {}
    for kind, error in zip(every, errors, strict=True):
        if error:
            print(f"  not usable: {kind}: {error}")
            bad[kind[1]] = error
    return bad


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
    return statistics.median(times)


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
    return weights.unflatten(2, (3, 3)).permute(0, 1, 4, 2, 3)


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
        operands = images_of(work.signal[one])[0], kernels_of(work.weights[one])[0], images_of(work.gradient[one])[0]
        result = library(pass_, *(each.double() for each in operands))
        found.append(as_stored(result, pass_))
    return found


def as_stored(result: Tensor, pass_: str) -> Tensor:
    return result.permute(0, 2, 3, 1).flatten(1, 2) if pass_ == "weight" else result.permute(2, 3, 0, 1)


def error(found: Iterable[Tensor], truth: Iterable[Tensor]) -> float:
    return max(float((one.double() - other).norm() / other.norm()) for one, other in zip(found, truth, strict=True))


def nearest(numbers: Tensor) -> Tensor:
    """Numbers rounded to the eleven significant bits of TF32; matrix units cut off the others."""
    if numbers.dtype != torch.float32:
        return numbers
    return ((numbers.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def neighbourhoods(signal: Tensor) -> Tensor:
    """(devices, height, width, batch, 32): the 27 values around each position, for the first layer."""
    images = images_of(signal)
    rows = _neighbourhoods(images.flatten(0, 1)).view(DEVICES, BATCH, *signal.shape[1:3], -1)
    return functional.pad(rows.permute(0, 2, 3, 1, 4), (0, 32 - rows.shape[-1])).contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A pass by our kernel."""

    tile: AnyTile
    turned: bool
    run: Callable[[], Tensor]  # results, padded if signals


def ours(work: Work, pass_: str, bad: Iterable[AnyTile], precision: Precision) -> list[Ours]:
    first = work.layer.inputs == 3
    signal = padded_signal(neighbourhoods(work.signal) if first else work.signal)
    gradient, weights = padded_signal(work.gradient), work.weights
    if first:
        weights = functional.pad(weights.flatten(2), (0, 5)).unsqueeze(2)
    taps, inputs = weights.shape[2:]
    ways: list[Ours] = []
    if pass_ == "weight":
        for turned in [True, False] if precision == "tf32" else [False]:
            operands = [turned_signal(each) if turned else each for each in (gradient, signal)]
            for shape, aim in itertools.product(weight_tiles(precision, turned=turned), (1, 264, 528, 1056)):
                blocks = DEVICES * taps * work.layer.outputs * inputs // (shape.outputs * shape.inputs)
                programs = blocks // 3 if shape.row_of_taps else blocks
                tile = replace(shape, parts=max(1, round(aim / max(programs, 1))))
                fits = not (work.layer.outputs % tile.outputs or inputs % tile.inputs)
                fits = fits and (tile.inputs == 32) == first and not (first and tile.row_of_taps) and shape not in bad
                if fits and tile not in [way.tile for way in ways if way.turned == turned]:
                    run = partial(weight_gradient, *operands, taps, tile, turned=turned)
                    ways.append(Ours(tile=tile, turned=turned, run=run))
        return ways
    if pass_ == "input":
        signal, weights = gradient, turned_weights(weights)
    out = padded_signal(work.results(pass_)).zero_()
    for tile in tiles(precision, weights.shape[3]):
        divides = (work.layer.width * BATCH) % tile.positions == 0 and weights.shape[1] % tile.outputs == 0
        if divides and tile not in bad:

            def run_rows(tile: Tile = tile) -> Tensor:
                convolve(signal, weights, out, tile)
                return out

            ways.append(Ours(tile=tile, turned=False, run=run_rows))
    return ways


def values(result: Tensor, work: Work, pass_: str) -> list[Tensor]:
    """The first and the last device, in the layout of `Work`."""
    both = result[[0, DEVICES - 1]]
    if pass_ != "weight":
        return list(both[:, :, :-1].unbind())
    if work.layer.inputs == 3:
        both = both.flatten(2)[:, :, :27].unflatten(2, (9, 3))
    return list(both.unbind())


def measured(layer: Layer, pass_: str, precision: Precision, bad: Iterable[AnyTile], rate: Rates) -> dict[str, object]:
    work = made(layer, precision)
    truth = exact(work, pass_)
    with Compute.named("cuda", precision).numerics(), torch.autocast("cuda", enabled=False):
        today_ms, found = today(work, pass_, precision)
        cudnn_error = error((as_stored(each, pass_) for each in found), truth)
        grouped_ms, one_model_ms = grouped(work, pass_), one_model(work, pass_)
    rows, best = [], None
    for way in ours(work, pass_, bad, precision):
        wrong = error(values(way.run(), work, pass_), truth)
        right = wrong <= LIMITS[precision]
        took_ms = milliseconds(way.run)
        rows.append({**asdict(way.tile), "turned": way.turned, "ms": took_ms, "error": wrong, "right": right})
        if right and (best is None or took_ms < best[0]):
            best = took_ms, way
    floor_ms = 1e3 * max(layer.flops / rate.flops_per_s, work.bytes_moved(pass_) / rate.bytes_per_s)
    row: dict[str, object] = {
        "layer": layer.name,
        "times": layer.times,
        "pass": pass_,
        "precision": precision,
        "today_ms": today_ms,
        "grouped_ms": grouped_ms,
        "one_model_ms": one_model_ms,
        "floor_ms": floor_ms,
        "error_today": cudnn_error,
        "tiles": sorted(rows, key=lambda each: float(each["ms"])),
    }
    if best is None:
        print(f"{precision} {layer.name:>8} {pass_:>8}: NO TILE IS RIGHT: {rows[:2]}", flush=True)
        return row
    ours_ms, way = best
    first = way.run().clone()
    row |= {"ours_ms": ours_ms, "share_of_floor": floor_ms / ours_ms, "best": asdict(way.tile), "turned": way.turned}
    row["repeats"] = torch.equal(first, way.run())
    row["error"] = error(values(first, work, pass_), truth)
    near = replace(work, **{name: nearest(getattr(work, name)) for name in ("signal", "gradient", "weights")})
    again = [each for each in ours(near, pass_, bad, precision) if (each.tile, each.turned) == (way.tile, way.turned)]
    row["error_rounded"] = error(values(again[0].run(), work, pass_), truth)
    if pass_ == "forward":
        row["with_moments_ms"] = with_moments(work, way)
    print(
        f"{precision} {layer.name:>8} {pass_:>8} {today_ms:8.3f} {grouped_ms:8.3f} {one_model_ms:8.3f} {ours_ms:8.3f}"
        f" {floor_ms:7.3f} {floor_ms / ours_ms:6.0%} {cudnn_error:9.1e} {row['error']:9.1e} {row['error_rounded']:9.1e}"
        f" {'yes' if row['repeats'] else 'NO'} {described(way)}",
        flush=True,
    )
    for each in row["tiles"]:  # type: ignore[attr-defined]
        if not each["right"]:
            print(f"    wrong by {each['error']:.1e}: {each}", flush=True)
    return row


def described(way: Ours) -> str:
    return " ".join(f"{name}={value}" for name, value in asdict(way.tile).items()) + (" turned" if way.turned else "")


def with_moments(work: Work, way: Ours) -> float:
    """Milliseconds of the forward pass with the moments of its results, for layers with nine taps."""
    assert isinstance(way.tile, Tile)
    if work.layer.inputs == 3:
        return float("nan")
    tile, signal, out = way.tile, padded_signal(work.signal), padded_signal(work.gradient)
    moments = torch.empty(DEVICES, tiles_per_device(signal, tile), 2, work.layer.outputs, device=WHERE)
    return milliseconds(lambda: convolve(signal, work.weights, out, tile, moments))


def turning(precision: Precision) -> dict[str, float]:
    """Milliseconds to turn the weights and the signals of all layers by PyTorch: limits for fused copies."""
    weights_ms = signals_ms = 0.0
    for layer in LAYERS[1:]:
        work = made(layer, precision)
        signal = padded_signal(work.signal)
        weights_ms += layer.times * milliseconds(lambda work=work: turned_weights(work.weights))  # type: ignore[misc]
        signals_ms += layer.times * milliseconds(lambda signal=signal: turned_signal(signal))  # type: ignore[misc]
    return {"turn_weights_ms": weights_ms, "turn_signals_ms": signals_ms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", default=["tf32", "bf16"], choices=["tf32", "bf16"])
    parser.add_argument("--out", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    began = time.perf_counter()
    bad = compile_all([kind for precision in arguments.precision for kind in kinds(precision)])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {DEVICES} devices, batch {BATCH}")
    table: dict[str, object] = {"machine": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows = []
    for precision in arguments.precision:
        with Compute.named("cuda", precision).numerics(), torch.autocast("cuda", enabled=False):
            rate = rates(precision)
            print(f"{precision}: {rate.flops_per_s / 1e12:.0f} TFLOP/s, {rate.bytes_per_s / 1e12:.2f} TB/s")
        print(
            f"{'':>4} {'layer':>8} {'pass':>8} {'today':>8} {'grouped':>8} {'1 model':>8} {'ours':>8} {'floor':>7}"
            f" {'share':>6} {'err today':>9} {'err ours':>9} {'rounded':>9} same, tile (times in ms)"
        )
        mine = [
            measured(layer, pass_, precision, bad, rate)
            for layer in LAYERS
            for pass_ in PASSES
            if not (layer.inputs == 3 and pass_ == "input")
        ]
        sums = {
            name: sum(float(row[name]) * int(row["times"]) for row in mine if name in row)  # type: ignore[call-overload,arg-type]
            for name in ("today_ms", "grouped_ms", "one_model_ms", "ours_ms", "floor_ms")
        } | turning(precision)
        print(f"{precision} per round: " + ", ".join(f"{name} {value:.2f}" for name, value in sums.items()), flush=True)
        table[precision] = {**asdict(rate), **sums}
        rows += mine
    table |= {"rows": rows, "took_s": time.perf_counter() - began}
    print(f"took {table['took_s']:.0f} s")
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
