"""`wayfare field`: the same algorithm on real machines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from wayfare.cli.field_check import check_command
from wayfare.cli.field_demo import GuardOption, SchemeOption, demo_command, task_setting, work_of
from wayfare.cli.field_fleet import (
    add_command,
    example_command,
    init_command,
    remove_command,
    renew_command,
    status_command,
)
from wayfare.cli.field_life import COMMANDS as LIFE_COMMANDS
from wayfare.cli.terminal import SetOption
from wayfare.errors import InputError, ScenarioError
from wayfare.scenario import FIELD_PRESET

if TYPE_CHECKING:
    pass

field_app = typer.Typer(
    name="field",
    help="""Run the algorithm on real machines: a broker, a mobile edge server and moving devices.

    Example: `wayfare field demo`
    """,
    rich_markup_mode="markdown",
    no_args_is_help=True,
)
field_app.command("init")(init_command)
field_app.command("example")(example_command)
field_app.command("check")(check_command)
field_app.command("add")(add_command)
field_app.command("remove")(remove_command)
field_app.command("renew")(renew_command)
field_app.command("status")(status_command)
field_app.command("demo")(demo_command)
for _name, _command in LIFE_COMMANDS.items():
    field_app.command(_name)(_command)

BundleArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A bundle that `wayfare field init` made.")
]
StateOption: TypeAlias = Annotated[
    Path | None, typer.Option("--state", help="Folder for persistent state; default: BUNDLE/state.")
]
WorkScenarioOption: TypeAlias = Annotated[
    str, typer.Option("--scenario", metavar="PRESET|FILE.toml", help="The scenario; must be the same on all machines.")
]
TaskOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--task", metavar="FILE.py[:NAME]", help="Your task, built with `local_task`.", show_default=False),
]
SeedOption: TypeAlias = Annotated[int, typer.Option(help="The seed; must be the same on all machines.")]
UrlOption: TypeAlias = Annotated[
    str | None, typer.Option("--url", help="The broker's URL; default: the one in the bundle.")
]


@field_app.command("mes")
def mes_command(
    bundle: BundleArgument,
    task: TaskOption = None,
    scenario: WorkScenarioOption = FIELD_PRESET,
    set_: SetOption = [],  # noqa: B006
    seed: SeedOption = 0,
    scheme: SchemeOption = None,
    state: StateOption = None,
    url: UrlOption = None,
    guard: GuardOption = True,
    clip_norm: Annotated[
        float | None, typer.Option("--clip-norm", help="Scale down updates with a larger norm.")
    ] = None,
    uploads_per_day: Annotated[
        int | None, typer.Option("--uploads-per-day", min=1, help="Most uploads of a device in a UTC day.")
    ] = None,
    active_days: Annotated[
        float, typer.Option("--active-days", help="Devices count in the mean for this long after an upload.")
    ] = 7.0,
    least_devices: Annotated[
        int, typer.Option("--least-devices", help="The mean is over at least this many devices.")
    ] = 1,
    discount_days: Annotated[
        float | None,
        typer.Option(
            "--discount-days",
            help="Updates count less if their model was superseded longer ago than this; default: all count.",
            show_default=False,
        ),
    ] = None,
    outdated_days: Annotated[
        float,
        typer.Option("--outdated-days", help="Reject updates if their model was superseded longer ago than this."),
    ] = 30.0,
    keep_days: Annotated[
        float, typer.Option("--keep-days", help="Replace older history by a snapshot of the model.")
    ] = 7.0,
    keep_mb: Annotated[float, typer.Option("--keep-mb", help="Keep at most this much history, in MB.")] = 1024.0,
    heldout: Annotated[
        Path | None,
        typer.Option("--heldout", metavar="FOLDER", help="Data for --evaluate-every-s that no device has."),
    ] = None,
    evaluate_every_s: Annotated[
        float,
        typer.Option("--evaluate-every-s", min=0, help="Evaluate the model this often on the test set; 0: never."),
    ] = 0.0,
    page: Annotated[
        str | None,
        typer.Option("--page", metavar="HOST:PORT", help="Offer the live page here; without it, beside the metrics."),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Host of /metrics and /status; unauthenticated.")
    ] = "127.0.0.1",
    metrics_port: Annotated[
        int, typer.Option("--metrics-port", min=0, max=65535, help="Port of /metrics and /status; 0 disables them.")
    ] = 9464,
) -> None:
    """Run a fleet's server until SIGTERM or an interrupt. After a restart it resumes where it stopped.

    It needs the network of the task and none of its data.

    Example: `wayfare field mes FLEET/mes --task task.py`
    """
    from wayfare.field.fleet import load_bundle
    from wayfare.field.runtime.compaction import Window
    from wayfare.field.runtime.housekeeping import HousekeepingOptions
    from wayfare.field.runtime.life_cycle import judge_of
    from wayfare.field.runtime.logs import log_to_stderr
    from wayfare.field.runtime.membership import Membership
    from wayfare.field.runtime.mes import ServerOptions, run_server
    from wayfare.field.runtime.rules import Limits
    from wayfare.signals import stop_at_signals

    loaded = load_bundle(bundle)
    if loaded.number is not None:
        raise InputError(f"{bundle}: is the bundle of {loaded.name}; the server's bundle is FLEET/mes")
    if clip_norm is not None and not clip_norm > 0:
        raise InputError(f"--clip-norm = {clip_norm!r}: must be above 0")
    if heldout is not None and not heldout.is_dir():
        raise InputError(f"--heldout = {str(heldout)!r}: is not a folder")
    if heldout is not None and not evaluate_every_s:
        raise InputError("--heldout: also give --evaluate-every-s, such as 600")
    if evaluate_every_s and heldout is None and task is not None:
        raise InputError("--evaluate-every-s: also give --heldout, a folder with data that no device has")
    work = work_of(scenario, [*set_, *task_setting(task)], seed, scheme, guarded=guard)
    log_to_stderr(loaded.name)
    options = ServerOptions(
        state=state or bundle / "state",
        url=url,
        limits=Limits(clip_norm=clip_norm, uploads_per_day=uploads_per_day),
        membership=Membership(
            active_days=active_days,
            least_devices=least_devices,
            discount_days=discount_days,
            outdated_days=outdated_days,
        ),
        housekeeping=HousekeepingOptions(
            window=Window(days=keep_days, bytes=int(keep_mb * 1e6)),
            judge=judge_of(
                work.scenario.learning,
                work.model,
                heldout,
                (state or bundle / "state") / "heldout",
                initial=work.initial_model,
            )
            if evaluate_every_s
            else None,
            judge_every_s=evaluate_every_s,
        ),
        page=_address(page),
        metrics_host=metrics_host,
        metrics_port=metrics_port or None,
    )
    run_server(loaded, work, options, stop_at_signals())


@field_app.command("device")
def device_command(
    bundle: BundleArgument,
    task: TaskOption = None,
    scenario: WorkScenarioOption = FIELD_PRESET,
    set_: SetOption = [],  # noqa: B006
    seed: SeedOption = 0,
    scheme: SchemeOption = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="The folder with the data of this device.")
    ] = None,
    compute: Annotated[
        str, typer.Option("--compute", help="Where to train: auto, cpu, cuda or cuda:NUMBER; auto is a GPU if present.")
    ] = "auto",
    state: StateOption = None,
    url: UrlOption = None,
    steps: Annotated[int | None, typer.Option(help="Stop after this many local steps; default: never.")] = None,
    max_local_steps: Annotated[
        int, typer.Option("--max-local-steps", min=1, help="Stop training after this many steps without a new model.")
    ] = 1000,
    step_every_s: Annotated[float, typer.Option("--step-every-s", help="Seconds between local steps.")] = 0.0,
    exchange_every_s: Annotated[
        float, typer.Option("--exchange-every-s", help="Seconds between exchanges while a contact lasts.")
    ] = 10.0,
    may_train: Annotated[
        str | None, typer.Option("--may-train", metavar="COMMAND", help="Train only while this command exits with 0.")
    ] = None,
    daily_mb: Annotated[
        float | None, typer.Option("--daily-mb", help="Most megabytes sent and received in a day; default: no limit.")
    ] = None,
    write_gb: Annotated[
        float, typer.Option("--write-gb", help="Most gigabytes written to disk in a day, to spare flash memory.")
    ] = 20.0,
    save_every_s: Annotated[
        float, typer.Option("--save-every-s", help="Most training that a power cut costs, in seconds.")
    ] = 30.0,
    current_every_s: Annotated[
        float, typer.Option("--current-every-s", help="Seconds between writes of current.safetensors; 0: never write.")
    ] = 600.0,
    report_loss: Annotated[
        bool, typer.Option("--report-loss/--no-report-loss", help="Tell the server the loss on this device's data.")
    ] = True,
    metrics_port: Annotated[
        int, typer.Option("--metrics-port", min=0, max=65535, help="Local port of /metrics, /healthz; 0 disables them.")
    ] = 0,
) -> None:
    """Train, and exchange whenever the broker is reachable. After a restart it resumes where it stopped.

    It trains on what lies in its own folder, and looks there for new files.

    Example: `wayfare field device FLEET/devices/bus-1 --task task.py --data /var/lib/wayfare/data`
    """
    from wayfare.engine.compute import checked_device
    from wayfare.field.fleet import load_bundle
    from wayfare.field.runtime.device import DeviceOptions, run_device
    from wayfare.field.runtime.logs import log_to_stderr
    from wayfare.field.runtime.permission import always, by_command
    from wayfare.field.runtime.writes import WriteLimits
    from wayfare.signals import stop_at_signals

    loaded = load_bundle(bundle)
    work = work_of(scenario, [*set_, *task_setting(task)], seed, scheme)
    number = loaded.number
    if number is None:
        raise InputError(f"{bundle}: is the server's bundle; bundles of devices are in FLEET/devices")
    if data is None:
        raise InputError("--data: give the folder with the data of this device")
    try:
        checked_device(compute)
    except ScenarioError as error:
        raise InputError(f"--compute = {compute!r}: {error.rule}") from None
    for name, value in (("--daily-mb", 1.0 if daily_mb is None else daily_mb), ("--write-gb", write_gb)):
        if not value > 0:
            raise InputError(f"{name} = {value!r}: must be above 0")
    for name, value in (
        ("--step-every-s", step_every_s),
        ("--exchange-every-s", exchange_every_s),
        ("--save-every-s", save_every_s),
        ("--current-every-s", current_every_s),
    ):
        if not value >= 0:
            raise InputError(f"{name} = {value!r}: must be at least 0")
    log_to_stderr(loaded.name)
    options = DeviceOptions(
        state=state or bundle / "state",
        url=url,
        data=data,
        compute=compute,
        steps=steps,
        max_local_steps=max_local_steps,
        step_every_s=step_every_s,
        exchange_every_s=exchange_every_s,
        report_loss=report_loss,
        may_train=always if may_train is None else by_command(may_train),
        daily_bytes=math.inf if daily_mb is None else 1e6 * daily_mb,
        writes=WriteLimits(every_s=save_every_s, daily_bytes=1e9 * write_gb),
        current_every_s=current_every_s or None,
        metrics_port=metrics_port or None,
    )
    run_device(loaded, number, work, options, stop_at_signals())


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--page = {text!r}: must be HOST:PORT, such as 0.0.0.0:8443")
    return host, int(port)
