"""Writes the records of one run."""

from __future__ import annotations

import json
import platform
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from wayfare.errors import RunFolderError
from wayfare.records.schema import CONTACT_COLUMNS, EVALUATION_COLUMNS, FILE, METRIC_COLUMNS, TABLES, VERSION
from wayfare.schemes import Scheme
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, World
from wayfare.version import __version__


class RunWriter:
    """An observer that keeps everything. The folder appears under its own name only when the run is whole.

    Until then its records lie in ``<folder>.partial``, where they can be read while the run goes on.
    """

    def __init__(self, folder: Path, world: World, scheme: Scheme) -> None:
        self._folder, self._partial = folder, folder.with_name(folder.name + ".partial")
        try:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir(parents=True)
        except OSError as error:
            raise RunFolderError(f"{self._partial}: cannot write here: {error.strerror}") from None
        self._database = sqlite3.connect(self._partial / FILE)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(TABLES)
        self._rows: list[tuple[object, ...]] = []
        self._meta(
            {
                "version": VERSION,
                "scenario": world.scenario.model_dump(mode="json"),
                "scheme": scheme.name,
                "energy_rule": getattr(scheme, "energy_rule", "unlimited"),
                "seed": world.seed,
                "parameters": world.link.parameters,
                "metric": asdict(world.task.metric),
                "status": "running",
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": {
                    "wayfare": __version__,
                    "torch": torch.__version__,
                    "numpy": np.__version__,
                    "python": platform.python_version(),
                },
            }
        )
        labels = world.task.class_of_samples()
        counts = [np.bincount(labels[held], minlength=world.task.classes).tolist() for held in world.held]
        self._database.executemany(
            "INSERT INTO devices VALUES (?, ?, ?, ?)",
            [
                (device, float(budget), len(world.held[device]), json.dumps(counts[device]))
                for device, budget in enumerate(world.budgets_joules)
            ],
        )
        self._database.commit()

    def on_contact(self, event: ContactEvent) -> None:
        """Keep a contact; it is written with the next evaluation."""
        self._rows.append(astuple(event))

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        """Write an evaluation and every contact before it, in one transaction."""
        with self._database:
            self._database.executemany(_insert("contacts", len(CONTACT_COLUMNS)), self._rows)
            self._database.execute(_insert("evaluations", len(EVALUATION_COLUMNS)), astuple(event))
            self._database.executemany(_insert("metrics", len(METRIC_COLUMNS)), [astuple(other) for other in others])
        self._rows.clear()

    def on_round(self, round_: int) -> None:
        """Nothing: rounds leave their traces in contacts and evaluations."""

    def finish(self, model: Tensor, rounds: int, wall_s: float) -> None:
        """Add the final model and give the folder its name."""
        with self._database:
            vector = model.cpu().numpy().astype("<f4").tobytes()
            self._database.execute("INSERT INTO model VALUES (?, ?)", (rounds, vector))
            self._meta({"status": "finished", "wall_s": round(wall_s, 3)})
        self._database.execute("PRAGMA journal_mode = DELETE")
        self._database.close()
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._partial.rename(self._folder)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def _meta(self, values: dict[str, object]) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, json.dumps(value)) for key, value in values.items()]
        )


def _insert(table: str, columns: int) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"
