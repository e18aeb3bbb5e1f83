"""`wayfare field check`: a task and a folder of data, before there is a fleet."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from wayfare.cli.field_demo import SchemeOption, task_setting, work_of
from wayfare.cli.field_life import ScenarioOption
from wayfare.cli.terminal import JsonOption, ReadingBar, SetOption, print_json, say
from wayfare.scenario import FIELD_PRESET


def check_command(
    task: Annotated[str, typer.Option("--task", metavar="FILE.py[:NAME]", help="Your task, built with `local_task`.")],
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="The folder with the data of one device.")],
    steps: Annotated[int, typer.Option("--steps", min=1, help="Number of local steps.")] = 1000,
    scenario: ScenarioOption = FIELD_PRESET,
    set_: SetOption = [],  # noqa: B006
    scheme: SchemeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try a task on a folder of data, without a fleet: which files count, and whether the network learns from them.

    Example: `wayfare field check --task EXAMPLE/task.py --data EXAMPLE/data/bus-1`
    """
    from wayfare.field.runtime.trial import try_folder

    work, bar = work_of(scenario, [*set_, *task_setting(task)], 0, scheme), ReadingBar()
    try:
        found = try_folder(work, data, steps=steps, progress=lambda done, total: bar("local steps", done, total))
    finally:
        bar.stop()
    if as_json:
        print_json({**asdict(found), "learned": found.learned})
        return
    classes = "".join(f", {count:,} {name}" for name, count in found.classes.items())
    say(f"{found.task}: {found.entries:,} parameters, {4e-6 * found.entries:.2f} MB")
    say(f"{data}: {found.samples:,} samples{classes}")
    rate = f"learning rate {found.learning_rate:g}, batches of {found.batch_size}"
    say(f"after {found.steps:,} local steps ({rate}), on the same data:")
    if found.metric != "loss":
        say(f"  {found.metric} {found.before.score:.4g} -> {found.after.score:.4g}")
    losses = f"{found.before.loss:.4g} -> {found.after.loss:.4g}"
    say(f"  loss {losses}; {found.blind_loss:.4g} without looking at the inputs")
    if not found.learned:
        say("The network has learned nothing from the inputs. Try another learning.learning_rate, or more --steps.")
