"""Degrees in floating car data are never silently read as metres, with or without SUMO's header."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wayfare.contacts.source import plan_from_source
from wayfare.errors import ScenarioError, TraceError
from wayfare.mobility import Motion
from wayfare.mobility.traces import read_recording
from wayfare.mobility.traces.recording import EARTH_RADIUS_M

METRE = float(np.degrees(1 / EARTH_RADIUS_M))
STEPS = range(0, 31)


def fcd(
    tmp_path: Path,
    *,
    degrees: bool,
    speeds: bool = True,
    speed_mps: float = 10.0,
    header: str = "",
    latitude: float = 47,
) -> Path:
    """Two cars on parallel roads, 40 m apart, as SUMO writes them."""
    scale = (METRE / np.cos(np.radians(latitude)), METRE) if degrees else (1.0, 1.0)
    lines = [header, "<fcd-export>"]
    for t in STEPS:
        lines.append(f'<timestep time="{t}.00">')
        for name, north_m in (("a", 0.0), ("b", 40.0)):
            x, y = t * speed_mps * scale[0] + (8.5 if degrees else 0), north_m * scale[1] + (latitude if degrees else 0)
            speed = f' speed="{speed_mps:.2f}"' if speeds else ""
            lines.append(f'<vehicle id="{name}" x="{x:.7f}" y="{y:.7f}"{speed}/>')
        lines.append("</timestep>")
    file = tmp_path / "fcd.xml"
    file.write_text("\n".join([*lines, "</fcd-export>"]))
    return file


def speeds_mps(file: Path, **how: str) -> list[float]:
    motion = read_recording(file, **how).content  # type: ignore[arg-type]
    assert isinstance(motion, Motion)
    return [float(np.median(np.hypot(motion.vx_mps, motion.vy_mps)))]


@pytest.mark.parametrize("latitude", [0.0, 47.0, -65.0])
def test_degrees_without_a_header_are_recognised_by_the_speeds(tmp_path: Path, latitude: float) -> None:
    file = fcd(tmp_path, degrees=True, latitude=latitude)
    assert speeds_mps(file) == pytest.approx([10.0], rel=0.01)
    recording = read_recording(file)
    assert recording.origin_deg is not None
    assert recording.notes == ("x and y are read as degrees: degrees fit the speeds of the vehicles, metres do not",)


def test_metres_of_a_small_network_stay_metres(tmp_path: Path) -> None:
    file = fcd(tmp_path, degrees=False, speed_mps=2.0)
    recording = read_recording(file)
    assert (recording.origin_deg, recording.notes) == (None, ())
    assert speeds_mps(file) == pytest.approx([2.0])


def test_metres_of_a_large_network_need_no_speeds(tmp_path: Path) -> None:
    assert speeds_mps(fcd(tmp_path, degrees=False, speeds=False)) == pytest.approx([10.0])


@pytest.mark.parametrize("degrees", [True, False])
def test_a_file_that_could_be_either_is_asked_about(tmp_path: Path, degrees: bool) -> None:
    file = fcd(tmp_path, degrees=degrees, speeds=False, speed_mps=10.0 if degrees else 0.005)
    message = r"mobility\.coordinates = 'auto': .*fcd\.xml does not say whether x and y are metres or degrees"
    with pytest.raises(ScenarioError, match=message):
        read_recording(file)
    with pytest.raises(ScenarioError, match=message):
        plan_from_source(str(file), seed=0)
    units = "degrees" if degrees else "metres"
    assert speeds_mps(file, coordinates=units) == pytest.approx([10.0 if degrees else 0.005], rel=0.01)
    found = plan_from_source(str(file), seed=0, overrides=[f"mobility.coordinates={units}"])
    assert len(found.plan) == 1


def test_parked_vehicles_are_asked_about(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="metres or degrees"):
        read_recording(fcd(tmp_path, degrees=True, speed_mps=0.0))


@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_the_header_decides_where_there_is_one(tmp_path: Path, value: str) -> None:
    geographic = f'<!-- <sumoConfiguration><fcd-output.geo value="{value}"/></sumoConfiguration> -->'
    assert speeds_mps(fcd(tmp_path, degrees=True, speeds=False, header=geographic)) == pytest.approx([10.0], rel=0.01)
    plain = '<!-- <sumoConfiguration><fcd-output value="fcd.xml"/></sumoConfiguration> -->'
    assert speeds_mps(fcd(tmp_path, degrees=False, speeds=False, speed_mps=0.005, header=plain)) == pytest.approx(
        [0.005]
    )


def test_degrees_that_were_asked_for_must_be_on_earth(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="longitude 190, latitude 0 is outside the valid range"):
        read_recording(fcd(tmp_path, degrees=False), coordinates="degrees")


def test_other_formats_say_themselves_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "fixes.csv").write_text("time,id,x,y\n0,a,0,0\n1,a,1,1\n")
    with pytest.raises(ScenarioError, match=r"mobility\.coordinates = 'degrees': .*csv-motion"):
        read_recording(tmp_path / "fixes.csv", coordinates="degrees")
