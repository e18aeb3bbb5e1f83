"""A cache of prepared scenes, so that a folder of sequences is read only once.

The file name is a hash of the folder's listing (names, sizes, modification times), the map files and the settings.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from wayfare.errors import InputError
from wayfare.files import open_atomically
from wayfare.learning.argoverse.lanes import LaneGraph
from wayfare.learning.argoverse.maps import map_files, read_maps
from wayfare.learning.argoverse.scenes import LaneFinder, Scenes, SceneSettings, gathered, scene_of
from wayfare.learning.argoverse.sequence import SPLITS, Sequence, read_sequence, sequence_files
from wayfare.progress import report_progress

# Increased whenever the meaning of a prepared file changes.
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Training and validation scenes with their common lane graph."""

    train: Scenes
    val: Scenes
    lanes: LaneGraph

    def without_lanes(self) -> Prepared:
        train, val = (
            replace(scenes, first_lane=np.zeros_like(scenes.first_lane), lanes=scenes.lanes[:0])
            for scenes in (self.train, self.val)
        )
        return Prepared(train=train, val=val, lanes=LaneGraph())


def prepared_scenes(
    folder: Path, map_kind: str, map_folder: Path | None, settings: SceneSettings, cache_folder: Path
) -> Prepared:
    """The scenes of a folder in the official layout, from the cache if nothing has changed."""
    files = {split: sequence_files(folder, split) for split in SPLITS}
    maps = map_files(map_kind, map_folder)
    cached = cache_folder / f"argoverse-{_key(files, map_kind, maps, settings)}.npz"
    if cached.is_file():
        try:
            return load_prepared(cached)
        except InputError:
            # The cached file is damaged: prepare it again from its sources.
            pass
    prepared = prepare(files, map_kind, maps, settings)
    save_prepared(cached, prepared)
    return prepared


def prepare(
    files: Mapping[str, list[Path]], map_kind: str, maps: Mapping[str, Path], settings: SceneSettings
) -> Prepared:
    graph = read_maps(map_kind, maps, settings.lane_spacing_m) if maps else LaneGraph()
    finder = LaneFinder(graph)
    total, done = sum(map(len, files.values())), 0
    scenes = {}
    for split, paths in files.items():
        parts = []
        for path in paths:
            parts.append(scene_of(read_sequence(path), finder, settings, str(path)))
            done += 1
            report_progress("reading sequences", done, total)
        scenes[split] = gathered(parts)
    return Prepared(train=scenes["train"], val=scenes["val"], lanes=graph)


def prepared_from(
    train: Iterable[Sequence], val: Iterable[Sequence], lanes: LaneGraph, settings: SceneSettings
) -> Prepared:
    """Scenes of sequences in memory."""
    finder = LaneFinder(lanes)
    parts = {
        split: gathered([scene_of(one, finder, settings, f"{split} {index}") for index, one in enumerate(sequences)])
        for split, sequences in (("train", train), ("val", val))
    }
    return Prepared(train=parts["train"], val=parts["val"], lanes=lanes)


def save_prepared(path: Path, prepared: Prepared) -> None:
    arrays: dict[str, np.ndarray] = {"format": np.array(_FORMAT)}
    for part in fields(Prepared):
        value = getattr(prepared, part.name)
        for entry in fields(value):
            arrays[f"{part.name}.{entry.name}"] = _compact(np.asarray(getattr(value, entry.name)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_atomically(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_prepared(path: Path) -> Prepared:
    """Read a file of prepared scenes; raise InputError if it is damaged or from another version."""
    try:
        # Open it here, because NumPy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        if int(arrays["format"]) != _FORMAT:
            raise InputError(f"{path}: prepared by another version of Wayfare; prepare it again")
        parts = {part: {f.name: arrays[f"{part}.{f.name}"] for f in fields(Scenes)} for part in ("train", "val")}
        lanes = LaneGraph(**{f.name: _wide(arrays[f"lanes.{f.name}"]) for f in fields(LaneGraph)})
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: damaged, or not a file of prepared scenes: {error}") from None
    return Prepared(train=_scenes(parts["train"]), val=_scenes(parts["val"]), lanes=lanes)


def _scenes(arrays: dict[str, np.ndarray]) -> Scenes:
    names = tuple(arrays.pop("names").tolist())
    tracks = arrays.pop("tracks")
    return Scenes(names=names, tracks=tracks, **{name: _wide(array) for name, array in arrays.items()})


def _compact(array: np.ndarray) -> np.ndarray:
    """Integers in 32 bits, which halves the file."""
    return array.astype(np.int32) if array.dtype == np.int64 else array


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int64) if array.dtype == np.int32 else array


def _key(files: Mapping[str, list[Path]], map_kind: str, maps: Mapping[str, Path], settings: SceneSettings) -> str:
    """A hash of sixteen characters over all sources of the scenes."""
    sources = {**files, "maps": list(maps.values())}
    listing = {
        split: [(path.name, stat.st_size, stat.st_mtime_ns) for path in paths if (stat := path.stat())]
        for split, paths in sources.items()
    }
    everything = {"format": _FORMAT, "map": map_kind, "settings": asdict(settings), "files": listing}
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:16]
