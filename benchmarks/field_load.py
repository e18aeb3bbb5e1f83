"""Parts of benchmarks/field.py that load a server or a device: exchanges, downloads and writes."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import torch

from field_parts import Device, Server, cpu_s, memory_mb, quiet, server_process, written_bytes
from proxy_process import ProxyProcess
from wayfare.field.fleet import Fleet, create_fleet, load_bundle
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.guide import chunk_bytes_at
from wayfare.field.runtime.writes import WriteLimits

FASHION_SMALL = 84_618
LARGE = 6_500_000


def exchanges(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    parameters = arguments.parameters or FASHION_SMALL
    print(f"{arguments.devices} devices, {arguments.each} exchanges each, {parameters:,} parameters")
    print("  k/s  exchanges/s  server CPU ms  a core stands  server MB  broker MB")
    rows = []
    for share in arguments.shares:
        row = _exchanges(share, arguments, folder / f"{share:g}")
        rows.append(row)
        print(
            f"{share:5g} {row['per_s']:12.1f} {1000 * row['server_cpu_s']:14.1f} {1 / row['server_cpu_s']:12.0f}/s "
            f"{row['server_mb']:10.0f} {row['broker_mb']:10.0f}",
            flush=True,
        )
    return {"devices": arguments.devices, "each": arguments.each, "rows": rows}


def _exchanges(share: float, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    fleet = create_fleet(folder / "fleet", devices=[f"device-{number}" for number in range(arguments.devices)])
    parameters = arguments.parameters or FASHION_SMALL
    entries = round(share * parameters)
    with Broker(fleet, port=0) as broker, server_process(fleet, broker.url, folder / "mes", parameters) as server:
        devices = [_device(fleet, name, broker.url, folder, parameters, entries) for name in fleet.devices]

        async def all_of_them(each: int) -> None:
            stop = threading.Event()
            work = (device.exchange(each, 256 << 10, resumes=True, stop=stop) for device in devices)
            await asyncio.gather(*work)

        asyncio.run(all_of_them(1))
        before_s, began_s, done = cpu_s(server.process_id), time.monotonic(), _total(server)
        asyncio.run(all_of_them(arguments.each))
        took_s, count = time.monotonic() - began_s, _total(server) - done
        for device in devices:
            device.outbox.close()
        assert broker.process_id is not None
        return {
            "share": share,
            "exchanges": count,
            "per_s": count / took_s,
            "server_cpu_s": (cpu_s(server.process_id) - before_s) / count,
            "server_mb": memory_mb(server.process_id, "VmHWM"),
            "broker_mb": memory_mb(broker.process_id, "VmHWM"),
        }


def downloads(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    parameters = arguments.parameters or LARGE
    print("Mbit/s contact s  contacts  seconds  down MB  versions meanwhile")
    rows = []
    for rate_mbps in arguments.rates or [10.0]:
        for length_s in arguments.lengths or [7.0]:
            row = _downloads(rate_mbps, length_s, parameters, folder / f"{rate_mbps:g}-{length_s:g}")
            rows.append(row)
            print(
                f"{rate_mbps:6g} {length_s:9g} {row['contacts']:9d} {row['seconds']:8.1f} {row['down_mb']:8.1f} "
                f"{row['versions']:10d}   {[round(mb, 1) for mb in row['down_mb_after_each_contact']]}",
                flush=True,
            )
    return {"parameters": parameters, "rows": rows}


def _downloads(rate_mbps: float, length_s: float, parameters: int, folder: Path) -> dict[str, Any]:
    fleet = create_fleet(folder / "fleet", devices=["device-0", "device-1"])
    with (
        Broker(fleet, port=0) as broker,
        server_process(fleet, broker.url, folder / "mes", parameters) as server,
        ProxyProcess(broker.port, 1) as links,
    ):
        device = _device(fleet, "device-0", links.url(0), folder, parameters, parameters // 100)
        # Without a version of the server's, it needs the whole model.
        device.outbox.forget_version()
        other = multiprocessing.get_context("spawn").Process(
            target=_exchange_forever, args=(fleet, "device-1", broker.url, folder, parameters), daemon=True
        )
        other.start()

        async def meet() -> dict[str, Any]:
            stop, rate_bps, contacts = threading.Event(), 1e6 * rate_mbps, 0
            while not server.status().version:
                await asyncio.sleep(0.1)
            work = device.exchange(1, chunk_bytes_at(rate_bps), resumes=False, stop=stop, resumes_s=10.0)
            running, began_s = asyncio.ensure_future(work), time.monotonic()
            first, carried_mb = server.status().version, []
            while not device.outbox.progress.version and contacts < 20:
                contacts += 1
                await asyncio.to_thread(links.open, 0, rate_bps, rate_bps)
                until_s = time.monotonic() + length_s
                while time.monotonic() < until_s and not device.outbox.progress.version:
                    await asyncio.sleep(0.05)
                await asyncio.to_thread(links.close, 0)
                carried_mb.append((await asyncio.to_thread(links.carried, 0))[1] / 1e6)
                await asyncio.sleep(0 if device.outbox.progress.version else length_s)
            figures = {
                "mbps": rate_mbps,
                "contact_s": length_s,
                "contacts": contacts,
                "seconds": time.monotonic() - began_s,
                "down_mb": carried_mb[-1],
                "down_mb_after_each_contact": carried_mb,
                "versions": server.status().version - first,
                "has_model": bool(device.outbox.progress.version),
            }
            stop.set()
            await running
            return figures

        try:
            return asyncio.run(meet())
        finally:
            other.kill()
            other.join()
            device.outbox.close()


def _exchange_forever(fleet: Fleet, name: str, url: str, folder: Path, parameters: int) -> None:
    """Another device: it changes an eighth of the entries every 10 s."""
    torch.set_num_threads(1)
    quiet()
    device = _device(fleet, name, url, folder, parameters, parameters // 8)
    asyncio.run(device.exchange(10**9, 512 << 10, resumes=True, stop=threading.Event(), every_s=10.0))


def writes(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    parameters, process = arguments.parameters or LARGE, os.getpid()
    fleet = create_fleet(folder / "fleet", devices=["device-0"])
    with Broker(fleet, port=0) as broker, server_process(fleet, broker.url, folder / "mes", parameters):
        bundle, limits = load_bundle(fleet.device_folder("device-0")), WriteLimits()
        device = Device(bundle, broker.url, folder / "d.sqlite", parameters, parameters // 100, limits)
        stop = threading.Event()

        def train() -> None:
            while not stop.wait(0.5):
                device.learn()

        training = threading.Thread(target=train)
        training.start()
        device.outbox._budget.resume(0.0, time.time())
        before, counted, began_s = written_bytes(process), device.outbox.written_bytes, time.monotonic()
        asyncio.run(
            _for(arguments.seconds, device.exchange(10**9, 256 << 10, resumes=True, stop=stop, every_s=10.0), stop)
        )
        seconds = time.monotonic() - began_s
        training.join()
        figures = {
            "seconds": seconds,
            "exchanges": device.outbox.progress.last_update,
            "written_gb_per_day": (written_bytes(process) - before) / seconds * 86_400 / 1e9,
            "counted_gb_per_day": (device.outbox.written_bytes - counted) / seconds * 86_400 / 1e9,
        }
        device.outbox.close()
    for name, value in figures.items():
        print(f"{name:20} {value:8.2f}")
    return figures


async def _for(seconds: float, work: Coroutine[Any, Any, None], stop: threading.Event) -> None:
    running = asyncio.ensure_future(work)
    await asyncio.sleep(seconds)
    stop.set()
    await running


def _device(fleet: Fleet, name: str, url: str, folder: Path, parameters: int, entries: int) -> Device:
    device = Device(load_bundle(fleet.device_folder(name)), url, folder / f"{name}.sqlite", parameters, entries)
    device.learn()
    return device


def _total(server: Server) -> int:
    return sum(device.exchanges for device in server.status().devices)
