"""The wheel works in an environment with nothing but its declared dependencies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def declared(requirements: list[str]) -> set[str]:
    """The names of all distributions that requirements lead to, without extras of the package itself."""
    found: set[str] = set()
    waiting = [(text, frozenset({""})) for text in requirements]
    while waiting:
        text, extras = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if requirement.name in found and not requirement.extras:
            continue
        found.add(requirement.name)
        inner = frozenset({"", *requirement.extras})
        waiting += [(needed, inner) for needed in distribution(requirement.name).requires or []]
    return found


def link_dependencies(names: set[str], packages: Path) -> None:
    """Links to installed distributions take the place of a download of PyTorch."""
    for name in names:
        dependency = distribution(name)
        for top in {file.parts[0] for file in dependency.files or []} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(dependency.locate_file(top))))


def test_the_wheel_compares_schemes_in_an_environment_of_its_own(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("wayfare-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    packages = Path(run(python, "-c", "import wayfare; print(wayfare.__path__[0])", cwd=tmp_path).strip()).parent
    assert packages.is_relative_to(tmp_path)
    metadata = next(packages.glob("wayfare-*.dist-info")) / "METADATA"
    lines = metadata.read_text(encoding="utf-8").splitlines()
    requirements = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    link_dependencies(declared(requirements), packages)

    small = ("--set", "rounds=20", "--set", "fleet.devices=5", "--seeds", "1", "--jobs", "1", "--json")
    wayfare = tmp_path / "env" / "bin" / "wayfare"
    compared = json.loads(run(wayfare, "compare", *small, "--schemes", "mads,afl", cwd=tmp_path))
    assert [row["scheme"] for row in compared["rows"]] == ["mads", "afl"]
