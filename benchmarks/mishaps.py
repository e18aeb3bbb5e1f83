"""What three mishaps do to the accuracy of a fleet of real processes with own data: poison, absence, spare names.

python benchmarks/mishaps.py            # about five minutes
python benchmarks/mishaps.py --uploads 10 --away 20

Three devices learn from their folders (`wayfare field example`, MADS) until each has delivered some uploads. Then

- another device of the fleet delivers one update of 9,999s;
- a device trains without a broker for 75 s and returns;
- the same fleet starts anew with 27 names that never connect.

Accuracy is that of the model before and after the event, or of the mean of the last 30 models, on held-out data.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from field_parts import Fixed, Told, quiet
from wayfare.device import Terms
from wayfare.field.fleet import Fleet, create_fleet, load_bundle
from wayfare.field.rig.broker import Broker
from wayfare.field.rig.example import write_example
from wayfare.field.rig.processes import Member
from wayfare.field.runtime.connect import connect
from wayfare.field.runtime.device import DeviceOptions, open_store, run_device
from wayfare.field.runtime.exchange import Exchanger, Patience
from wayfare.field.runtime.ledger import FILE
from wayfare.field.runtime.mes import ServerOptions, open_intake, run_server
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.work import Work
from wayfare.learning.evaluate import Evaluator
from wayfare.learning.folders import FolderSamples
from wayfare.learning.tasks import local_task_of
from wayfare.learning.tasks.local import FolderTask
from wayfare.radio import Link
from wayfare.scenario import load

BUSES = ("bus-1", "bus-2", "bus-3")
HOSTILE, NOBODY = "bus-4", "tls://127.0.0.1:9"
POISON = 9_999.0
# Uploads of different devices move a model by points, so states of a fleet are compared by means of models.
LAST = 30


class Site:
    """A server and its devices on this machine."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        write_example(folder, len(BUSES))
        # Modules of one process need different names.
        task = (folder / "task.py").rename(folder / f"clothes_{folder.name}.py")
        self.fleet: Fleet = create_fleet(folder / "fleet", devices=names)
        self.work = Work(scenario=load("fashion-small", [f"learning.task={task}:task"]), scheme_name="mads")
        self._url = ""

    @contextmanager
    def running(self, *devices: str) -> Iterator[list[Member]]:
        """The server and some devices, until the end of the block."""
        with ExitStack() as ending, Broker(self.fleet, store=self.folder / "broker", port=0) as broker:
            self._url, members = broker.url, list[Member]()
            ending.callback(kill, members)
            options = ServerOptions(state=self.folder / "mes", url=self._url)
            serve = partial(run_server, load_bundle(self.fleet.server_folder), self.work, options)
            members.append(Member("mes", serve, self.folder / "mes.log"))
            members[0].start()
            wait(lambda: self.uploads(BUSES[0]) >= 0, members)
            for name in devices:
                members.append(self.device(name))
            yield members
            for member in reversed(members):
                member.stop()

    def device(self, name: str, url: str | None = None) -> Member:
        bundle = load_bundle(self.fleet.device_folder(name))
        options = DeviceOptions(
            state=self.folder / name,
            url=url or self._url,
            data=self.folder / "data" / name,
            exchange_every_s=0.25,
            patience=Patience(idle_s=0.005),
        )
        member = Member(
            name, partial(run_device, bundle, bundle.number or 0, self.work, options), self.folder / f"{name}.log"
        )
        member.start()
        return member

    def uploads(self, name: str) -> int:
        """The number of uploads of a device that are in the model; -1 before there is a ledger."""
        query = "SELECT count(DISTINCT applied.number) FROM applied JOIN devices USING (device) WHERE name = ?"
        return int(self._first(query, name))

    def version_of_upload(self, name: str, count: int) -> int:
        """The version that a device's upload made, counted from 1."""
        query = (
            "SELECT min(version) FROM applied JOIN devices USING (device) WHERE name = ?"
            " GROUP BY applied.number ORDER BY applied.number LIMIT 1 OFFSET ?"
        )
        return int(self._first(query, name, count - 1))

    def _first(self, query: str, *values: object) -> int:
        file = f"file:{self.folder / 'mes' / FILE}?mode=ro"
        try:
            with closing(sqlite3.connect(file, uri=True, timeout=30)) as ledger:
                return int(ledger.execute(query, values).fetchone()[0])
        except sqlite3.OperationalError:
            return -1

    def scores(self, *versions: int | None) -> list[float]:
        """The accuracy of some versions; None stands for the mean of the last models."""
        options = ServerOptions(state=self.folder / "mes")
        intake = open_intake(load_bundle(self.fleet.server_folder), self.work, options)
        task = local_task_of(self.work.scenario.learning)
        heldout = FolderSamples(self.folder / "heldout", task.wanted, self.folder / "cache")
        with closing(intake.ledger) as ledger:
            evaluate = Evaluator(FolderTask(task=task, samples=heldout))
            last = range(max(ledger.version - LAST + 1, 0), ledger.version + 1)
            models = [
                torch.stack([ledger.model_at(each) for each in last]).mean(0)
                if version is None
                else ledger.model_at(version)
                for version in versions
            ]
            return [100 * evaluate(model).score for model in models]

    async def poison(self) -> None:
        """Deliver one update of 9,999s with the hostile device's own certificate."""
        bundle, parameters = load_bundle(self.fleet.device_folder(HOSTILE)), len(self.work.initial_model)
        outbox = open_store(bundle, bundle.number or 0, self.work, DeviceOptions(state=self.folder / HOSTILE))
        start = outbox.local
        outbox.trained(start, start - POISON, outbox.progress.trained_round + 1)
        method = replace(self.work.method, upload=Fixed(parameters))
        link = Link(
            bandwidth_hz=1e6,
            max_power_watts=0.2,
            parameters=parameters,
            bits_per_entry=42.0,
            dense_bits=32.0 * parameters,
        )
        guide = Told(256 << 10, exchanges=1, resumes=True, learn=lambda: None)
        client = await connect(bundle, url=self._url)
        radio = Radio(terms=Terms(method=method, link=link, rounds=1_000_000))
        exchanger = Exchanger(client, bundle.name, outbox, guide, radio, self.work.layout, Patience())
        try:
            await exchanger.run(threading.Event())
        finally:
            await client.close()
            outbox.close()


def kill(members: list[Member]) -> None:
    for member in members:
        member.kill()


def wait(holds: Callable[[], bool], members: list[Member], limit_s: float = 600.0) -> None:
    until_s = time.monotonic() + limit_s
    while not holds():
        for member in members:
            member.check()
        if time.monotonic() > until_s:
            raise SystemExit("no progress for ten minutes")
        time.sleep(0.1)


def learn(site: Site, uploads: int) -> float:
    """Run the fleet until every device has delivered so many uploads; its accuracy then."""
    with site.running(*BUSES) as members:
        wait(lambda: min(map(site.uploads, BUSES)) >= uploads, members)
    return site.scores(None)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uploads", type=int, default=40, help="of every device before the events")
    parser.add_argument("--away", type=float, default=75.0, help="seconds without a broker")
    parser.add_argument("--spare", type=int, default=27, help="names that never connect")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    quiet()
    print("| event | accuracy before | accuracy after |")
    print("| --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="wayfare-mishaps-") as folder:
        site = Site(Path(folder) / "site", [*BUSES, HOSTILE])
        alone = learn(site, arguments.uploads)
        with site.running() as members:
            asyncio.run(site.poison())
            wait(lambda: site.uploads(HOSTILE) >= 1, members)
        version = site.version_of_upload(HOSTILE, 1)
        before, after = site.scores(version - 1, version)
        print(f"| one update of 9,999s | {before:.1f} % | {after:.1f} % |", flush=True)

        with site.running(*BUSES[:2]) as members:
            made = site.uploads(BUSES[2])
            away = site.device(BUSES[2], NOBODY)
            time.sleep(arguments.away)
            away.stop()
            members.append(site.device(BUSES[2]))
            wait(lambda: site.uploads(BUSES[2]) > made, members)
        version = site.version_of_upload(BUSES[2], made + 1)
        before, after = site.scores(version - 1, version)
        print(f"| a device returns after {arguments.away:g} s | {before:.1f} % | {after:.1f} % |", flush=True)

        spare = [f"spare-{number}" for number in range(arguments.spare)]
        among = learn(Site(Path(folder) / "spare", [*BUSES, *spare]), arguments.uploads)
        print(f"| {arguments.spare} names that never connect | {alone:.1f} % | {among:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
