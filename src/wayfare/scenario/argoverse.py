"""The scenario section `learning.argoverse`: scenes, map and network of the LaneGCN task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from wayfare.scenario.section import Positive, Section

PREPARED = "scenes.npz"
"""The file of prepared scenes. Wayfare reads it instead of a folder's sequences: 9 MB instead of 320."""


class Argoverse(Section):
    """Motion forecasting: sequences, map, content of a scene, and size of the network."""

    # A folder with train/data/*.csv and val/data/*.csv, or with prepared scenes (scenes.npz), or such a file.
    # Without it the scenes are synthetic.
    folder: Annotated[str, Field(min_length=1)] | None = None
    # Number of synthetic training scenes; a quarter as many are test scenes.
    synthetic_scenes: Annotated[int, Field(ge=4)] = 800
    # `hd` is the official map; `navmap` is a road graph without lanes.
    map: Literal["none", "navmap", "hd"] = "navmap"
    # The folder of the map files; required for sequences with a map.
    map_folder: Annotated[str, Field(min_length=1)] | None = None
    # Road users within this distance of the agent are part of the scene.
    actor_radius_m: Positive = 60.0
    # Lane segments within this distance of the agent are part of the scene.
    lane_radius_m: Positive = 80.0
    # The length of a lane segment.
    lane_spacing_m: Positive = 8.0
    # Features in each layer of the network.
    width: Annotated[int, Field(ge=8, multiple_of=4)] = 128
    # K: number of predicted futures per road user.
    modes: Annotated[int, Field(ge=1, le=32)] = 6

    @property
    def prepared_file(self) -> Path | None:
        """The file of prepared scenes, or None if the folder has only sequences."""
        if self.folder is None:
            return None
        folder = Path(self.folder)
        prepared = folder if folder.suffix == ".npz" else folder / PREPARED
        return prepared if prepared is folder or prepared.is_file() else None

    @model_validator(mode="after")
    def _map_is_there(self) -> Argoverse:
        real = self.folder is not None and not self.folder.endswith(".npz")
        if real and self.map != "none" and self.map_folder is None:
            raise ValueError(f"map = {self.map!r} needs a map_folder; map = 'none' needs none")
        if not real and self.map == "hd":
            raise ValueError("map = 'hd' needs a folder of sequences and a map_folder")
        return self
