"""Convolutions of ResNet-9 for 20 devices x batch 32 on one GPU: cuDNN against one kernel over all devices.

    python benchmarks/batched_convolutions.py [--precision tf32 bf16] [--search] [--out FILE]

For every convolution and pass (forward, gradient of the input, gradient of the weights) it times what engines use
today, one model at batch 640, and our kernel with the tile of `wayfare.engine.batched.tiles`, or with ``--search``
over a list of tiles; it checks values against double precision and that they repeat bit for bit. The floor of a pass is
the larger of its arithmetic at the measured rate of a large product and its memory traffic at the measured rate of a
copy. A search takes about a minute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
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

from convolution_work import (
    BATCH,
    DEVICES,
    LAYERS,
    LIMITS,
    PASSES,
    TYPES,
    WHERE,
    Layer,
    Rates,
    Work,
    as_stored,
    error,
    exact,
    grouped,
    made,
    milliseconds,
    neighbourhoods,
    one_model,
    rates,
    today,
)
from wayfare.engine import Compute, Precision
from wayfare.engine.batched.convolutions import (
    Tile,
    convolve,
    padded_signal,
    tiles_per_device,
    turned_signal,
    turned_weights,
)
from wayfare.engine.batched.tiles import FORMATS, forward_tile, weight_tile
from wayfare.engine.batched.weight_gradients import WeightTile, weight_gradient

AnyTile: TypeAlias = Tile | WeightTile


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
        small = partial(torch.zeros, device=WHERE, dtype=TYPES[precision])
        if isinstance(tile, Tile):
            signal = small(1, 1, tile.positions // BATCH + 1, BATCH, tile.inputs)
            out = small(1, 1, tile.positions // BATCH + 1, BATCH, tile.outputs)
            weights = small(1, tile.outputs, taps, tile.inputs)
            moments = torch.zeros(1, 1, 2, tile.outputs, device=WHERE) if kernel == "moments" else None
            convolve(signal, weights, out, tile, moments)
        else:
            signal, gradient = (small(1, 2, 5, BATCH, each) for each in (tile.inputs, tile.outputs))
            if turned:
                signal, gradient = turned_signal(signal), turned_signal(gradient)
            weight_gradient(gradient, signal, taps, tile, turned=turned)
        torch.cuda.synchronize()
    except Exception as problem:  # too much shared memory, say: the tile is left out and named
        return f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    return ""


def compile_all(every: Sequence[tuple[str, AnyTile, Precision, int, bool]]) -> dict[AnyTile, str]:
    """Compile in processes forked before this one uses the GPU. Returns the errors."""
    began = time.perf_counter()
    workers = min(12, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        errors = list(pool.map(compile_one, every))
    print(f"compiled {len(every)} kernels in {time.perf_counter() - began:.1f} s with {workers} processes", flush=True)
    bad = {}
    for kind, problem in zip(every, errors, strict=True):
        if problem:
            print(f"  not usable: {kind}: {problem}")
            bad[kind[1]] = problem
    return bad


def nearest(numbers: Tensor) -> Tensor:
    """Numbers rounded to the eleven significant bits of TF32; matrix units cut off the others."""
    if numbers.dtype != torch.float32:
        return numbers
    return ((numbers.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A pass by our kernel."""

    tile: AnyTile
    turned: bool
    run: Callable[[], Tensor]  # results, padded if signals


def ours(work: Work, pass_: str, precision: Precision, bad: Iterable[AnyTile] | None) -> list[Ours]:
    """The kernel with the tile of the engine, or with all tiles that fit except ``bad`` ones."""
    first = work.layer.inputs == 3
    signal = padded_signal(neighbourhoods(work.signal) if first else work.signal)
    gradient, weights = padded_signal(work.gradient), work.weights
    if first:
        weights = functional.pad(weights.flatten(2), (0, 5)).unsqueeze(2)
    taps, inputs = weights.shape[2:]
    if pass_ == "weight":
        ways: list[Ours] = []
        for turned, tile in weight_candidates(work, precision, taps, inputs, bad):
            one, other = (turned_signal(each) if turned else each for each in (gradient, signal))
            run = partial(weight_gradient, one, other, taps, tile, turned=turned)
            ways.append(Ours(tile=tile, turned=turned, run=run))
        return ways
    if pass_ == "input":
        signal, weights = gradient, turned_weights(weights)
    out = padded_signal(work.results(pass_)).zero_()

    def convolved(tile: Tile) -> Tensor:
        convolve(signal, weights, out, tile)
        return out

    row, (outputs, _, from_inputs) = work.layer.width * BATCH, weights.shape[1:]
    if bad is None:
        found = [forward_tile(FORMATS[precision], row, from_inputs, outputs)]
    else:
        every = [tile for tile in tiles(precision, from_inputs) if tile not in bad]
        found = [tile for tile in every if row % tile.positions == 0 and outputs % tile.outputs == 0]
    return [Ours(tile=tile, turned=False, run=partial(convolved, tile)) for tile in found]


def weight_candidates(
    work: Work, precision: Precision, taps: int, inputs: int, bad: Iterable[AnyTile] | None
) -> list[tuple[bool, WeightTile]]:
    """(turned, tile), each once."""
    outputs, kind = work.layer.outputs, FORMATS[precision]
    if bad is None:
        return [(kind.turned, weight_tile(kind, BATCH, work.layer.width, inputs, outputs, taps))]
    found: list[tuple[bool, WeightTile]] = []
    for turned in [True, False] if precision == "tf32" else [False]:
        for shape, aim in itertools.product(weight_tiles(precision, turned=turned), (1, 264, 528, 1056)):
            blocks = DEVICES * taps * outputs * inputs // (shape.outputs * shape.inputs)
            programs = blocks // 3 if shape.row_of_taps else blocks
            tile = replace(shape, parts=max(1, round(aim / max(programs, 1))))
            fits = not (outputs % tile.outputs or inputs % tile.inputs) and shape not in bad
            fits = fits and (tile.inputs == 32) == (taps == 1) and not (taps == 1 and tile.row_of_taps)
            if fits and (turned, tile) not in found:
                found.append((turned, tile))
    return found


def values(result: Tensor, work: Work, pass_: str) -> list[Tensor]:
    """The first and the last device, in the layout of `Work`."""
    both = result[[0, DEVICES - 1]]
    if pass_ != "weight":
        return list(both[:, :, :-1].unbind())
    if work.layer.inputs == 3:
        both = both.flatten(2)[:, :, :27].unflatten(2, (9, 3))
    return list(both.unbind())


def measured(
    layer: Layer, pass_: str, precision: Precision, bad: Iterable[AnyTile] | None, rate: Rates
) -> dict[str, object]:
    work = made(layer, precision)
    truth = exact(work, pass_)
    with Compute.named("cuda", precision).numerics(), torch.autocast("cuda", enabled=False):
        today_ms, found = today(work, pass_, precision)
        cudnn_error = error((as_stored(each, pass_) for each in found), truth)
        grouped_ms, one_model_ms = grouped(work, pass_), one_model(work, pass_)
    rows, best = [], None
    for way in ours(work, pass_, precision, bad):
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
    near = replace(work, signal=nearest(work.signal), gradient=nearest(work.gradient), weights=nearest(work.weights))
    again = [each for each in ours(near, pass_, precision, bad) if (each.tile, each.turned) == (way.tile, way.turned)]
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
    parser.add_argument("--search", action="store_true", help="try many tiles, not only those that the engine uses")
    parser.add_argument("--out", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    began = time.perf_counter()
    bad = None
    if arguments.search:
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
