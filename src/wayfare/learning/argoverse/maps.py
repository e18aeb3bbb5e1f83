"""Lane graphs from files: the official HD map (XML) and road graphs in navmap's JSON.

The HD map has lanes with neighbours, turns and traffic control. A road graph has only nodes and directed edges; every
direction of a road becomes a lane along its centre, without neighbours and flags.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.arrays import Floats
from wayfare.errors import InputError
from wayfare.learning.argoverse.lanes import Lane, LaneGraph, joined, lane_graph
from wayfare.learning.argoverse.sequence import CITIES

_SHORTEST_M = 1e-3


def map_files(kind: str, folder: Path | None) -> dict[str, Path]:
    """The map file of every city that has one: ``MIA.json``, or ``pruned_argoverse_MIA_*_vector_map.xml``."""
    if kind == "none":
        return {}
    if folder is None:
        raise InputError(f"a {kind} map needs the folder of its files (learning.argoverse.map_folder)")
    pattern = {"navmap": "{}.json", "hd": "pruned_argoverse_{}_*_vector_map.xml"}[kind]
    found = {city: sorted(folder.glob(pattern.format(city))) for city in CITIES}
    files = {city: paths[0] for city, paths in found.items() if paths}
    if not files:
        raise InputError(f"{folder}: contains no {kind} map ({', '.join(pattern.format(city) for city in CITIES)})")
    return files


def read_maps(kind: str, files: Mapping[str, Path], spacing_m: float) -> LaneGraph:
    read = {"navmap": read_navmap, "hd": read_hd_map}
    return joined(lane_graph(read[kind](path), spacing_m, CITIES.index(city)) for city, path in files.items())


def read_navmap(path: Path) -> list[Lane]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a road graph in JSON: {error}") from None
    return navmap_lanes(data, str(path))


def navmap_lanes(data: Any, name: str) -> list[Lane]:
    """Every directed edge of networkx's adjacency data as a lane; its successors are the next edges except U-turns."""
    try:
        nodes = {node["id"]: (float(node["x"]), float(node["y"])) for node in data["nodes"]}
        ends = [
            (node["id"], after["id"])
            for node, around in zip(data["nodes"], data["adjacency"], strict=True)
            for after in around
        ]
        lines = {pair: np.array([nodes[pair[0]], nodes[pair[1]]]) for pair in ends}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{name}: not a road graph: needs `nodes` with id, x and y, and `adjacency` with a list of ids per node "
            f"({type(error).__name__}: {error})"
        ) from None
    lines = {pair: line for pair, line in lines.items() if _usable(line)}
    index_of = {pair: index for index, pair in enumerate(lines)}
    leaving: dict[Any, list[Any]] = {}
    for begin, end in lines:
        leaving.setdefault(begin, []).append(end)
    return [
        Lane(line_m=line, successors=[index_of[end, after] for after in leaving.get(end, ()) if after != begin])
        for (begin, end), line in lines.items()
    ]


def read_hd_map(path: Path) -> list[Lane]:
    """The lanes of an official vector map, without references to lanes that were pruned."""
    try:
        root = ET.parse(path).getroot()
        points = {
            node.attrib["id"]: (float(node.attrib["x"]), float(node.attrib["y"])) for node in root.iterfind("node")
        }
        ways = {way.attrib["lane_id"]: way for way in root.iterfind("way")}
        lines = {
            name: np.array([points[point.attrib["ref"]] for point in way.iterfind("nd")]).reshape(-1, 2)
            for name, way in ways.items()
        }
    except (OSError, ET.ParseError) as error:
        raise InputError(f"{path}: not an XML map: {error}") from None
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not an Argoverse vector map ({type(error).__name__}: {error})") from None
    lines = {name: line for name, line in lines.items() if _usable(line)}
    if not lines:
        raise InputError(f"{path}: contains no lanes (<way lane_id=...> with <nd ref=...>)")
    index_of = {name: index for index, name in enumerate(lines)}
    return [_hd_lane(ways[name], line, index_of) for name, line in lines.items()]


def _hd_lane(way: ET.Element, line: Floats, index_of: Mapping[str, int]) -> Lane:
    def values(key: str) -> Iterator[str]:
        return (tag.attrib.get("v", "") for tag in way.iterfind("tag") if tag.attrib.get("k") == key)

    def neighbour(key: str) -> int | None:
        return next((index_of[value] for value in values(key) if value in index_of), None)

    turn = next(values("turn_direction"), "NONE")
    return Lane(
        line_m=line,
        successors=[index_of[value] for value in values("successor") if value in index_of],
        left=neighbour("l_neighbor_id"),
        right=neighbour("r_neighbor_id"),
        flags=(
            turn == "LEFT",
            turn == "RIGHT",
            next(values("has_traffic_control"), "") == "True",
            next(values("is_intersection"), "") == "True",
        ),
    )


def _usable(line: Floats) -> bool:
    return len(line) > 1 and bool(np.all(np.isfinite(line))) and np.hypot(*np.diff(line, axis=0).T).sum() > _SHORTEST_M
