"""`wayfare field init`, `add`, `remove`, `renew` and `status`: a fleet's keys and state."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from wayfare.cli.terminal import JsonOption, output, print_json, say
from wayfare.errors import InputError
from wayfare.progress import duration_text

if TYPE_CHECKING:
    from wayfare.field.fleet import Fleet
    from wayfare.field.runtime.status import FleetStatus

FleetArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FLEET", help="A folder that `wayfare field init` made.")
]
NamesArgument: TypeAlias = Annotated[list[str], typer.Argument(metavar="DEVICE...", help="Names of devices.")]


def init_command(
    folder: Annotated[Path, typer.Argument(metavar="FLEET", help="A new folder.")],
    devices: Annotated[int, typer.Option("--devices", help="Number of devices named device-0, device-1, ...")] = 0,
    named: Annotated[
        list[str] | None, typer.Option("--device", metavar="NAME", help="The name of a device; repeatable.")
    ] = None,
    host: Annotated[str, typer.Option(help="The broker's host name or address, as devices use it.")] = "localhost",
    also: Annotated[
        list[str] | None, typer.Option("--also", metavar="HOST", help="Another name or address of the broker.")
    ] = None,
    port: Annotated[int, typer.Option(help="The broker's port.")] = 4222,
    name: Annotated[str, typer.Option(help="The fleet's name.")] = "wayfare",
    store_mb: Annotated[int, typer.Option("--store-mb", help="Maximum disk space of the broker in MiB.")] = 1024,
    valid_days: Annotated[int, typer.Option("--valid-days", help="Lifetime of the certificates in days.")] = 3650,
    as_json: JsonOption = False,
) -> None:
    """Create a fleet: a certificate authority, the broker's configuration, and a bundle for the server and each device.

    Example: `wayfare field init FLEET --host depot.example --also 10.0.0.7 --device bus-1 --device bus-2`
    """
    from wayfare.field.fleet import create_fleet
    from wayfare.field.fleet.broker_config import Limits

    names = [*(named or []), *(f"device-{number}" for number in range(devices))]
    if devices < 0 or not names:
        raise InputError(f"--devices = {devices}: must be at least 1, unless --device NAME is given")
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
        f"{fleet.folder}: {len(names)} devices, broker at {fleet.url}",
        "  broker/    copy to the broker's host:  cd broker && WAYFARE_STORE=../store nats-server -c nats.conf",
        "  mes/       copy to the server's host:  wayfare field mes mes --task task.py",
        f"  devices/   copy each to its device:    wayfare field device {names[0]} --task task.py --data FOLDER",
        "  systemd/   units for broker, server and devices, with their options in mes.env and device.env",
        "  ca.key     signs devices that join later; keep this folder private",
    ):
        say(line)


def example_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    devices: Annotated[int, typer.Option("--devices", min=1, max=100, help="Number of folders with data.")] = 3,
) -> None:
    """Write an example of your own: a task file, a folder of data for each device, and held-out data.

    Example: `wayfare field example EXAMPLE`
    """
    from wayfare.field.rig.example import write_example

    for line in write_example(folder, devices):
        say(line)


def add_command(folder: FleetArgument, devices: NamesArgument, as_json: JsonOption = False) -> None:
    """Add devices to a fleet.

    Example: `wayfare field add FLEET bus-3`
    """
    from wayfare.field.fleet import add_devices, load_fleet

    _changed(add_devices(load_fleet(folder), devices), as_json)


def remove_command(folder: FleetArgument, devices: NamesArgument, as_json: JsonOption = False) -> None:
    """Revoke the access of devices. Their uploads and their numbers stay.

    Example: `wayfare field remove FLEET bus-1`
    """
    from wayfare.field.fleet import load_fleet, remove_devices

    _changed(remove_devices(load_fleet(folder), devices), as_json)


def renew_command(
    folder: FleetArgument,
    finish: Annotated[bool, typer.Option("--finish", help="Second step: drop the old authority.")] = False,
    valid_days: Annotated[int, typer.Option("--valid-days", min=1, max=36500, help="Lifetime in days.")] = 3650,
) -> None:
    """Renew the certificates of a running fleet, in two steps.

    Examples: `wayfare field renew FLEET`, then copy the bundles, then `wayfare field renew FLEET --finish`
    """
    from wayfare.field.fleet import load_fleet
    from wayfare.field.fleet.renewal import begin_renewal, finish_renewal

    fleet = load_fleet(folder)
    if finish:
        finish_renewal(fleet, valid_days=valid_days)
        say(
            "copy broker/ and mes/ to their hosts, reload the broker and restart the server; "
            "devices without their new bundle are locked out"
        )
        return
    begin_renewal(fleet, valid_days=valid_days)
    say("copy broker/ca.pem and mes/ca.pem, reload the broker and restart the server; then copy every device's bundle")
    say(f"when every device has its new bundle: wayfare field renew {folder} --finish")


def status_command(
    address: Annotated[str, typer.Argument(metavar="[HOST:PORT]", help="Address of the server's metrics.")] = (
        "127.0.0.1:9464"
    ),
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until interrupted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a fleet: last contact, uploads and model version of every device.

    Example: `wayfare field status --watch`
    """
    from wayfare.field.runtime.endpoint import fetch_status

    status = fetch_status(address)
    if as_json:
        print_json(asdict(status))
    elif not watch:
        table = status_table(status)
        # Numbers are never cut: in a narrower window the lines wrap.
        wide = output.options.update(width=_MAX_TABLE_WIDTH)
        width = max(output.width, Measurement.get(output, wide, table).maximum)
        Console(emoji=False, width=width).print(table)
    else:
        with Live(status_table(status), console=output, auto_refresh=False) as live:
            while True:
                time.sleep(1.0)
                live.update(status_table(fetch_status(address)), refresh=True)


_MAX_TABLE_WIDTH = 400
# Columns that appear if a device has a value.
_SOMETIMES = (
    ("released", "released_version", ","),
    ("runs", "running_version", ","),
    ("loss", "loss", ",.4g"),
    ("epsilon", "epsilon", ",.3g"),
)


def status_table(status: FleetStatus) -> Group:
    broker = "reachable" if status.broker_in_reach else "UNREACHABLE"
    summary = (
        f"{status.fleet}: model version {status.version:,}, {status.queued_chunks:,} chunks queued, broker {broker}, "
        f"up {duration_text(status.up_s)}, {status.memory_bytes / 1e6:.0f} MB"
    )
    if status.broker_in_reach and not status.leads:
        summary += "\nThis server waits: another one holds the lease and answers the devices."
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("device", no_wrap=True)
    columns = ("seen", "version", "behind", "exchanges", "chunks", "resent", "rejected", "up MB", "down MB", "J")
    more = [
        (title, field, text)
        for title, field, text in _SOMETIMES
        if any(asdict(device)[field] is not None for device in status.devices)
    ]
    for column in (*columns, *(title for title, _, _ in more)):
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
            *("-" if (value := asdict(device)[field]) is None else format(value, text) for _, field, text in more),
        )
    alerts = [Text(f"{alert.about}: {alert.text}", style="bold red") for alert in status.alerts]
    return Group(Text(summary), *alerts, table)


def _changed(fleet: Fleet, as_json: bool) -> None:
    if as_json:
        print_json(_fleet_json(fleet))
        return
    members = sum(key is not None for key in fleet.public_keys.values()) - 1  # the server has a key too
    for line in (
        f"{fleet.folder}: {members} {'device' if members == 1 else 'devices'}, {len(fleet.devices)} numbers assigned",
        "  broker/users.conf   copy to the broker's host, then: systemctl reload wayfare-broker (or kill -HUP twice)",
        "  devices/            copy the bundle of a new device to it; the server needs no restart",
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
