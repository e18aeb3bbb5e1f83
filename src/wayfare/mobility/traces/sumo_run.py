"""Create and run a SUMO scenario: a street grid or a given network, N vehicles, floating car data.

SUMO comes with the extra ``sumo`` (the package eclipse-sumo). Every vehicle drives a random walk on the network that
lasts for the whole time, so the fleet keeps its size.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from wayfare.errors import InputError, RunError, ScenarioError, UnavailableError
from wayfare.streams import Stream, generator

# Routes are planned for the fastest car; a car at the end of its route would leave the fleet.
_FASTEST_MPS = 40.0
_LONGEST_ROUTE_EDGES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SumoScenario:
    """A SUMO simulation on a square grid of streets, or on your own network file."""

    vehicles: int = 20
    duration_s: float = 600.0
    grid_crossings: int = 6
    spacing_m: float = 200.0
    net_file: Path | None = None
    step_s: float = 1.0

    def __post_init__(self) -> None:
        rules = (
            ("vehicles", self.vehicles, 1 <= self.vehicles <= 100_000, "must be 1 to 100,000"),
            ("duration_s", self.duration_s, 0 < self.duration_s <= 1e7, "must be above 0 and at most 1e7"),
            ("grid_crossings", self.grid_crossings, 2 <= self.grid_crossings <= 200, "must be 2 to 200 a side"),
            ("spacing_m", self.spacing_m, 20 <= self.spacing_m <= 1e5, "must be 20 to 100,000"),
            ("step_s", self.step_s, 0.01 <= self.step_s <= 10, "must be 0.01 to 10"),
        )
        for name, value, holds, rule in rules:
            if not holds:
                raise ScenarioError(name, value, rule)


def sumo_home() -> Path:
    found = find_spec("sumo")
    for place in found.submodule_search_locations or () if found else ():
        if (Path(place) / "bin").is_dir():
            return Path(place)
    raise UnavailableError("SUMO is not installed: pip install 'wayfare[sumo]'")


def run_sumo(scenario: SumoScenario, folder: Path, seed: int) -> Path:
    """Create network and routes in a folder, run SUMO, and return the file of floating car data."""
    home = sumo_home()
    folder.mkdir(parents=True, exist_ok=True)
    if scenario.net_file is None:
        network = folder / "grid.net.xml"
        _run(
            [
                home / "bin" / "netgenerate",
                "--grid",
                f"--grid.number={scenario.grid_crossings}",
                f"--grid.length={scenario.spacing_m!r}",
                f"--output-file={network}",
            ],
            home,
        )
    else:
        network = scenario.net_file
        if not network.is_file():
            raise ScenarioError("net_file", str(network), "no such file")
    routes = folder / "fleet.rou.xml"
    _write_routes(routes, network, scenario, seed)
    fcd = folder / "fcd.xml"
    _run(
        [
            home / "bin" / "sumo",
            f"--net-file={network}",
            f"--route-files={routes}",
            f"--fcd-output={fcd}",
            f"--end={scenario.duration_s!r}",
            f"--step-length={scenario.step_s!r}",
            f"--seed={seed % 2**31}",
            "--no-step-log",
            "--no-warnings",
        ],
        home,
    )
    return fcd


def _run(command: Sequence[Path | str], home: Path) -> None:
    """Run one program of SUMO. A failure raises RunError with its first message."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env={"SUMO_HOME": str(home), "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )
    except OSError as error:
        raise UnavailableError(f"SUMO cannot be started: {error}") from None
    if done.returncode != 0:
        messages = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("Quitting")]
        raise RunError(
            f"{Path(str(command[0])).name} failed: {messages[0].removeprefix('Error: ') if messages else 'no message'}"
        )


def _write_routes(file: Path, network: Path, scenario: SumoScenario, seed: int) -> None:
    length_m, successors = _streets(network)
    edges = sorted(edge for edge in length_m if successors.get(edge))
    if not edges:
        raise InputError(f"{network}: the network has no street with a successor for cars")
    reach_m = scenario.duration_s * _FASTEST_MPS
    with file.open("w", encoding="utf-8") as out:
        out.write("<routes>\n")
        for vehicle in range(scenario.vehicles):
            rng = generator(seed, Stream.DEVICE_MOTION, vehicle)
            route = [edges[int(rng.integers(len(edges)))]]
            driven_m = length_m[route[0]]
            while driven_m < reach_m and len(route) < _LONGEST_ROUTE_EDGES:
                onward = successors.get(route[-1])
                if not onward:
                    break
                route.append(onward[int(rng.integers(len(onward)))])
                driven_m += length_m[route[-1]]
            out.write(
                f'  <vehicle id="{vehicle}" depart="0" departPos="random" departLane="best" departSpeed="max">'
                f"<route edges={quoteattr(' '.join(route))}/></vehicle>\n"
            )
        out.write("</routes>\n")


def _streets(network: Path) -> tuple[dict[str, float], dict[str, list[str]]]:
    """The length of every street for cars, and its successors; a U-turn only if there is no other."""
    length_m: dict[str, float] = {}
    onward: dict[str, set[str]] = {}
    back: dict[str, set[str]] = {}
    try:
        for _, element in ElementTree.iterparse(network):
            if element.tag == "edge":
                lanes = [lane for lane in element.iter("lane") if _for_cars(lane)]
                if lanes and element.get("function") is None:
                    length_m[element.attrib["id"]] = float(lanes[0].attrib["length"])
                element.clear()
            elif element.tag == "connection":
                ways = back if element.get("dir") == "t" else onward
                ways.setdefault(element.attrib["from"], set()).add(element.attrib["to"])
                element.clear()
    except (ElementTree.ParseError, KeyError, ValueError, OSError) as error:
        raise InputError(f"{network}: not a SUMO network: {error}") from None
    successors = {}
    for edge in length_m:
        ahead = sorted(to for to in onward.get(edge, ()) if to in length_m)
        successors[edge] = ahead or sorted(to for to in back.get(edge, ()) if to in length_m)
    return length_m, successors


def _for_cars(lane: ElementTree.Element) -> bool:
    allowed, forbidden = lane.get("allow"), lane.get("disallow", "")
    if allowed is not None:
        return "passenger" in allowed.split() or allowed == "all"
    return not {"passenger", "all"} & set(forbidden.split())
