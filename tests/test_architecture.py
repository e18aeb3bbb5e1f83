"""The shape of the package: imports point one way, files stay readable, the public names are the promised ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wayfare

SOURCE = Path(wayfare.__file__).parent
# The way of the data, top to bottom. A part imports only from itself and from the parts above it.
ORDER = (
    *(
        "version",
        "errors",
        "places",
        "files",
        "arrays",
        "units",
        "streams",
        "scenario",
        "mobility",
        "contacts",
        "radio",
        "control",
    ),
    *("schemes", "sparsify", "codec", "learning", "engine", "device", "server", "simulator", "records", "theory"),
    *("studies", "report", "field", "cli"),
)
FILES = sorted(SOURCE.rglob("*.py"))


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(file: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names = [f"{node.module}.{alias.name}" if node.module == "wayfare" else node.module for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name and name.startswith("wayfare.")}
    return parts


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_only_up_the_list(file: Path) -> None:
    part = part_of(file)
    if part in ("__init__", "__main__"):
        return
    below = {other for other in imported_parts(file) if ORDER.index(other) > ORDER.index(part)}
    assert not below, f"{part} imports {below}, which come after it"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_files_stay_short_enough_to_read(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


def test_only_the_field_knows_of_nats() -> None:
    for file in FILES:
        if part_of(file) != "field":
            assert "import nats" not in file.read_text(encoding="utf-8"), file
            assert "from nats" not in file.read_text(encoding="utf-8"), file


def test_public_names_are_the_promised_ones() -> None:
    assert set(wayfare.__all__) == {
        "Encounter",
        "Execution",
        "Link",
        "RunProgress",
        "Safeguards",
        "Scenario",
        "Scheme",
        "Upload",
        "__version__",
        "compare",
        "load",
        "load_study",
        "own_task",
        "power_and_allowance",
        "resume",
        "run",
        "send_dense",
        "send_top_k",
        "sweep",
    }
    assert all(getattr(wayfare, name) is not None for name in wayfare.__all__)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = wayfare.walk  # type: ignore[attr-defined]


def test_commands_that_do_not_train_do_not_wait_for_torch() -> None:
    code = "import sys, wayfare, wayfare.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
