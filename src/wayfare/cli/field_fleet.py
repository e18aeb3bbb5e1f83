"""`wayfare field init`, `add`, `remove`, `status`: a fleet's keys, and how it is doing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wayfare.cli.terminal import JsonOption, output, print_json, say
from wayfare.errors import InputError
from wayfare.progress import duration_text

if TYPE_CHECKING:
    from wayfare.field.fleet import Fleet
    from wayfare.field.runtime.status import FleetStatus

FleetArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FLEET", help="A folder of `wayfare field init`.")]
NamesArgument: TypeAlias = Annotated[list[str], typer.Argument(metavar="DEVICE...", help="Names of devices.")]


def init_command(
    folder: Annotated[Path, typer.Argument(metavar="FLEET", help="A folder that is not there yet.")],
    devices: Annotated[int, typer.Option("--devices", help="So many devices: device-0, device-1, ...")] = 0,
    named: Annotated[
        list[str] | None, typer.Option("--device", metavar="NAME", help="A device by name; may be repeated.")
    ] = None,
    host: Annotated[str, typer.Option(help="The broker's host, as devices reach it.")] = "localhost",
    also: Annotated[
        list[str] | None, typer.Option("--also", metavar="HOST", help="Another name or address of it.")
    ] = None,
    port: Annotated[int, typer.Option(help="The broker's port.")] = 4222,
    name: Annotated[str, typer.Option(help="What the fleet is called.")] = "wayfare",
    store_mb: Annotated[int, typer.Option("--store-mb", help="What the broker may keep on its disk.")] = 1024,
    valid_days: Annotated[int, typer.Option("--valid-days", help="How long certificates hold.")] = 3650,
    as_json: JsonOption = False,
) -> None:
    """Make a fleet: an authority, the broker's configuration, and a bundle of keys for the server and every device.

    Example: `wayfare field init FLEET --host depot.example --also 10.0.0.7 --device bus-1 --device bus-2`
    """
    from wayfare.field.fleet import create_fleet
    from wayfare.field.fleet.broker_config import Limits

    names = [*(named or []), *(f"device-{number}" for number in range(devices))]
    if devices < 0 or not names:
        raise InputError(f"--devices = {devices}: must be at least 1, unless there is a --device NAME")
    if store_mb < 16:
        raise InputError(f"--store-mb = {store_mb}: must be at least 16")
    fleet = create_fleet(
        folder,
        devices=names,
        host=host,
        port=port,
        more_hosts=also or (),
        name=name,
        limits=Limits(store_bytes=store_mb << 20, connections=max(1000, 4 * len(names))),
        valid_days=valid_days,
    )
    if as_json:
        print_json(_fleet_json(fleet))
        return
    for line in (
        f"{fleet.folder}: a fleet of {len(names)}, broker at {fleet.url}",
        "  broker/    to the broker's host:  cd broker && WAYFARE_STORE=../store nats-server -c nats.conf",
        f"  mes/       to the server's host:  wayfare field mes mes --set fleet.devices={len(names)}",
        f"  devices/   each to its device:    wayfare field device {names[0]} --set fleet.devices={len(names)}",
        "  systemd/   units for all three, and work.env",
        "  ca.key     signs devices that join later. Keep it here, and this folder to yourself.",
    ):
        say(line)


def add_command(folder: FleetArgument, devices: NamesArgument, as_json: JsonOption = False) -> None:
    """Let more devices join.

    Example: `wayfare field add FLEET bus-3`
    """
    from wayfare.field.fleet import add_devices, load_fleet

    _changed(add_devices(load_fleet(folder), devices), as_json)


def remove_command(folder: FleetArgument, devices: NamesArgument, as_json: JsonOption = False) -> None:
    """Let devices in no more. What they delivered stays, and so does their number.

    Example: `wayfare field remove FLEET bus-1`
    """
    from wayfare.field.fleet import load_fleet, remove_devices

    _changed(remove_devices(load_fleet(folder), devices), as_json)


def status_command(
    address: Annotated[str, typer.Argument(metavar="[HOST:PORT]", help="Where the server offers its metrics.")] = (
        "127.0.0.1:9464"
    ),
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second, until an interrupt.")] = False,
    as_json: JsonOption = False,
) -> None:
    """How a fleet is doing: who was heard when, what came through, which model everyone has.

    Example: `wayfare field status --watch`
    """
    from dataclasses import asdict

    from wayfare.field.runtime.endpoint import fetch_status

    status = fetch_status(address)
    if as_json:
        print_json(asdict(status))
    elif not watch:
        output.print(status_table(status))
    else:
        with Live(status_table(status), console=output, auto_refresh=False) as live:
            while True:
                time.sleep(1.0)
                live.update(status_table(fetch_status(address)), refresh=True)


def status_table(status: FleetStatus) -> Group:
    broker = "in reach" if status.broker_in_reach else "OUT OF REACH"
    summary = (
        f"{status.fleet}: model version {status.version:,}, {status.queued_chunks:,} chunks queued, broker {broker}, "
        f"up {duration_text(status.up_s)}, {status.memory_bytes / 1e6:.0f} MB"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("device", no_wrap=True)
    for column in ("heard", "model", "behind", "met", "chunks", "again", "refused", "up MB", "down MB", "J"):
        table.add_column(column, justify="right")
    for device in status.devices:
        table.add_row(
            device.name,
            "never" if device.heard_s_ago is None else duration_text(device.heard_s_ago),
            "-" if device.version is None else f"{device.version:,}",
            "-" if device.version is None else f"{status.version - device.version:,}",
            *(f"{count:,}" for count in (device.exchanges, device.chunks, device.repeated, device.refused)),
            *(f"{size / 1e6:,.2f}" for size in (device.received_bytes, device.sent_bytes)),
            f"{device.spent_joules:,.2f}",
        )
    return Group(Text(summary), table)


def _changed(fleet: Fleet, as_json: bool) -> None:
    if as_json:
        print_json(_fleet_json(fleet))
        return
    here = sum(key is not None for key in fleet.public_keys.values()) - 1
    for line in (
        f"{fleet.folder}: a fleet of {here}, {len(fleet.devices)} numbers given out",
        "  broker/users.conf   to the broker's host, then: systemctl reload wayfare-broker (or kill -HUP)",
        "  mes/bundle.json     to the server's host; a server keeps to the devices it began with (--state elsewhere)",
    ):
        say(line)


def _fleet_json(fleet: Fleet) -> dict[str, object]:
    return {
        "folder": str(fleet.folder),
        "name": fleet.name,
        "url": fleet.url,
        "devices": [
            {"name": name, "number": number, "member": fleet.public_keys[name] is not None}
            for number, name in enumerate(fleet.devices)
        ],
    }
