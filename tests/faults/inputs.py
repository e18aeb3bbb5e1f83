"""Fuzzed inputs for every reader: each loads, or raises one of our errors.

A fuzzer is a strategy for inputs and a function that reads them. Another exception than `InputError`, more than five
seconds or too much memory is a fault.
"""

from __future__ import annotations

import io
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import wayfare
from tests.conftest import SMALL
from tests.mobility.traces.test_trace_fuzz import TEXTS, whole_files
from wayfare.contacts import opportunities
from wayfare.contacts.store import load_plan
from wayfare.errors import InputError
from wayfare.learning.argoverse.maps import read_hd_map, read_navmap
from wayfare.learning.argoverse.sequence import read_sequence, write_sequence
from wayfare.learning.argoverse.synthetic import synthetic_sequence
from wayfare.learning.data.cache import read_archive
from wayfare.learning.data.decode import decode, layouts
from wayfare.learning.data.sets import IMAGE_SETS
from wayfare.mobility.traces import read_recording, select
from wayfare.records import RunRecord, find_unfinished, read_run, reject_changes, reopen
from wayfare.scenario import load, preset_names
from wayfare.studies.resuming import recorded_inputs
from wayfare.world import World, draw_world

LONGEST_S = 5.0
META_KEYS = (
    *("scenario", "scheme", "seed", "version", "status", "execution", "world", "sessions", "metric", "wall_s", "seal"),
    *("identity", "energy_rule", "parameters", "versions", "notes"),
)


@dataclass(frozen=True, kw_only=True)
class Fuzzer:
    """A strategy for inputs, and their reader."""

    given: st.SearchStrategy[Any]
    take: Callable[[Any, Path], object]


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Valid files to start from."""

    record: RunRecord
    finished: bytes
    partial: Mapping[str, bytes]
    meta: Mapping[str, Any]
    world: World


class PowerCutError(Exception):
    """Ends a run in the middle."""


def loads_or_says_why(fuzzer: Fuzzer, given: Any, folder: Path) -> bool:
    """Whether an input was accepted. A rejected one raises one of our errors, with one line of text and in time."""
    # Of this process alone: how busy the machine is says nothing of an input.
    began, refused = time.process_time(), None
    try:
        fuzzer.take(given, folder)
    except InputError as error:
        refused = str(error)
    elapsed_s = time.process_time() - began
    assert elapsed_s < LONGEST_S, f"took {elapsed_s:.1f} s"
    assert refused is None or (refused and "\n" not in refused), f"not an error in one line: {refused!r}"
    return refused is None


def examples(folder: Path) -> Examples:
    """A finished run and an interrupted one, created once."""
    scenario = wayfare.load("fashion-small", [*SMALL, "rounds=30", "learning.hidden=[4]"])
    execution = wayfare.Execution(safeguards=wayfare.Safeguards(checkpoint_every_rounds=10))
    finished = wayfare.run(scenario, "mads", out=folder / "finished", execution=execution)

    def cut(round_: int) -> None:
        if round_ == 25:
            raise PowerCutError

    with suppress(PowerCutError):
        wayfare.run(scenario, "mads", out=folder / "partial", execution=execution, on_round=cut)
    (partial,) = (folder / "partial").rglob("*.partial")
    unfinished = find_unfinished(partial.with_name(partial.name.removesuffix(".partial")))
    assert unfinished is not None
    return Examples(
        meta=unfinished.meta,
        record=finished,
        finished=(finished.folder / "run.sqlite").read_bytes(),
        partial={file.name: file.read_bytes() for file in partial.iterdir()},
        world=draw_world(scenario, 0),
    )


# Pieces.

number_text = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(repr),
    st.sampled_from(["1e999", "-0", "0x1f", "1_000", "nan", "inf", "1e-320", "9" * 400, "", "true"]),
)
value_text = st.one_of(
    number_text,
    st.text(max_size=12).map(json.dumps),
    st.sampled_from(["[]", "{}", "[1, [2]]", "1979-05-27", "07:32:00", '"waypoint"', "[0.0, nan]", "''", "{a=1}"]),
    st.lists(number_text, max_size=4).map(lambda values: "[" + ", ".join(values) + "]"),
)
key_text = st.one_of(
    st.sampled_from(
        [
            *(
                "name",
                "rounds",
                "round_s",
                "fleet.devices",
                "fleet",
                "mobility.model",
                "mobility.file",
                "radio.range_m",
            ),
            *(
                "learning.partition.kind",
                "learning.hidden",
                "control",
                "extends",
                "mobility.server.kind",
                "schemes",
                "a.b",
            ),
        ]
    ),
    st.text(max_size=8),
)


@st.composite
def scenario_files(draw: st.DrawFn) -> str:
    """The lines of a preset, some gone, some with other values, some new."""
    presets = files("wayfare.scenario") / "presets"
    lines = (presets / f"{draw(st.sampled_from(preset_names()))}.toml").read_text(encoding="utf-8").splitlines()
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(lines)))
        key, equals, _ = lines[place].partition("=") if place < len(lines) else ("", "", "")
        match draw(st.sampled_from(["value", "key", "line", "drop", "section"])):
            case "value" if equals:
                lines[place] = f"{key}= {draw(value_text)}"
            case "key" if equals:
                lines[place] = f"{draw(key_text)} = {draw(value_text)}"
            case "drop" if place < len(lines):
                del lines[place]
            case "section":
                sections = ["[fleet]", "[mobility]", "[[radio]]", "[learning.partition]", "[x"]
                lines.insert(place, draw(st.sampled_from(sections)))
            case _:
                lines.insert(place, f"{draw(key_text)} = {draw(value_text)}")
    return "\n".join(lines)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """A file with some bytes changed, some put in, and perhaps its end gone."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(changed) - 1, 0)))
        match draw(st.sampled_from(["flip", "set", "insert", "cut", "zero"])):
            case "flip" if changed:
                changed[place] ^= 1 << draw(st.integers(0, 7))
            case "set" if changed:
                changed[place] = draw(st.integers(0, 255))
            case "insert":
                changed[place:place] = draw(st.binary(max_size=20))
            case "cut":
                del changed[place:]
            case "zero":
                end = min(place + draw(st.integers(1, 4096)), len(changed))
                changed[place:end] = bytes(end - place)
    return bytes(changed)


columns = st.one_of(
    st.lists(st.integers(-3, 30), max_size=6).map(lambda values: np.array(values, dtype=np.int64)),
    st.lists(st.floats(), max_size=6).map(lambda values: np.array(values, dtype=np.float64)),
    st.lists(st.text(max_size=3), max_size=3).map(np.array),
    st.integers(-(2**63), 2**63 - 1).map(np.array),
    st.floats().map(np.array),
    st.sampled_from([np.array(None), np.array([[1, 2]]), np.array("wayfare contact plan"), np.array(1), np.array(1j)]),
)


@st.composite
def plan_files(draw: st.DrawFn) -> bytes:
    """A saved plan with some invalid arrays."""
    rows = np.arange(8)
    arrays: dict[str, Any] = {
        "kind": np.array("wayfare contact plan"),
        "version": np.array(1),
        "devices": np.array(8),
        "duration_s": np.array(50.0),
        "device": rows,
        "peer": rows * 0 - 1,
        "start_s": rows * 1.0,
        "end_s": rows + 5.0,
        "distance_m": rows * 1.0,
    }
    for name in draw(st.lists(st.sampled_from(sorted(arrays)), max_size=3)):
        arrays[name] = draw(columns)
    for name in draw(st.lists(st.sampled_from(sorted(arrays)), max_size=1)):
        del arrays[name]
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


@st.composite
def sql_changes(draw: st.DrawFn) -> list[tuple[str, tuple[Any, ...]]]:
    """Changes to the tables of a run that Wayfare never makes."""
    leaf = st.none() | st.integers() | st.floats() | st.text(max_size=5)
    cell = st.one_of(
        st.none(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(max_size=20),
        st.binary(max_size=20),
        st.recursive(leaf, lambda inner: st.lists(inner, max_size=3), max_leaves=4).map(json.dumps),
        st.dictionaries(st.text(max_size=3), leaf, max_size=3).map(json.dumps),
    )
    tables = {
        "meta": ["value", "key"],
        "devices": ["budget_joules", "samples", "class_counts", "device"],
        "contacts": ["round", "device", "energy_joules", "completed"],
        "evaluations": ["round", "score", "loss"],
        "model": ["round", "float32_le"],
        "checkpoints": ["round", "file", "size_bytes", "sha256", "records", "wall_s", "pinned"],
    }
    changes: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(draw(st.integers(1, 3))):
        table = draw(st.sampled_from(sorted(tables)))
        match draw(st.sampled_from(["update", "update", "update", "delete", "drop"])):
            case "drop":
                changes.append((f"DROP TABLE IF EXISTS {table}", ()))
            case "delete":
                changes.append((f"DELETE FROM {table}", ()))
            case _ if table == "meta":
                key = draw(st.sampled_from(META_KEYS))
                changes.append(("UPDATE OR IGNORE meta SET value = ? WHERE key = ?", (draw(cell), key)))
            case _:
                column = draw(st.sampled_from(tables[table]))
                changes.append((f"UPDATE OR IGNORE {table} SET {column} = ?", (draw(cell),)))
    return changes


# Those who take them.


def take_file(read: Callable[[Path], object], name: str) -> Callable[[str | bytes, Path], object]:
    def take(content: str | bytes, folder: Path) -> object:
        file = folder / name
        file.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        return read(file)

    return take


def take_trace(file: Path) -> None:
    recording = read_recording(file)
    for server in (None, recording.names[0]):
        select(recording, devices=None, server=server, range_m=100.0)


def take_plan(file: Path) -> None:
    plan = load_plan(file)
    opportunities(plan, 10.0, 5)


def changed(file: Path, changes: list[tuple[str, tuple[Any, ...]]]) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        for statement, values in changes:
            try:
                database.execute(statement, values)
            except (sqlite3.Error, OverflowError):
                continue


def take_partial(sound: Examples, folder: Path) -> None:
    """The part of a resume before its first round."""
    found = find_unfinished(folder / "run")
    if found is None or found.is_complete:
        return
    recorded_inputs(folder / "run", found.meta)
    reject_changes(found, sound.meta)
    writer, _ = reopen(found, sound.world)
    writer.__exit__(None, None, None)


def fuzzers(sound: Examples, folder: Path) -> dict[str, Fuzzer]:
    """Every parser by name."""
    write_sequence(folder / "sequence.csv", synthetic_sequence(0, "train", 3))
    sequence = (folder / "sequence.csv").read_bytes()
    archive = io.BytesIO()
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(archive, **dict.fromkeys(names, np.zeros(3, np.uint8)))

    def lay(partial: Mapping[str, bytes], where: Path) -> Path:
        run = where / "run.partial"
        run.mkdir(exist_ok=True)
        for file in run.iterdir():
            file.unlink()
        for name, content in partial.items():
            (run / name).write_bytes(content)
        return run

    def damaged_run(given: tuple[str, bytes], where: Path) -> None:
        name, content = given
        lay({**sound.partial, name: content}, where)
        take_partial(sound, where)

    def changed_run(given: list[tuple[str, tuple[Any, ...]]], where: Path) -> None:
        changed(lay(sound.partial, where) / "run.sqlite", given)
        take_partial(sound, where)

    def pictures(given: tuple[str, list[bytes]], where: Path) -> None:
        name, contents = given
        for layout in layouts(name):
            decode(IMAGE_SETS[name], dict(zip(layout, contents, strict=False)), "somewhere")

    def finished_run(file: Path) -> None:
        """Accepted input has the written content."""
        found = read_run(file.parent)
        assert torch.equal(found.model, sound.record.model)
        assert (found.scenario, found.seed, found.meta) == (sound.record.scenario, sound.record.seed, sound.record.meta)
        for name, column in sound.record.contacts.items():
            assert np.array_equal(column, found.contacts[name])

    def changed_finished(given: list[tuple[str, tuple[Any, ...]]], where: Path) -> None:
        (where / "run.sqlite").write_bytes(sound.finished)
        changed(where / "run.sqlite", given)
        finished_run(where / "run.sqlite")

    partial_file = st.sampled_from(sorted(sound.partial)).flatmap(
        lambda name: st.tuples(st.just(name), damaged(sound.partial[name]))
    )
    traces = st.one_of(*TEXTS.values(), *(damaged(content) for content in whole_files()), st.binary(max_size=200))
    override = st.one_of(st.builds("{}={}".format, key_text, value_text), st.text(max_size=20))
    text_or_bytes = st.one_of(st.text(max_size=60), st.binary(max_size=60))
    hd_map = b'<ManyMaps><way lane_id="1"><nd ref="2"/></way></ManyMaps>'
    image_files = st.lists(st.binary(max_size=120), min_size=8, max_size=8)
    known: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any, Path], object]]] = {
        "scenario file": (scenario_files(), take_file(load, "s.toml")),
        "scenario text": (text_or_bytes, take_file(load, "s.toml")),
        "override": (st.lists(override, max_size=3), lambda given, _: load("fashion-small", given)),
        "trace": (traces, take_file(take_trace, "trace")),
        "contact plan": (plan_files(), take_file(take_plan, "plan.npz")),
        "damaged plan": (plan_files().flatmap(damaged), take_file(take_plan, "plan.npz")),
        "damaged finished run": (damaged(sound.finished), take_file(finished_run, "run.sqlite")),
        "changed finished run": (sql_changes(), changed_finished),
        "damaged unfinished run": (partial_file, damaged_run),
        "changed unfinished run": (sql_changes(), changed_run),
        "Argoverse sequence": (damaged(sequence), take_file(read_sequence, "1.csv")),
        "Argoverse map": (st.one_of(text_or_bytes, damaged(hd_map)), take_file(read_hd_map, "map.xml")),
        "Argoverse road graph": (text_or_bytes, take_file(read_navmap, "map.json")),
        "image set": (damaged(archive.getvalue()), take_file(lambda file: read_archive(file, "cifar10"), "a.npz")),
        "image files": (st.tuples(st.sampled_from(sorted(IMAGE_SETS)), image_files), pictures),
    }
    return {name: Fuzzer(given=given, take=take) for name, (given, take) in known.items()}
