"""`wayfare field compact`, `rollback`, `set`, `release` and other commands for the life of a fleet."""

from __future__ import annotations

import sqlite3
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypeAlias

import typer

from wayfare.cli.field_demo import SchemeOption, task_setting, work_of
from wayfare.cli.terminal import JsonOption, SetOption, bars, print_json, say
from wayfare.errors import InputError
from wayfare.scenario import FIELD_PRESET

StateArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="STATE", help="The folder of the server's state, such as /var/lib/wayfare/mes.")
]
VersionArgument: TypeAlias = Annotated[int, typer.Argument(metavar="VERSION", min=0, help="A version of the model.")]
ScenarioOption: TypeAlias = Annotated[
    str, typer.Option("--scenario", metavar="PRESET|FILE.toml", help="The scenario of the fleet.")
]
ToOption: TypeAlias = Annotated[
    str, typer.Option("--to", metavar="all|DEVICE,...|GROUP", help="All devices, some of them, or a group.")
]
FleetTaskOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--task", metavar="FILE.py[:NAME]", help="The task of the fleet.", show_default=False),
]
WaitOption: TypeAlias = Annotated[
    float, typer.Option("--wait-s", help="Wait this long for the running server; 0 returns at once.")
]


def compact_command(
    state: StateArgument,
    keep_days: Annotated[float, typer.Option("--keep-days", help="Keep the history of this many days.")] = 7.0,
    keep_mb: Annotated[float, typer.Option("--keep-mb", help="Keep at most this much history, in MB.")] = 1024.0,
    wait_s: WaitOption = 60.0,
) -> None:
    """Replace old history by a snapshot of the model. The server also does it once a minute.

    Example: `wayfare field compact /var/lib/wayfare/mes --keep-days 2`
    """
    for name, value in (("--keep-days", keep_days), ("--keep-mb", keep_mb)):
        if not value >= 0:
            raise InputError(f"{name} = {value!r}: must be at least 0")
    _order(state, "compact", {"days": keep_days, "bytes": int(keep_mb * 1e6)}, wait_s)


def rollback_command(state: StateArgument, version: VersionArgument, wait_s: WaitOption = 60.0) -> None:
    """Return to an older version of the model. It becomes the newest version, and devices download it as usual.

    Example: `wayfare field rollback /var/lib/wayfare/mes 1200`
    """
    _order(state, "rollback", {"version": version}, wait_s)


def release_command(
    state: StateArgument, version: VersionArgument, to: ToOption = "all", wait_s: WaitOption = 60.0
) -> None:
    """Use a version for inference on all devices, or on some of them first. Devices train with the newest model.

    A release to all devices also ends releases to some of them.

    Examples: `wayfare field release /var/lib/wayfare/mes 1200 --to bus-1,bus-2`,
    then `wayfare field release /var/lib/wayfare/mes 1200`
    """
    _order(state, "release", {"version": version, "to": to}, wait_s)


def withdraw_command(state: StateArgument, to: ToOption = "all", wait_s: WaitOption = 60.0) -> None:
    """Withdraw a release. Some devices return to the release of all, or all to the model that they received last.

    Example: `wayfare field withdraw /var/lib/wayfare/mes --to bus-1,bus-2`
    """
    _order(state, "withdraw", {"to": to}, wait_s)


def group_command(
    state: StateArgument,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The group.", show_default=False)] = None,
    devices: Annotated[
        list[str] | None, typer.Argument(metavar="[DEVICE...]", help="Its devices; none deletes the group.")
    ] = None,
    wait_s: WaitOption = 60.0,
) -> None:
    """List the groups of devices for releases, or define one.

    Example: `wayfare field group /var/lib/wayfare/mes canary bus-1 bus-2`
    """
    from wayfare.field.runtime.life_cycle import groups_of

    if name is not None:
        _order(state, "group", {"name": name, "devices": devices or []}, wait_s)
        return
    found = groups_of(state)
    for group, members in found.items():
        say(f"{group}: {', '.join(members)}")
    if not found:
        say("there are no groups")


def set_command(
    state: StateArgument,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as guard.clip=3.")],
    wait_s: WaitOption = 60.0,
) -> None:
    """Change the guard, the server rule or settings of devices from the next version on.

    The ledger records the version. Devices get their settings with the next model.

    Example: `wayfare field set /var/lib/wayfare/mes guard.clip=3 learning.learning_rate=0.05`
    """
    content: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{text!r}: must be NAME=VALUE, such as guard.clip=3")
        try:
            content[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            raise InputError(f"{name} = {value!r}: must be a number, true, false, or a text in quotes") from None
    _order(state, "set", content, wait_s)


def quarantine_command(
    state: StateArgument,
    release: Annotated[str | None, typer.Option("--release", metavar="DEVICE", help="Use its updates again.")] = None,
    wait_s: WaitOption = 60.0,
) -> None:
    """List the devices in quarantine, or release one.

    Example: `wayfare field quarantine /var/lib/wayfare/mes --release bus-7`
    """
    from wayfare.field.runtime.life_cycle import newest_state

    with closing(_ledger(state)) as connection:
        names = {name: number for number, name in connection.execute("SELECT device, name FROM devices")}
    if release is not None:
        if release not in names:
            raise InputError(f"--release = {release}: must be a device of this fleet")
        _order(state, "pardon", {"device": names[release], "name": release}, wait_s)
        return
    held = newest_state(state).guard_state.get("quarantined", {})
    found = [name for name, number in names.items() if str(number) in held]
    for name in found:
        say(name)
    if not found:
        say("no device is in quarantine")


def page_command(
    state: StateArgument,
    address: Annotated[str, typer.Argument(metavar="[HOST:PORT]", help="Where the server offers the page.")] = (
        "127.0.0.1:9464"
    ),
) -> None:
    """Print the address of the fleet's live page. Everyone who knows it can read the page.

    Example: `wayfare field page /var/lib/wayfare/mes`
    """
    from wayfare.field.runtime.page import token_of

    _ledger(state).close()
    say(f"http://{address}/fleet/{token_of(state)}/")


def backup_command(
    state: StateArgument, copy: Annotated[Path, typer.Argument(metavar="COPY", help="A new folder.")]
) -> None:
    """Copy the server's state while it runs.

    Example: `wayfare field backup /var/lib/wayfare/mes /backups/today`
    """
    from wayfare.field.runtime.backup import back_up

    say(f"{copy}: version {back_up(state, copy):,}")


def restore_command(
    copy: Annotated[Path, typer.Argument(metavar="COPY", help="A folder that `wayfare field backup` made.")],
    state: Annotated[Path, typer.Argument(metavar="STATE", help="A new folder for the server's state.")],
) -> None:
    """Make a backup the state of a server. Devices send again what it lacks and they still have.

    Example: `wayfare field restore /backups/today /var/lib/wayfare/mes`
    """
    from wayfare.field.runtime.backup import restore

    say(f"{state}: version {restore(copy, state):,}")


def export_command(
    state: StateArgument,
    version: VersionArgument,
    safetensors: Annotated[Path | None, typer.Option("--safetensors", metavar="FILE", help="Write this file.")] = None,
    onnx: Annotated[Path | None, typer.Option("--onnx", metavar="FILE", help="Write this file.")] = None,
    task: FleetTaskOption = None,
    scenario: ScenarioOption = FIELD_PRESET,
    set_: SetOption = [],  # noqa: B006
    scheme: SchemeOption = None,
) -> None:
    """Write a version of the model for other programs.

    Example: `wayfare field export /var/lib/wayfare/mes 1200 --task task.py --safetensors model.safetensors`
    """
    from wayfare.field.runtime.life_cycle import network_of, sample_of, vector_at, write_onnx, write_safetensors

    if safetensors is None and onnx is None:
        raise InputError("--safetensors, --onnx: give at least one of them with a file")
    for option, file in (("--safetensors", safetensors), ("--onnx", onnx)):
        if file is not None and not file.parent.is_dir():
            raise InputError(f"{option} = {str(file)!r}: the folder {file.parent} does not exist")
    work = work_of(scenario, [*set_, *task_setting(task)], 0, scheme)
    learning, model = work.scenario.learning, work.model
    with _waiting():
        vector = vector_at(state, version, model)
    module = network_of(model, vector)
    if safetensors is not None:
        write_safetensors(module, safetensors, version)
    if onnx is not None:
        write_onnx(module, sample_of(learning), onnx)
    say(f"version {version:,}: " + ", ".join(str(file) for file in (safetensors, onnx) if file is not None))


def evaluate_command(
    state: StateArgument,
    version: Annotated[
        int | None, typer.Option("--version", min=0, help="Default: the latest.", show_default=False)
    ] = None,
    task: FleetTaskOption = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="A folder with data that no device has.", show_default=False),
    ] = None,
    scenario: ScenarioOption = FIELD_PRESET,
    set_: SetOption = [],  # noqa: B006
    scheme: SchemeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a version of the model on held-out data, or on the test set of the scenario's task.

    Example: `wayfare field evaluate /var/lib/wayfare/mes --task task.py --data heldout`
    """
    from wayfare.field.runtime.life_cycle import judge_of, latest_version, vector_at
    from wayfare.learning.tasks import is_local

    work = work_of(scenario, [*set_, *task_setting(task)], 0, scheme)
    if task is not None and data is None and is_local(work.scenario.learning):
        raise InputError("--data: give a folder with data that no device has; this task has no data of its own")
    chosen = latest_version(state) if version is None else version
    with TemporaryDirectory() as cache:
        judge = judge_of(work.scenario.learning, work.model, data, Path(cache))
        with _waiting():
            vector = vector_at(state, chosen, work.model)
        found = judge(chosen, vector)
    if as_json:
        print_json(asdict(found))
        return
    say(f"version {found.version:,}: {found.metric} {found.score:.4f}, loss {found.loss:.4g}")


def _order(state: Path, kind: str, content: dict[str, Any], wait_s: float) -> None:
    from wayfare.field.runtime.ledger import FILE
    from wayfare.field.runtime.orders import outcome, place

    number = place(state / FILE, kind, content)
    with _waiting():
        answer = outcome(state / FILE, number, wait_s)
    if answer is None:
        say(f"order {number} is recorded; the server carries it out when it runs and answers the devices")
        return
    verdict, _, rest = answer.partition(": ")
    if verdict != "done":
        raise InputError(rest)
    say(rest)


@contextmanager
def _waiting() -> Iterator[None]:
    """Show on a terminal that the command waits: a server that is down answers nothing."""
    with bars(spinner=True) as shown:
        shown.add_task("waiting for the server", total=None)
        yield


def _ledger(state: Path) -> sqlite3.Connection:
    from wayfare.field.runtime.ledger import FILE

    if not (state / FILE).is_file():
        raise InputError(f"{state}: no ledger; give the folder of the server's state")
    return sqlite3.connect(f"file:{state / FILE}?mode=ro", uri=True, timeout=30)


COMMANDS: dict[str, Callable[..., None]] = {
    "compact": compact_command,
    "rollback": rollback_command,
    "set": set_command,
    "release": release_command,
    "withdraw": withdraw_command,
    "group": group_command,
    "quarantine": quarantine_command,
    "page": page_command,
    "backup": backup_command,
    "restore": restore_command,
    "export": export_command,
    "evaluate": evaluate_command,
}
