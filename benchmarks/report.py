"""The time of a comparison's report, and the frame rate of its map.

    python benchmarks/report.py [--runs FOLDER] [--json FILE] [--no-browser]

The comparison is the default preset with three seeds and six schemes; `--runs` names an existing one. Times
are the minimum of three. The map plays in Chromium (the system's chromium and chromedriver) with 20, 100 and 500
devices at 60 times real time; a screen shows at most 60 frames per second.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wayfare
from wayfare.records import find_runs, read_run
from wayfare.report.page import read_material, write_page
from wayfare.report.write import write_report


def least_s(job: Callable[[], object], times: int = 3) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        job()
        taken.append(time.perf_counter() - started)
    return min(taken)


def command(folder: Path, page: Path) -> dict[str, float]:
    """The whole command in its own process, including imports."""
    words = [sys.executable, "-m", "wayfare", "report", str(folder), "--out", str(page)]
    walls, cpus = [], []
    for _ in range(3):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(time.perf_counter() - started)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"command_s": min(walls), "command_cpu_s": min(cpus)}


def written(folder: Path, page: Path) -> dict[str, float]:
    runs = find_runs(folder)
    reading_s = least_s(lambda: [read_run(run) for run in runs])
    report_s = least_s(lambda: write_page(read_material(folder), page))
    return {
        "runs": len(runs),
        "reading_s": reading_s,
        "report_s": report_s,
        "report_to_reading": report_s / reading_s,
        "page_mb": page.stat().st_size / 1e6,
        **command(folder, page),
    }


def played(out: Path, devices: int) -> dict[str, float]:
    """Frames per second while the map plays, and the script time per frame."""
    overrides = [f"fleet.devices={devices}", "rounds=200", "learning.hidden=[4]", "learning.evaluate_every_rounds=100"]
    record = wayfare.run(wayfare.load("fashion-small", overrides), "mads", out=out)
    page = write_report(record.folder, out / f"{devices}.html")[0]
    with browser() as driver:
        driver.get(page.resolve().as_uri())
        painting_ms = driver.execute_script(
            "const begun = performance.now(); for (let i = 0; i < 200; i++) wayfareReplay.seek(3 * i);"
            "return (performance.now() - begun) / 200"
        )
        driver.execute_async_script(
            "const done = arguments[0]; document.getElementById('speed').value = '60';"
            "document.getElementById('speed').dispatchEvent(new Event('change')); wayfareReplay.seek(0);"
            "wayfareReplay.play(true); let frames = 0; const begun = performance.now();"
            "const count = (now) => { frames++; if (now - begun < 5000) requestAnimationFrame(count);"
            " else { window.frames_a_second = 1000 * frames / (now - begun); done(); } };"
            "requestAnimationFrame(count)"
        )
        frames = driver.execute_script("return window.frames_a_second")
    return {"devices": devices, "painting_ms": painting_ms, "frames_a_second": frames}


def browser() -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for word in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu", "window-size=1280,900"):
        options.add_argument(f"--{word}")
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="the folder of a comparison; by default it is run")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-browser", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.runs or wayfare.compare(wayfare.load("fashion-small"), seeds=3, out=name).folder
        result: dict[str, Any] = {"report": written(folder, Path(name) / "page.html"), "map": []}
        for key, value in result["report"].items():
            print(f"{key:20} {value:8.2f}")
        if not arguments.no_browser and shutil.which("chromedriver"):
            for devices in (20, 100, 500):
                result["map"].append(played(Path(name), devices))
                print("  ".join(f"{key} {value:.1f}" for key, value in result["map"][-1].items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
