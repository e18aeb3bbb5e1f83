"""`wayfare sweep`: run a study on this machine or on a Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wayfare.cli.execution import WORKERS, takes_execution
from wayfare.cli.results import print_sweep
from wayfare.cli.terminal import JobsOption, JsonOption, OutOption, RunProgress, listing, output, print_json
from wayfare.errors import InputError, ScenarioError
from wayfare.forking import start_early
from wayfare.places import RUNS
from wayfare.progress import duration_text

if TYPE_CHECKING:
    from wayfare.records import RunRecord
    from wayfare.studies.on_ray import RayCluster
    from wayfare.studies.single import Execution
    from wayfare.studies.sweeping import Outlook


@takes_execution
def sweep_command(
    study: Annotated[
        str | None, typer.Argument(metavar="[PRESET|STUDY.toml]", help="A study preset or a study file.")
    ] = None,
    jobs: JobsOption = None,
    ray: Annotated[str | None, typer.Option("--ray", metavar="auto|ADDRESS", help="Run on a Ray cluster.")] = None,
    cpus_per_run: Annotated[float, typer.Option(help="CPUs per run on a Ray cluster.")] = 1.0,
    gpus_per_run: Annotated[
        float | None, typer.Option(help="GPUs per run on a Ray cluster, e.g. 0.25; default with --device cuda: 1.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which runs are missing and how long they will take.")
    ] = False,
    list_presets: Annotated[bool, typer.Option("--list-presets", help="List the built-in studies.")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard files into the study's folder.")
    ] = False,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
    *,
    make_execution: Callable[[], Execution],
) -> None:
    """Run a study and print its table.

    Finished runs are reused. To resume an interrupted sweep or repeat failed runs, give the same command again.

    Examples: `wayfare sweep schemes-by-speed --jobs 2`, `wayfare sweep my_study.toml --ray auto`
    """
    if list_presets:
        _list_presets(as_json)
        return
    if study is None:
        raise InputError("name a study preset or a study file; `wayfare sweep --list-presets` lists the presets")
    if ray is not None and jobs is not None:
        raise ScenarioError("--jobs", jobs, "cannot be combined with --ray, which uses the whole cluster")
    from wayfare.studies.source import study_text

    # A misspelt study is reported before PyTorch is imported, which takes seconds.
    study_text(study)
    if ray is None and not dry_run:
        start_early(WORKERS, jobs)
    from wayfare.studies.study import load_study
    from wayfare.studies.sweeping import outlook, study_folder, sweep

    plan, execution = load_study(study), make_execution()
    cluster = None if ray is None else _cluster(ray, execution, cpus_per_run, gpus_per_run)
    if dry_run:
        workers = cluster.slots() if cluster else jobs
        _print_outlook(outlook(plan, out=out, execution=execution, workers=workers), as_json)
        return
    with RunProgress() as progress:
        done = sweep(
            plan,
            out=out,
            jobs=jobs,
            execution=execution,
            backend=cluster,
            progress=progress,
            on_record=_tensorboard(study_folder(plan, out)) if tensorboard else None,
        )
    print_sweep(done, as_json=as_json)


def _cluster(address: str, execution: Execution, cpus: float, gpus: float | None) -> RayCluster:
    from wayfare.studies.jobs import Shared
    from wayfare.studies.on_ray import Needs, RayCluster

    if gpus is None:
        gpus = 1.0 if execution.device.startswith("cuda") else 0.0
    return RayCluster(address, Shared(execution=execution), Needs(cpus=cpus, gpus=gpus))


def _tensorboard(folder: Path) -> Callable[[Path, RunRecord], None]:
    from wayfare.studies.export import write_tensorboard

    def write(run: Path, record: RunRecord) -> None:
        target = folder / "tensorboard" / run.name
        if not target.exists():
            write_tensorboard(record, target)

    return write


def _list_presets(as_json: bool) -> None:
    from wayfare.studies.single import Execution
    from wayfare.studies.source import study_presets
    from wayfare.studies.store import distinct_runs
    from wayfare.studies.study import load_study

    plans = [load_study(name) for name in study_presets()]
    runs = [distinct_runs(plan, Execution()) for plan in plans]
    if as_json:
        listed = [
            {"name": plan.study.name, "title": plan.study.title, "varies": plan.axes, "runs": count}
            for plan, count in zip(plans, runs, strict=True)
        ]
        print_json({"presets": listed})
        return
    rows = [(plan.study.name, plan.study.title, str(count)) for plan, count in zip(plans, runs, strict=True)]
    output.print(listing(("name", "question", "runs"), rows))


def _print_outlook(found: Outlook, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "folder": str(found.folder),
                "finished": len(found.finished),
                "workers": found.workers,
                "estimated_s": found.seconds,
                "waiting": [
                    {"key": run.key, "scheme": run.scheme, "seed": run.seed, **found.manifest.points[run.point]}
                    for run in found.waiting
                ],
            }
        )
        return
    done, left = (Counter((run.point, run.scheme) for run in runs) for runs in (found.finished, found.waiting))
    rows = [
        (
            found.manifest.point_name(point) or "-",
            scheme,
            *(str(runs[point, scheme] or nothing) for runs in (done, left)),
        )
        for point in range(len(found.manifest.points))
        for scheme in found.manifest.schemes
        for nothing in ["0" if done[point, scheme] or left[point, scheme] else "="]
    ]
    output.print(listing(("point", "scheme", "finished", "to run"), rows))
    if any("=" in row for row in rows):
        output.print(
            "=  reuses the runs of an earlier point: the scheme does not use the settings that differ", highlight=False
        )
    if not found.waiting:
        time = "all are finished"
    elif found.seconds is None:
        time = "no estimate of the time before the first run is finished"
    else:
        time = f"about {duration_text(found.seconds)} with {found.workers} at a time, estimated from finished runs"
    output.print(f"{len(found.waiting)} of {len(found.manifest.distinct)} runs to do: {time}", highlight=False)
