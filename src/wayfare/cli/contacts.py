"""``wayfare contacts``: inspect the contacts of a scenario, trace or saved plan; simulate traffic with SUMO; Fig. 4."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wayfare.cli.contact_tables import print_inspection, print_speeds, working
from wayfare.cli.options import takes
from wayfare.cli.terminal import JsonOption, ScenarioArgument, SetOption, output, print_json
from wayfare.contacts.export import export_one, write_contacts
from wayfare.contacts.source import SourcedPlan, plan_from_source
from wayfare.contacts.speeds import SPEEDS_MPS, SpeedPoint, contact_times_by_speed, speed_models
from wayfare.contacts.statistics import Distribution, PlanStatistics, plan_statistics, verdict_sentence
from wayfare.contacts.store import save_plan
from wayfare.files import writing
from wayfare.learning.known import vector_sizes
from wayfare.mobility.traces.sumo_run import SumoScenario, run_sumo
from wayfare.report.contact_summary import UploadOutlook, upload_outlook
from wayfare.scenario import DEFAULT_PRESET, load


class _SourceFirst(TyperGroup):
    """A group that inserts `inspect` if the first argument is not a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["inspect", *args]
        return super().parse_args(ctx, args)


contacts_app = typer.Typer(
    name="contacts",
    cls=_SourceFirst,
    help="""Draw, import and inspect contact plans.

    `wayfare contacts SOURCE` is short for `wayfare contacts inspect SOURCE`. SOURCE is a preset, a scenario file, a
    trace or a saved plan. See `wayfare contacts inspect --help` for its options.

    Example: `wayfare contacts trace.fcd.xml.xz --range-m 300 --plot contacts.png`
    """,
    rich_markup_mode="markdown",
)

Seed = Annotated[int, typer.Option(min=0, help="The seed of all random draws.")]
Plot = Annotated[Path | None, typer.Option(help="Draw a figure (.png, .svg, .pdf).")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How to find contacts, and which output to write."""

    server: Annotated[
        str | None, typer.Option(help="The node of a trace that is the server; default: the one with most contacts.")
    ] = None
    range_m: Annotated[
        float | None, typer.Option("--range-m", min=1e-3, help="Radio range in metres (radio.range_m).")
    ] = None
    devices_meet: Annotated[bool, typer.Option("--devices-meet", help="Also find contacts between devices.")] = False
    min_contact_s: Annotated[
        float | None, typer.Option("--min-contact-s", help="Drop shorter contacts (contacts.min_contact_s).")
    ] = None
    max_exchange_s: Annotated[
        float | None, typer.Option("--max-exchange-s", help="Split longer contacts (contacts.max_exchange_s).")
    ] = None
    seed: Seed = 0
    plot: Plot = None
    as_json: JsonOption = False
    save: Annotated[Path | None, typer.Option(help="Save the plan (.npz), for use as SOURCE.")] = None
    one_file: Annotated[Path | None, typer.Option("--export-one", help="Write connectivity events for The ONE.")] = None
    out: Annotated[Path | None, typer.Option(help="Write the contacts as a table (.csv, .parquet).")] = None

    def plan(self, source: str, overrides: list[str], *, lenient: bool = False) -> SourcedPlan:
        rules = {"min_contact_s": self.min_contact_s, "max_exchange_s": self.max_exchange_s}
        given = [f"contacts.{name}={value!r}" for name, value in rules.items() if value is not None]
        return plan_from_source(
            source,
            seed=self.seed,
            overrides=[*overrides, *given],
            server=self.server,
            range_m=self.range_m,
            lenient=lenient,
            devices_meet=self.devices_meet,
        )


@contacts_app.command("inspect")
@takes("options", PlanOptions)
def inspect(
    source: Annotated[str, typer.Argument(help="A preset, scenario.toml, trace file or saved plan.")] = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip and count invalid lines of a trace.")] = False,
    *,
    options: PlanOptions,
) -> None:
    """Show a plan's contact counts and times, its upload chances, and whether the exponential model fits.

    Example: `wayfare contacts taxis.tar.xz --range-m 300 --set "mobility.box_m=[-2500,-2500,2500,2500]"`
    """
    with working(f"Finding the contacts of {source}"):
        found = options.plan(source, set_, lenient=lenient)
    _finish(found, options)


@contacts_app.command("sumo")
@takes("options", PlanOptions)
def sumo(
    vehicles: Annotated[int, typer.Option(help="Number of vehicles; one of them is the server.")] = 21,
    duration_s: Annotated[float, typer.Option("--duration-s", "--duration", help="Simulated time in seconds.")] = 600.0,
    grid: Annotated[int, typer.Option(help="Crossings along each side of a street grid.")] = 6,
    spacing_m: Annotated[float, typer.Option("--spacing-m", help="Metres between two crossings.")] = 200.0,
    net: Annotated[Path | None, typer.Option(help="A SUMO network (.net.xml) instead of the grid.")] = None,
    step_s: Annotated[float, typer.Option("--step-s", help="Time step of the simulation in seconds.")] = 1.0,
    fcd_file: Annotated[Path | None, typer.Option("--fcd", help="Keep the floating car data in this file.")] = None,
    set_: SetOption = [],  # noqa: B006
    *,
    options: PlanOptions,
) -> None:
    """Simulate traffic with SUMO and inspect its contacts.

    Example: `wayfare contacts sumo --grid 8 --vehicles 30 --duration 1200 --save grid.npz --plot grid.png`
    """
    scenario = SumoScenario(
        vehicles=vehicles, duration_s=duration_s, grid_crossings=grid, spacing_m=spacing_m, net_file=net, step_s=step_s
    )
    with tempfile.TemporaryDirectory(prefix="wayfare-sumo-") as folder:
        with working(f"SUMO: {vehicles} vehicles, {duration_s:g} s"):
            fcd = run_sumo(scenario, Path(folder), options.seed)
        if fcd_file is not None:
            with writing(fcd_file, "cannot be written"):
                fcd = Path(shutil.copyfile(fcd, fcd_file))
        with working("Finding contacts"):
            found = options.plan(str(fcd), set_)
        found = replace(found, name=f"SUMO on {net.name}" if net else f"SUMO on {grid} x {grid} crossings")
    _finish(found, options)


@contacts_app.command("speeds")
def speeds(
    source: ScenarioArgument = DEFAULT_PRESET,
    speed_mps: Annotated[
        list[float] | None, typer.Option("--speed-mps", help="A speed in m/s; repeatable. Default: 1 to 40.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="A mobility model; repeatable. Default: all.")] = None,
    set_: SetOption = [],  # noqa: B006
    seed: Seed = 0,
    plot: Plot = None,
    as_json: JsonOption = False,
) -> None:
    """Show contact and inter-contact times against speed, for every mobility model with a speed (Fig. 4).

    Example: `wayfare contacts speeds --plot fig4.png`
    """
    scenario = load(source, set_)
    chosen, tried = model or list(speed_models()), speed_mps or list(SPEEDS_MPS)
    points: list[SpeedPoint] = []
    with working("Drawing contacts", total=len(chosen) * len(tried)) as advance:
        for point in contact_times_by_speed(scenario, speeds_mps=tried, models=chosen, seed=seed):
            points.append(point)
            advance(f"{point.model} at {point.speed_mps:g} m/s")
    if plot is not None:
        from wayfare.report.contact_figures import plot_speeds

        plot_speeds(points, plot, title="Contact and inter-contact time against speed")
    if as_json:
        print_json({"scenario": scenario.name, "seed": seed, "points": [_point(point) for point in points]})
    else:
        print_speeds(output, points)


def _finish(found: SourcedPlan, options: PlanOptions) -> None:
    with working("Statistics"):
        statistics = plan_statistics(found.plan)
        outlook = upload_outlook(
            found.exchanges, found.scenario, vector_sizes(found.scenario.learning)[0], options.seed
        )
    written = [str(file) for file in (options.save, options.one_file, options.out, options.plot) if file is not None]
    if options.save is not None:
        save_plan(found.plan, options.save)
    if options.one_file is not None:
        export_one(found.plan, options.one_file)
    if options.out is not None:
        write_contacts(found.plan, options.out)
    if options.plot is not None:
        from wayfare.report.contact_figures import plot_contacts

        title = f"{found.name}: {statistics.devices} devices, range {found.scenario.radio.range_m:g} m"
        plot_contacts(found.plan, statistics, options.plot, title=title, names=found.devices)
    if options.as_json:
        print_json(_inspection(found, statistics, outlook, options.seed, written))
    else:
        print_inspection(output, found, statistics, outlook, written)


def _inspection(
    found: SourcedPlan, statistics: PlanStatistics, outlook: UploadOutlook, seed: int, written: list[str]
) -> dict[str, Any]:
    def times(of: Distribution) -> dict[str, Any]:
        shown = {name: getattr(of, name) for name in ("count", "cut", "mean_s", "quantiles_s")}
        return shown | {"exponential": of.fit and asdict(of.fit)}

    counts = ("contacts", "device_contacts", "devices_without_contact", "contacts_per_device", "time_in_contact_share")
    return {
        "source": found.name,
        "kind": found.kind,
        "seed": seed,
        "server": found.server,
        "device_names": list(found.devices),
        "devices": statistics.devices,
        "duration_s": statistics.duration_s,
        "range_m": found.scenario.radio.range_m,
        **{name: getattr(statistics, name) for name in counts},
        "exchanges": len(found.exchanges.with_server()),
        "contact": times(statistics.contact),
        "inter_contact": times(statistics.inter_contact),
        "verdict": verdict_sentence(statistics),
        "upload": asdict(outlook),
        "skipped_lines": found.skipped,
        "notes": list(found.notes),
        "written": written,
    }


def _point(point: SpeedPoint) -> dict[str, Any]:
    return asdict(point) | {"contact_m": point.contact_m, "inter_contact_m": point.inter_contact_m}
