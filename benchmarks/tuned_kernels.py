"""Kernels for trained parts of EfficientNet-Lite0 on one GPU: depthwise gradients and products, by tile.

    python benchmarks/tuned_kernels.py [--precision bf16 tf32] [--only sums products gates] [--json FILE]

For every layer shape of the network at 160 pixels, 20 devices x batch 32, it times the kernels before (`before`), and
the new ones with several tiles. ``sums``: gradients of depthwise weights and biases. ``products``: a product with its
bias and ReLU, against cuBLAS and a pass. ``gates``: the gradient of the rows of a product through the ReLU before it,
against cuBLAS and a pass. The floor is memory traffic at 4.3 TB/s; times are microseconds, and errors are relative to
double precision. The last lines sum up the layers of networks. Compilation takes most of the time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import triton
from torch import Tensor
from torch.nn import functional

from tuned_kernels_before import depthwise_weights as weights_before
from wayfare.engine.tuned.depthwise import Gate, Window
from wayfare.engine.tuned.depthwise_sums import SumTile, depthwise_weights
from wayfare.engine.tuned.products import ProductTile, activated_product, product_inputs
from wayfare.engine.tuned.relu import activate_, before_activation

DEVICES, BATCH, LIMIT = 20, 32, 6.0
BYTES_PER_S = 4.3e12
TYPES = {"bf16": torch.bfloat16, "tf32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer shape, and how often it occurs in a network."""

    inputs: int
    outputs: int
    side: int  # of the signal
    kernel: int = 1
    stride: int = 1
    limit: float = LIMIT
    times: Mapping[str, int]

    @property
    def name(self) -> str:
        if self.kernel > 1:
            return f"{self.inputs} {self.kernel}x{self.kernel}/{self.stride} at {self.side}"
        return f"{self.inputs}-{self.outputs} at {self.side}"

    @property
    def window(self) -> Window:
        """TensorFlow's padding: an odd pixel goes right and below."""
        out = -(-self.side // self.stride)
        before = max((out - 1) * self.stride + self.kernel - self.side, 0) // 2
        sizes = {"height": self.side, "width": self.side, "out_height": out, "out_width": out}
        return Window(kernel=self.kernel, stride=self.stride, top=before, left=before, **sizes)


# Blocks: inputs, outputs, expansion, kernel, stride, side of the images.
BLOCKS = (
    *(
        (32, 16, 1, 3, 1, 80),
        (16, 24, 6, 3, 2, 80),
        (24, 24, 6, 3, 1, 40),
        (24, 40, 6, 5, 2, 40),
        (40, 40, 6, 5, 1, 20),
    ),
    *((40, 80, 6, 3, 2, 20), (80, 80, 6, 3, 1, 10), (80, 80, 6, 3, 1, 10), (80, 112, 6, 5, 1, 10)),
    *((112, 112, 6, 5, 1, 10), (112, 112, 6, 5, 1, 10), (112, 192, 6, 5, 2, 10), (192, 192, 6, 5, 1, 5)),
    *((192, 192, 6, 5, 1, 5), (192, 192, 6, 5, 1, 5), (192, 320, 6, 3, 1, 5)),
)
# How many blocks before the last convolution each network trains.
NETWORKS = {"last-block 4": 3, "adapters 7": 6, "everything": 16}


def layers() -> tuple[list[Layer], list[Layer], list[Layer]]:
    """Depthwise layers, products with bias (and ReLU), and products after a ReLU."""
    counts: dict[tuple[str, int, int, int, int, int, float], dict[str, int]] = {}
    for network, blocks in NETWORKS.items():
        for inputs, outputs, expansion, kernel, stride, side in BLOCKS[-blocks:]:
            inner, after = inputs * expansion, -(-side // stride)
            found = [("sums", inner, inner, side, kernel, stride, LIMIT), ("gates", inner, outputs, after, 1, 1, LIMIT)]
            found.append(("products", inner, outputs, after, 1, 1, -1.0))
            if expansion > 1:
                found.append(("products", inputs, inner, side, 1, 1, LIMIT))
            for key in found:
                own = counts.setdefault(key, dict.fromkeys(NETWORKS, 0))
                own[network] += 1
        own = counts.setdefault(("products", 320, 1280, 5, 1, 1, LIMIT), dict.fromkeys(NETWORKS, 0))
        own[network] += 1
    names = "inputs", "outputs", "side", "kernel", "stride", "limit"
    made = [(key[0], Layer(**dict(zip(names, key[1:], strict=True)), times=times)) for key, times in counts.items()]  # type: ignore[arg-type]
    sums, products, gates = ([each for kind, each in made if kind == name] for name in ("sums", "products", "gates"))
    return sums, products, gates


# Channels x strips of one program, and programs per device.
SUM_TILES = {
    "32x2 p128": SumTile(),
    "32x2 p72": SumTile(programs=72),
    "32x2 p256": SumTile(programs=256),
    "64x1 p128": SumTile(channels=64, lanes=1),
    "64x4 w4 p64": SumTile(channels=64, lanes=4, programs=64, warps=4),
    "32x1 p256": SumTile(lanes=1, programs=256),
}
# Compiled as other ways are.
REPEATED = {"before, no bias", "32x2 p72", "32x2 p256"}
# Rows x outputs of one program.
PRODUCT_TILES = {
    "128x64 w4": ProductTile(),
    "64x64 w4": ProductTile(rows=64),
    "128x128 w8": ProductTile(outputs=128, warps=8),
    "256x64 w8": ProductTile(rows=256, warps=8),
}


def product_tiles(precision: str) -> dict[str, ProductTile]:
    """In TF32 also without rounding of factors, which matrix units then cut off."""
    if precision == "bf16":
        return PRODUCT_TILES
    found = {name: replace(tile, inputs=32) for name, tile in PRODUCT_TILES.items()}
    return found | {f"{name} cut": replace(found[name], rounded=False) for name in ("128x64 w4", "128x128 w8")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A pass of a layer: how to compute it, exactly too, and the bytes it must move."""

    ways: Mapping[str, Callable[[], Sequence[Tensor]]]
    exact: Callable[[], Sequence[Tensor]]  # for the first device
    moved: int


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def size(*tensors: Tensor) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def sums_of(layer: Layer, precision: str, devices: int = DEVICES, batch: int = BATCH) -> Work:
    window, dtype = layer.window, TYPES[precision]
    signal = random(devices * batch, window.height, window.width, layer.inputs, dtype=dtype)
    error = random(devices * batch, window.out_height, window.out_width, layer.inputs, dtype=dtype)

    def before() -> tuple[Tensor, Tensor]:
        rows = error.view(devices, -1, layer.inputs)
        _, of_bias = before_activation(rows, rows, -1.0, summed=True)
        assert of_bias is not None
        return weights_before(error, signal, devices, window), of_bias

    def exact() -> tuple[Tensor, Tensor]:
        images, errors = (each[:batch].double().permute(0, 3, 1, 2) for each in (signal, error))
        far = (window.out_height - 1) * layer.stride + layer.kernel - window.height - window.top
        padded = functional.pad(images, (window.top, far, window.top, far))
        taps = []
        for row in range(layer.kernel):
            for column in range(layer.kernel):
                rows = slice(row, row + (window.out_height - 1) * layer.stride + 1, layer.stride)
                columns = slice(column, column + (window.out_width - 1) * layer.stride + 1, layer.stride)
                taps.append((padded[:, :, rows, columns] * errors).sum(dim=(0, 2, 3)))
        return torch.stack(taps), errors.sum(dim=(0, 2, 3))

    ways: dict[str, Callable[[], Sequence[Tensor]]] = {
        "before": before,
        "before, no bias": lambda: (weights_before(error, signal, devices, window),),
    }
    ways |= {name: partial(depthwise_weights, error, signal, devices, window, tile) for name, tile in SUM_TILES.items()}
    return Work(ways=ways, exact=exact, moved=size(signal, error))


def products_of(layer: Layer, precision: str, devices: int = DEVICES, batch: int = BATCH) -> Work:
    dtype = TYPES[precision]
    rows = random(devices, batch * layer.side**2, layer.inputs, dtype=dtype)
    weights = random(devices, layer.outputs, layer.inputs, dtype=dtype) / layer.inputs**0.5
    bias = random(devices, layer.outputs, dtype=torch.float32)

    def before() -> tuple[Tensor]:
        out = torch.bmm(rows, weights.transpose(1, 2))
        activate_(out, bias, layer.limit)
        return (out,)

    def exact() -> tuple[Tensor]:
        out = rows[0].double() @ weights[0].double().T + bias[0].double()
        return (out.clamp(0, layer.limit) if layer.limit >= 0 else out,)

    def ours(tile: ProductTile) -> tuple[Tensor]:
        return (activated_product(rows, weights, bias, layer.limit, tile),)

    ways = {"before": before} | {name: partial(ours, tile) for name, tile in product_tiles(precision).items()}
    out = rows.numel() // layer.inputs * layer.outputs * rows.element_size()
    return Work(ways=ways, exact=exact, moved=size(rows, weights) + out)


def gates_of(layer: Layer, precision: str, devices: int = DEVICES, batch: int = BATCH) -> Work:
    dtype = TYPES[precision]
    error = random(devices, batch * layer.side**2, layer.outputs, dtype=dtype)
    rows = (3 * random(devices, batch * layer.side**2, layer.inputs, dtype=dtype)).clamp_(0, LIMIT)
    weights = random(devices, layer.outputs, layer.inputs, dtype=dtype) / layer.outputs**0.5

    def before() -> tuple[Tensor]:
        return (before_activation(torch.bmm(error, weights), rows, LIMIT, summed=False)[0],)

    def exact() -> tuple[Tensor]:
        found = error[0].double() @ weights[0].double()
        return (found.where((rows[0] > 0) & (rows[0] < LIMIT), 0),)

    def ours(tile: ProductTile) -> tuple[Tensor]:
        return (product_inputs(error, weights, Gate(rows, LIMIT), tile),)

    ways = {"before": before} | {name: partial(ours, tile) for name, tile in product_tiles(precision).items()}
    return Work(ways=ways, exact=exact, moved=size(error, weights, rows) + size(rows))


MAKERS = {"sums": sums_of, "products": products_of, "gates": gates_of}


def off(work: Work, found: Sequence[Tensor]) -> float:
    pairs = zip(found, work.exact(), strict=False)
    return max(float((one[0].double() - two).norm() / two.norm()) for one, two in pairs)


def compiled(job: tuple[str, Layer, str, str]) -> str:
    """Run one way on little work, so that its kernels are in the cache; return the error, if any."""
    kind, layer, precision, way = job
    try:
        MAKERS[kind](replace(layer, side=min(layer.side, 6)), precision, 2, 2).ways[way]()
        torch.cuda.synchronize()
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem)[:200]}"
    return ""


def compile_all(jobs: Sequence[tuple[str, Layer, str, str]]) -> None:
    """In processes forked before this one uses the GPU."""
    began = time.perf_counter()
    workers = min(15, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        problems = list(pool.map(compiled, jobs))
    for job, problem in zip(jobs, problems, strict=True):
        if problem:
            print(f"  {job[0]} {job[1].name} {job[2:]}: {problem}")
    print(f"ran {len(jobs)} small cases in {time.perf_counter() - began:.1f} s with {workers} processes", flush=True)


def measured(work: Work, names: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """Microseconds and the error of each way; not-a-number if it fails."""
    for name in names:
        try:
            error = off(work, work.ways[name]())
            milliseconds = triton.testing.do_bench(work.ways[name], warmup=1, rep=6, return_mode="median")
            yield name, 1e3 * milliseconds, error
        except Exception as problem:
            print(f"  {name} failed: {type(problem).__name__}: {str(problem)[:200]}")
            yield name, float("nan"), float("nan")


def ways_of(kind: str, precision: str) -> list[str]:
    if kind == "sums":
        return ["before", "before, no bias", *SUM_TILES]
    return ["before", *product_tiles(precision)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", default=["bf16", "tf32"], choices=list(TYPES))
    parser.add_argument("--only", nargs="+", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    shapes = dict(zip(("sums", "products", "gates"), layers(), strict=True))
    cases = [(kind, precision) for kind in arguments.only for precision in arguments.precision]
    # One layer of each kind of compilation: cases that differ in sizes alone share it.
    jobs = [
        (kind, layer, precision, way)
        for kind, precision in cases
        for layer in different(kind, shapes[kind])
        for way in ways_of(kind, precision)
        if way not in REPEATED
    ]
    compile_all(jobs)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    for kind, precision in cases:
        rows += table(kind, precision, shapes[kind])
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def different(kind: str, every: Sequence[Layer]) -> list[Layer]:
    """Layers whose kernels are compiled apart."""

    def key(layer: Layer) -> tuple[object, ...]:
        if kind == "sums":
            return layer.kernel, layer.stride
        summed = layer.inputs if kind == "products" else layer.outputs
        steps = (min(triton.cdiv(summed, step), 3) for step in (32, 64))
        return min(triton.next_power_of_2(summed), 64), *steps, layer.limit

    return list({key(layer): layer for layer in every}.values())


def table(kind: str, precision: str, every: Sequence[Layer]) -> list[dict[str, object]]:
    names = ways_of(kind, precision)
    print(f"\n{kind}, {precision}: microseconds")
    print(f"{'':>20} {'floor':>7} " + " ".join(f"{name:>15}" for name in names))
    rows: list[dict[str, object]] = []
    worst = dict.fromkeys(names, 0.0)
    sums = {network: dict.fromkeys(("floor", *names, "best"), 0.0) for network in NETWORKS}
    for layer in every:
        work = MAKERS[kind](layer, precision)
        floor = 1e6 * work.moved / BYTES_PER_S
        found = {name: (micro, error) for name, micro, error in measured(work, names)}
        del work
        torch.cuda.empty_cache()
        print(f"{layer.name:>20} {floor:7.0f} " + " ".join(f"{found[name][0]:15.1f}" for name in names), flush=True)
        times = {"floor": floor} | {name: micro for name, (micro, _) in found.items()}
        times["best"] = min((micro for name, micro in times.items() if name != "floor" and micro == micro), default=0.0)
        for network, counted in layer.times.items():
            for name, micro in times.items():
                sums[network][name] += counted * micro
        worst |= {name: max(worst[name], error) for name, (_, error) in found.items()}
        errors = {name: error for name, (_, error) in found.items()}
        rows.append({"kind": kind, "precision": precision, "layer": layer.name, "us": times, "errors": errors})
    for network, total in sums.items():
        text = " ".join(f"{total[name]:15.0f}" for name in names)
        print(f"{network:>20} {total['floor']:7.0f} {text}   best of each {total['best']:.0f}")
    print(f"{'largest error':>20} {'':>7} " + " ".join(f"{worst[name]:15.1e}" for name in names), flush=True)
    return rows


if __name__ == "__main__":
    main()
