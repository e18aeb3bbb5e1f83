"""Parts of benchmarks/field.py: a server process, a scripted device, and measurements of processes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from wayfare.codec.wire import Layout
from wayfare.device import DeviceState, Terms
from wayfare.field.fleet import Bundle, Fleet, load_bundle
from wayfare.field.runtime.aggregation import Aggregation
from wayfare.field.runtime.connect import connect
from wayfare.field.runtime.endpoint import fetch_status, fleet_pages, serving
from wayfare.field.runtime.exchange import Exchanger, Patience
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.guide import Occasion
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.loop import run_loop
from wayfare.field.runtime.membership import Membership
from wayfare.field.runtime.mes import MobileEdgeServer, ServerOptions
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.status import FleetStatus
from wayfare.field.runtime.stores import Progress
from wayfare.field.runtime.writes import WriteLimits
from wayfare.methods import Encounter, Method, ServerTerms, Upload, UploadRule, make_method
from wayfare.methods.guard import Guard
from wayfare.methods.servers import Add
from wayfare.radio import Link as RadioLink
from wayfare.scenario import Scenario
from wayfare.server import Senders

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def quiet() -> None:
    """Silence the standard library, which logs TLS errors at every lost connection."""
    logging.getLogger("asyncio").setLevel(logging.ERROR)


def layout_with(parameters: int) -> Layout:
    return Layout.of("benchmark", [(parameters,)])


def first_model(parameters: int) -> Tensor:
    """Values with the magnitudes of a network's layers, because downloads are compressed."""
    scales = torch.logspace(-2, -1, 10).repeat_interleave(-(-parameters // 10))[:parameters]
    return torch.randn(parameters, generator=torch.Generator().manual_seed(0)) * scales


@dataclass(frozen=True)
class Fixed(UploadRule):
    """Send a fixed number of entries in every contact."""

    entries: int = 0
    name = "fixed"

    def decide(self, encounter: Encounter, link: RadioLink) -> Upload:
        bits = min(self.entries * link.bits_per_entry, link.dense_bits)
        energy_joules = link.energy_joules(bits, 0.1, encounter.gain_per_watt)
        return Upload(entries=self.entries, bits=bits, power_watts=0.1, energy_joules=energy_joules)


class Told:
    """Guides a device: a given number of exchanges, resumed if interrupted and if requested."""

    def __init__(
        self,
        chunk_bytes: int,
        *,
        exchanges: int,
        resumes: bool,
        learn: Callable[[], None],
        every_s: float = 0.0,
        resumes_s: float = 0.0,
    ) -> None:
        self.left, self._chunk_bytes, self._resumes, self._learn = exchanges, chunk_bytes, resumes, learn
        self._every_s, self._again_s, self._resumes_s = every_s, 0.0, resumes_s

    def trains_until(self, progress: Progress, state: DeviceState) -> int:
        return state.received_round + 1000

    def samples(self) -> int | None:
        return None

    def loss(self) -> float | None:
        return None

    def wait(self, seconds: float) -> None:
        self._again_s = time.monotonic() + seconds

    def occasion(self, progress: Progress, state: DeviceState) -> Occasion | None:
        if self.left <= 0 or time.monotonic() < self._again_s:
            return None
        return Occasion(round=progress.cut_round + 1, contact_s=1e6, gain_per_watt=1e3, chunk_bytes=self._chunk_bytes)

    def resumes(self, progress: Progress) -> bool:
        return self._resumes or time.time() - progress.cut_s < self._resumes_s

    def is_over(self, progress: Progress) -> bool:
        return self.left <= 0

    def in_reach(self) -> None: ...

    def out_of_reach(self) -> None: ...

    def measured(self, bits: float, seconds: float) -> None: ...

    def exchanged(self) -> None:
        self.left -= 1
        self._again_s = time.monotonic() + self._every_s
        self._learn()


@dataclass(frozen=True, slots=True)
class Server:
    """A mobile edge server in its own process."""

    process_id: int
    address: str

    def status(self) -> FleetStatus:
        return fetch_status(self.address)


@contextmanager
def server_process(fleet: Fleet, url: str, state: Path, parameters: int) -> Iterator[Server]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(fleet, url, state, parameters, theirs))
    process.start()
    try:
        yield Server(process.pid or 0, f"127.0.0.1:{ours.recv()}")
        ours.send("stop")
        process.join(30)
    finally:
        process.kill()
        process.join()


def _serve(fleet: Fleet, url: str, state: Path, parameters: int, told: Connection) -> None:
    torch.set_num_threads(1)
    quiet()
    layout, devices = layout_with(parameters), len(fleet.devices)
    adding = Aggregation(
        rule=Add(),
        terms=ServerTerms(devices=devices),
        senders=Senders(samples=None, learning_rate=1.0),
        guard=Guard(),
        membership=Membership(),
    )
    ledger = Ledger(
        state,
        first_model(parameters),
        layout=layout,
        aggregation=adding,
        identity={"fleet": "benchmark"},
        names=fleet.devices,
    )
    intake, stop = Intake(ledger, OnArrival(), layout), threading.Event()

    async def serve() -> None:
        client = await connect(load_bundle(fleet.server_folder), url=url)
        server = MobileEdgeServer(client, intake, ServerOptions(state=state))

        async def status() -> FleetStatus:
            return await server.status(fleet.name)

        async with serving(fleet_pages(status), port=0) as port:
            running = asyncio.ensure_future(server.run(stop))
            told.send(port)
            await asyncio.to_thread(told.recv)
            stop.set()
            await running
        await client.close()

    run_loop(serve())
    ledger.close()


class Device:
    """A device without training; its updates are noise."""

    def __init__(
        self,
        bundle: Bundle,
        url: str,
        store: Path,
        parameters: int,
        entries: int,
        writes: WriteLimits | None = None,
    ) -> None:
        self._bundle, self._url = bundle, url
        self._method: Method = make_method(Fixed(entries), Scenario())
        self._layout = layout_with(parameters)
        self._chance = torch.Generator().manual_seed(bundle.number or 0)
        self.outbox = Outbox(
            store,
            first_model(parameters),
            self._method,
            layout=self._layout,
            budget_joules=1.0,
            identity={"name": bundle.name},
            writes=writes,
        )

    def learn(self) -> None:
        start = self.outbox.local
        noise = 0.01 * torch.randn(len(start), generator=self._chance)
        self.outbox.trained(start, start + noise, self.outbox.progress.trained_round + 1)

    async def exchange(
        self,
        exchanges: int,
        chunk_bytes: int,
        *,
        resumes: bool,
        stop: threading.Event,
        every_s: float = 0.0,
        resumes_s: float = 0.0,
    ) -> None:
        client = await connect(self._bundle, url=self._url)
        parameters = self._layout.parameters
        link = RadioLink(
            bandwidth_hz=1e6,
            max_power_watts=0.2,
            parameters=parameters,
            bits_per_entry=42.0,
            dense_bits=32.0 * parameters,
        )
        radio = Radio(terms=Terms(method=self._method, link=link, rounds=1_000_000))
        pace = {"every_s": every_s, "resumes_s": resumes_s}
        guide = Told(chunk_bytes, exchanges=exchanges, resumes=resumes, learn=self.learn, **pace)
        exchanger = Exchanger(client, self._bundle.name, self.outbox, guide, radio, self._layout, Patience())
        try:
            await exchanger.run(stop)
        finally:
            await client.close()


def written_bytes(process_id: int) -> int:
    """Bytes that a process has sent to disks so far."""
    for line in Path(f"/proc/{process_id}/io").read_text(encoding="ascii").splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise SystemExit(f"process {process_id} has no write_bytes")


def cpu_s(process_id: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_mb(process_id: int, figure: str = "VmRSS") -> float:
    """Resident memory of a process; VmHWM is its peak."""
    for line in Path(f"/proc/{process_id}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(figure + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"process {process_id} has no {figure}")
