"""The section of a scenario that says which scenes LaneGCN learns from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from wayfare.scenario.section import Positive, Section

PREPARED = "scenes.npz"
"""Prepared scenes in a folder stand for its sequences: 9 MB that travel to a machine instead of 320."""


class Argoverse(Section):
    """Motion forecasting: where the sequences and the map are, what a scene holds, and the size of the network."""

    # Holds train/data/*.csv and val/data/*.csv, or scenes.npz, prepared ones; or is such a file. Without it: synthetic.
    folder: Annotated[str, Field(min_length=1)] | None = None
    # Of synthetic scenes: so many to train on, a quarter of that to be judged by.
    synthetic_scenes: Annotated[int, Field(ge=4)] = 800
    # `hd` is the official map, `navmap` a graph of roads without lanes.
    map: Literal["none", "navmap", "hd"] = "navmap"
    # Where the map files are; a folder of sequences with a map needs it.
    map_folder: Annotated[str, Field(min_length=1)] | None = None
    # Road users within this distance of the agent are part of the scene.
    actor_radius_m: Positive = 60.0
    # Pieces of lane within this distance of the agent are part of the scene.
    lane_radius_m: Positive = 80.0
    # The length of a piece of lane.
    lane_spacing_m: Positive = 8.0
    # Features in each layer of the network.
    width: Annotated[int, Field(ge=8, multiple_of=4)] = 128
    # K: futures for every road user.
    modes: Annotated[int, Field(ge=1, le=32)] = 6

    @property
    def prepared_file(self) -> Path | None:
        """The file of prepared scenes that is read instead of sequences, if there is one."""
        if self.folder is None:
            return None
        folder = Path(self.folder)
        prepared = folder if folder.suffix == ".npz" else folder / PREPARED
        return prepared if prepared is folder or prepared.is_file() else None

    @model_validator(mode="after")
    def _map_is_there(self) -> Argoverse:
        real = self.folder is not None and not self.folder.endswith(".npz")
        if real and self.map != "none" and self.map_folder is None:
            raise ValueError(f"map = {self.map!r} needs a map_folder; map = 'none' does without")
        if not real and self.map == "hd":
            raise ValueError("map = 'hd' needs a folder of sequences and a map_folder")
        return self
