"""The field runtime on one machine: use of contacts, exchanges per second, start-up and links.

    python benchmarks/field.py capacity [--contacts 3] [--rates 1 5 20] [--lengths 2 5 10] [--fresh]
                                        [--airtime 0.15] [--json FILE]
    python benchmarks/field.py exchanges [--devices 100] [--each 5] [--parameters 84618] [--json FILE]
    python benchmarks/field.py downloads [--parameters 6500000] [--rates 10] [--lengths 7] [--json FILE]
    python benchmarks/field.py writes [--parameters 6500000] [--seconds 300] [--json FILE]
    python benchmarks/field.py start [--json FILE]
    python benchmarks/field.py link [--contacts 10] [--json FILE]

``capacity``: a device with more to send than fits meets the server over emulated air (TLS, a broker, server and proxy
in their own processes). The share is the recorded bits divided by the contact's length times its rate. The rest is the
connection, requests, framing and bytes lost at the end of the contact. The device resumes an earlier update; with
``--fresh`` it takes the old one back and cuts a new one in every contact.

``exchanges``: devices in one process exchange with one server as fast as they can: they upload a share of the entries
of the default preset's model and download the model. On two cores the devices are slower than the server, so the
capacity of the server follows from its CPU time.

``downloads``: a device with contacts shorter than a download gets its model, while another device exchanges every 10 s.
It uploads 1 % of the entries in every contact. The pause between contacts is as long as a contact.

``writes``: the bytes that a device writes to disk, from /proc, while it trains all the time and may exchange every
10 s. It begins without any bytes saved up, so that the figure holds for a whole day.

``start``: the commands of an installation, from their start to the first answer and the first exchange, in wall time
and CPU time; memory.

``link``: the time to detect the end of a contact, with a reset or silent, and to use the next one; and
the share of a core that a device out of reach spends on retries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import torch

from field_load import downloads, exchanges, writes
from field_parts import Device, Server, cpu_s, memory_mb, quiet, server_process
from proxy_process import ProxyProcess
from wayfare.errors import FieldError
from wayfare.field.fleet import create_fleet, load_bundle
from wayfare.field.rig.broker import Broker
from wayfare.field.rig.proxy import Link
from wayfare.field.runtime.connect import connect
from wayfare.field.runtime.endpoint import fetch_status
from wayfare.field.runtime.guide import chunk_bytes_at

BITS_PER_ENTRY = 33.0  # of a dense update in messages


def capacity(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    print(f"{'Mbit/s':>7} {'contact s':>9} {'share used, each contact':>30} {'median':>8}")
    rows = []
    for rate_mbps in arguments.rates or [1.0, 5.0, 20.0]:
        for length_s in arguments.lengths or [2.0, 5.0, 10.0]:
            shares = _shares(rate_mbps, length_s, arguments, folder / f"{rate_mbps:g}-{length_s:g}")
            median = statistics.median(shares)
            rows.append({"mbps": rate_mbps, "contact_s": length_s, "shares": shares, "median": median})
            each = " ".join(f"{100 * share:.1f}" for share in shares)
            print(f"{rate_mbps:7g} {length_s:9g} {each:>30} {100 * median:7.1f}%", flush=True)
    return {"fresh": arguments.fresh, "rows": rows}


def _shares(rate_mbps: float, length_s: float, arguments: argparse.Namespace, folder: Path) -> list[float]:
    """The share of its capacity that each of some contacts delivered."""
    bits, contacts = 1e6 * rate_mbps * length_s, arguments.contacts
    # A fresh update must exceed one contact, a resumed one all contacts.
    entries = int((1.3 if arguments.fresh else 1.1 * contacts) * bits / BITS_PER_ENTRY)
    fleet = create_fleet(folder / "fleet", devices=["device-0"])
    with (
        Broker(fleet, port=0) as broker,
        server_process(fleet, broker.url, folder / "mes", entries) as server,
        ProxyProcess(broker.port, 1) as links,
    ):
        bundle = load_bundle(fleet.device_folder("device-0"))
        device = Device(bundle, links.url(0), folder / "d.sqlite", entries, entries)
        device.learn()

        async def meet() -> list[float]:
            stop, shares = threading.Event(), []
            airtime = {} if arguments.airtime is None else {"airtime_s": arguments.airtime}
            chunk_bytes = chunk_bytes_at(1e6 * rate_mbps, **airtime)
            running = asyncio.ensure_future(device.exchange(10**9, chunk_bytes, resumes=not arguments.fresh, stop=stop))
            if not arguments.fresh:
                # The update is cut in a first, short contact, in which it cannot be delivered.
                await asyncio.to_thread(links.open, 0, 64e3, 64e3)
                while device.outbox.open_update() is None:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(links.close, 0)
                await asyncio.sleep(1.0)
            for _ in range(contacts):
                before = await asyncio.to_thread(_recorded_bytes, server)
                _, _, open_s = await asyncio.to_thread(links.carried, 0)
                await asyncio.to_thread(links.open, 0, 1e6 * rate_mbps, 1e6 * rate_mbps)
                await asyncio.sleep(length_s)
                await asyncio.to_thread(links.close, 0)
                await asyncio.sleep(1.0)
                # Use the proxy's clock: on a busy machine timers are late and contacts longer than requested.
                seconds = (await asyncio.to_thread(links.carried, 0))[2] - open_s
                delivered = await asyncio.to_thread(_recorded_bytes, server) - before
                shares.append(8 * delivered / (1e6 * rate_mbps * seconds))
            stop.set()
            await running
            return shares

        shares = asyncio.run(meet())
        device.outbox.close()
        return shares


def _recorded_bytes(server: Server) -> int:
    (device,) = server.status().devices
    # Repeated chunks used the air twice and count once. All chunks but the last have one size.
    share = device.chunks / max(device.chunks + device.repeated, 1)
    return round(device.received_bytes * share)


def start(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    fleet = create_fleet(folder / "fleet", devices=["device-0", "device-1"])
    began_s = time.monotonic()
    with Broker(fleet, port=0) as broker:
        figures: dict[str, Any] = {"broker_ready_s": time.monotonic() - began_s}
        address = "127.0.0.1:19464"
        command = [sys.executable, "-m", "wayfare", "field"]
        work = ["--set", "fleet.devices=2", "--url", broker.url]
        began_s = time.monotonic()
        server = subprocess.Popen([*command, "mes", str(fleet.server_folder), "--metrics-port", "19464", *work])
        try:
            _wait_for(lambda: _answers(address))
            figures["server_answers_s"] = time.monotonic() - began_s
            figures["server_answers_cpu_s"] = cpu_s(server.pid)
            began_s = time.monotonic()
            device = subprocess.Popen([*command, "device", str(fleet.device_folder("device-0")), *work])
            try:
                _wait_for(lambda: fetch_status(address).devices[0].exchanges > 0)
                figures["device_first_exchange_s"] = time.monotonic() - began_s
                figures["device_first_exchange_cpu_s"] = cpu_s(device.pid)
                time.sleep(15)
                figures["device_mb"] = memory_mb(device.pid)
                figures["server_mb"] = memory_mb(server.pid)
                figures["broker_mb"] = memory_mb(broker.process_id or 0)
            finally:
                device.terminate()
                device.wait()
        finally:
            server.terminate()
            server.wait()
    for name, value in figures.items():
        print(f"{name:26} {value:8.2f}")
    return figures


def link(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    fleet = create_fleet(folder / "fleet", devices=["device-0"])
    bundle = load_bundle(fleet.device_folder("device-0"))
    figures: dict[str, Any] = {"noticed_reset_s": [], "noticed_silence_s": [], "back_s": []}

    async def contacts(broker_port: int) -> None:
        clock, air = time.monotonic, await Link(broker_port).start()
        began_s, before_s = clock(), time.process_time()
        coming = asyncio.ensure_future(connect(bundle, url=air.url))
        await asyncio.sleep(5)
        figures["trying_share_of_a_core"] = (time.process_time() - before_s) / (clock() - began_s)
        air.open(1e6, 1e6)
        client = await coming
        for number in range(2 * arguments.contacts):
            await asyncio.sleep(0.3)
            silently, began_s = number % 2 == 1, clock()
            air.close(silently=silently)
            await client.disconnected.wait()
            figures["noticed_silence_s" if silently else "noticed_reset_s"].append(clock() - began_s)
            air.close()
            await asyncio.sleep(0.3)
            began_s = clock()
            air.open(1e6, 1e6)
            await client.wait_connected()
            figures["back_s"].append(clock() - began_s)
        await client.close()
        await air.stop()

    with Broker(fleet, port=0) as broker:
        asyncio.run(contacts(broker.port))
    for name, value in figures.items():
        each = value if isinstance(value, list) else [value]
        print(f"{name:24} median {statistics.median(each):.4f}, {min(each):.4f} to {max(each):.4f}")
    return figures


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{address}/healthz", timeout=1).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def _wait_for(holds: Any) -> None:
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        try:
            if holds():
                return
        except FieldError:
            pass
        time.sleep(0.05)
    raise SystemExit("no progress for two minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("capacity", "exchanges", "downloads", "writes", "start", "link"))
    parser.add_argument("--contacts", type=int, default=3, help="contacts of each kind")
    parser.add_argument("--rates", type=float, nargs="+", help="Mbit/s")
    parser.add_argument("--lengths", type=float, nargs="+", help="seconds")
    parser.add_argument("--fresh", action="store_true", help="cut a new update in every contact")
    parser.add_argument("--airtime", type=float, help="airtime of a chunk in seconds; the default is Wayfare's")
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--each", type=int, default=5, help="exchanges of each device")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.4], help="k/s")
    parser.add_argument("--parameters", type=int, help="entries of the model")
    parser.add_argument("--seconds", type=float, default=300.0, help="length of `writes`")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quiet()
    kinds = (capacity, exchanges, downloads, writes, start, link)
    measure = next(kind for kind in kinds if kind.__name__ == arguments.what)
    with tempfile.TemporaryDirectory(prefix="wayfare-field-") as folder:
        figures = measure(arguments, Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
