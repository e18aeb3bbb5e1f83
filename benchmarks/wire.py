"""Encode and decode an update of ResNet-9: bits per kept entry, quantisation loss, and CPU time.

    python benchmarks/wire.py [--share 0.25] [--json FILE]

The entries are Student's t with five degrees of freedom, heavy-tailed like updates, and their indices are
random, the worst case for coding. The paper counts 54.65 bits per kept entry. Times are medians of CPU
seconds with one thread. Top-k of the same vector, which every upload needs anyway, is measured too.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wayfare.codec import bits_per_entry
from wayfare.codec.steps import VALUE_BITS
from wayfare.codec.wire import Layout, decode, encode
from wayfare.sparsify import top_k

ENTRIES, REPEATS, GOAL_S = 6_568_650, 5, 0.5


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        result = work()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.25, help="k/s")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vector = torch.from_numpy(np.random.default_rng(0).standard_t(5, ENTRIES).astype(np.float32))
    layout = Layout.of("resnet9", [(ENTRIES,)])
    k = round(arguments.share * ENTRIES)
    top_k_s, kept = timed(lambda: top_k(vector, k))
    print(f"{platform.processor() or platform.machine()}, {ENTRIES:,} entries, k/s = {arguments.share}")
    print(f"top-k {top_k_s:.3f} s; the paper counts {bits_per_entry(ENTRIES, 32):.2f} bits per entry")
    print(f"{'value bits':>10} {'bits an entry':>14} {'energy lost':>12} {'encode s':>9} {'decode s':>9} {'goal s':>7}")
    rows = []
    for bits in VALUE_BITS:
        encode_s, message = timed(partial(encode, kept, layout, bits))
        decode_s, _ = timed(partial(decode, message.data, layout))
        lost = float((message.delivered.values - kept.values).square().sum() / kept.values.square().sum())
        row = {"value_bits": bits, "bits_per_entry": message.bits / k, "energy_lost": lost}
        rows.append({**row, "encode_s": encode_s, "decode_s": decode_s, "encode_per_top_k": encode_s / top_k_s})
        print(f"{bits:10} {message.bits / k:14.2f} {lost:12.5f} {encode_s:9.3f} {decode_s:9.3f} {GOAL_S:7}", flush=True)
    if arguments.json:
        table = {"entries": ENTRIES, "share": arguments.share, "top_k_s": top_k_s, "rows": rows}
        arguments.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
