"""The cost of a decision in MADS and MADS-RD, compared with top-k of the same update.

    python benchmarks/controller.py [--device cuda] [--contact-s 6] [--repeats 20] [--json FILE]

The update is that of a ResNet-9, with heavy tails and layers of different scale. A decision is everything
between the norm of the update, which every scheme needs, and the choice of power, entries and width: for
MADS-RD the spectrum, the profile of widths, the hull and the price. With `auto` the budget is small, which forces a
price search. Sending is top-k, the length of the message, and the new memory. In 6 s the whole update fits; in shorter
contacts `mads-rd` tries two to four lengths. A contact is everything: update, norm, decision and sending. The results
are medians: CPU time with one thread on a CPU, wall time on a GPU, where kernels launched in a contact are counted too.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from wayfare import device as devices
from wayfare.codec.widths import profile
from wayfare.control.auto_weight import after_contact
from wayfare.control.rate_distortion import Curve, Profile
from wayfare.device import DeviceState, Meeting, Offer, Terms
from wayfare.engine import Compute
from wayfare.methods import Method, Upload, make_method
from wayfare.radio import Link
from wayfare.scenario.model import Control, Scenario
from wayfare.sparsify import top_k
from wayfare.sparsify.spectrum import spectrum, squared_norm

ENTRIES = 6_568_650
BUDGET_JOULES = 2.0  # less than the expected contacts could use
GOAL_MS = {"cpu": 20.0, "cuda": 2.0}
LINK = Link(bandwidth_hz=1e6, max_power_watts=0.2, parameters=ENTRIES, bits_per_entry=54.65, dense_bits=ENTRIES * 32.0)


def timed(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Milliseconds, after one warm-up."""
    found = []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        clock = time.perf_counter if device.type == "cuda" else time.process_time
        began = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append(1000 * (clock() - began))
    return statistics.median(found[1:])


def launches(work: Callable[[], object], device: torch.device) -> int | None:
    """Kernels that a GPU is asked to run; None on a CPU."""
    if device.type != "cuda":
        return None
    with torch.profiler.profile() as traced:
        work()
        torch.cuda.synchronize()
    found: list[str] = [event.key for event in traced.events() or ()]
    return sum(name.startswith(("cudaLaunchKernel", "cuLaunchKernel")) for name in found)


def kernel_us(work: Callable[[], object], times: int = 20) -> float:
    """Microseconds that the kernels of some work run on a GPU."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as traced:
        for _ in range(times):
            work()
        torch.cuda.synchronize()
    return float(sum(event.device_time_total for event in traced.key_averages())) / times


def terms_of(method: Method) -> Terms:
    return Terms(method=method, link=LINK, rounds=4000, norm_scale=100.0)


def before(update: torch.Tensor) -> DeviceState:
    """A device whose change since the last download is the update."""
    zero = torch.zeros((), device=update.device).expand(len(update))
    return DeviceState(received=update, received_round=85, memory=zero, budget_joules=BUDGET_JOULES, backlog_joules=0.3)


def make_offer(update: torch.Tensor, method: Method, meeting: Meeting) -> Offer:
    return devices.make_offer(before(update), update, meeting, terms_of(method), staleness_rounds=15)


def decide(offer: Offer, method: Method) -> Upload:
    """As in a run, without cached values."""
    fresh = replace(offer.encounter, profile=cache(lambda: profile(spectrum(offer.update))))
    experience = after_contact(offer.state.experience, method.upload.demand(fresh, LINK))
    return method.upload.decide(replace(fresh, experience=experience), LINK)


def curve(offered: Profile) -> Curve:
    """Without cached values."""
    return replace(offered).curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=sorted(GOAL_MS))
    parser.add_argument("--contact-s", type=float, default=6.0)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    compute = Compute.named(arguments.device)
    # Deterministic, as in a run.
    with compute.numerics():
        meeting = Meeting(round=100, contact_s=arguments.contact_s, gain_per_watt=1e5)
        measure(compute.device, meeting, arguments.repeats, arguments.json)


def measure(device: torch.device, meeting: Meeting, repeats: int, file: Path | None) -> None:
    """Print the times of deciding and sending, and write them to a file if one is given."""
    values = np.random.default_rng(0).standard_t(5, ENTRIES).astype(np.float32)
    values *= np.repeat(np.array([1e-2, 3e-3, 1e-3, 2e-3, 8e-4, 5e-4, 2e-3, 4e-3, 1e-2], np.float32), -(-ENTRIES // 9))[
        :ENTRIES
    ]
    update = torch.from_numpy(values).to(device)
    reference_ms = timed(lambda: top_k(update, ENTRIES // 4), repeats, device)
    processor = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"{processor}, {ENTRIES:,} entries; top-k of a quarter {reference_ms:.2f} ms; goal {GOAL_MS[device.type]} ms")
    if device.type == "cuda":
        top_us, norm_us = kernel_us(lambda: top_k(update, ENTRIES // 4)), kernel_us(lambda: squared_norm(update))
        print(f"kernels alone: top-k of a quarter {top_us:.0f} us, norm {norm_us:.0f} us")
    seen = spectrum(update)
    parts_ms = {
        "spectrum": timed(lambda: spectrum(update), repeats, device),
        "profile": timed(lambda: profile(seen), repeats, device),
        "curve": timed(partial(curve, profile(seen)), repeats, device),
    }
    print("of mads-rd " + ", ".join(f"{name} {part_ms:.2f} ms" for name, part_ms in parts_ms.items()))
    weights: tuple[Literal["auto"] | float, ...] = (3e-4, "auto")
    rows = []
    for weight, name in product(weights, ("mads", "mads-rd")):
        method = make_method(name, Scenario(control=Control(weight=weight)))
        offer = make_offer(update, method, meeting)
        upload = decide(offer, method)
        decide_ms = timed(partial(decide, offer, method), repeats, device)
        send_ms = timed(partial(devices.transmit, offer, upload, terms_of(method)), repeats, device)
        state, local_model = before(update), torch.zeros_like(update)
        contact = partial(devices.contact, state, local_model, meeting, terms_of(method))
        contact_ms, kernels = timed(contact, repeats, device), launches(contact, device)
        kept, ratio = upload.entries / ENTRIES, decide_ms / reference_ms
        row = {"scheme": name, "weight": weight, "decide_ms": decide_ms, "send_ms": send_ms, "contact_ms": contact_ms}
        rows.append({**row, "share_kept": kept, "value_bits": upload.value_bits, "launches": kernels})
        print(f"{name:>8} V = {weight!s:<6} decide {decide_ms:7.2f} ms ({ratio:4.2f} of top-k)", end="")
        print(
            f", send {send_ms:7.1f} ms, contact {contact_ms:7.1f} ms; k/s {kept:.3f}, value bits {upload.value_bits}",
            end=f", {kernels} launches\n" if kernels else "\n",
            flush=True,
        )
    if file:
        table = {
            "processor": processor,
            "entries": ENTRIES,
            "contact_s": meeting.contact_s,
            "top_k_ms": reference_ms,
            "parts_ms": parts_ms,
            "rows": rows,
        }
        file.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
