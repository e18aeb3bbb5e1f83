"""A table and a figure of the training samples on every device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from wayfare.arrays import Ints
from wayfare.contacts import device_names
from wayfare.learning.partition import class_counts
from wayfare.learning.tasks import class_names, load_task
from wayfare.report.canvas import wide_figure
from wayfare.scenario import Scenario
from wayfare.studies.store import value_text
from wayfare.world import held_samples

# Ten colours whose neighbours colour-blind readers can distinguish (Tol's muted scheme and grey).
_COLOURS = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"),
)
_LONGEST_NAME = 10
# Maximum number of tick labels in a figure of up to 16 inches.
_MOST_LABELS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """The number of training samples of each class on every device."""

    scenario: str
    partition: str
    devices: tuple[str, ...]
    classes: tuple[str, ...]
    counts: Ints  # (devices, classes)

    @property
    def largest_share_mean(self) -> float:
        """The share of a device's most common class, averaged over devices: a measure of skew."""
        return float((self.counts.max(axis=1) / self.counts.sum(axis=1)).mean())


def holdings_of(scenario: Scenario, seed: int) -> Holdings:
    task, partition = load_task(scenario.learning), scenario.learning.partition
    labels = task.class_of_samples()
    detail = ", ".join(f"{key} {value_text(value)}" for key, value in partition.model_dump(exclude={"kind"}).items())
    return Holdings(
        scenario=scenario.name,
        partition=partition.kind + (f", {detail}" if detail else ""),
        devices=device_names(scenario) or tuple(map(str, range(scenario.fleet.devices))),
        classes=class_names(task),
        counts=class_counts(labels, task.classes, held_samples(scenario, task, seed)),
    )


def holdings_table(held: Holdings) -> Group:
    title = (
        f"{held.scenario}: {held.partition}; "
        f"the most common class has {100 * held.largest_share_mean:.0f} % of a device's samples"
    )
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("device", justify="right")
    for name in held.classes:
        table.add_column(name[:_LONGEST_NAME], justify="right", no_wrap=True)
    table.add_column("all", justify="right", style="bold")
    for device, counts in zip(held.devices, held.counts, strict=True):
        cells = [f"{count}" if count else "" for count in counts]
        largest = int(np.argmax(counts))
        cells[largest] = f"[bold]{cells[largest]}[/bold]"
        table.add_row(escape(device), *cells, f"{counts.sum()}")
    return Group(Text(title, "bold"), table)


def plot_holdings(held: Holdings, file: Path) -> None:
    devices = len(held.counts)
    with wide_figure(file, width_in=8.0, height_in=min(1.4 + 0.22 * devices, 16.0)) as figure:
        axes = figure.add_subplot()
        left = np.zeros(devices, dtype=np.int64)
        for index, (name, counts) in enumerate(zip(held.classes, held.counts.T, strict=True)):
            colour, hatch = _COLOURS[index % len(_COLOURS)], "//" if index >= len(_COLOURS) else None
            axes.barh(np.arange(devices), counts, left=left, color=colour, hatch=hatch, label=name, height=0.8)
            left += counts
        axes.set(xlabel="training samples", ylabel="device", ylim=(devices - 0.5, -0.5))
        every = -(-devices // _MOST_LABELS)
        axes.set_yticks(range(0, devices, every), held.devices[::every])
        axes.set_title(f"{held.scenario}: {held.partition}")
        axes.grid(False)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
