"""The structure of the package: import order, file lengths and public names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wayfare
from wayfare.cli.app import app

SOURCE = Path(wayfare.__file__).parent
# The way of the data, top to bottom. A part imports only from itself and from the parts above it.
ORDER = (
    *(
        "version",
        "errors",
        "places",
        "files",
        "signals",
        "forking",
        "threads",
        "progress",
        "arrays",
        "units",
        "streams",
        "sharing",
        "waiting",
        "scenario",
        "mobility",
        "contacts",
        "radio",
        "control",
    ),
    *("sparsify", "codec", "methods", "learning", "identity", "engine", "world"),
    *("device", "server", "simulator", "records", "theory"),
    # The package's own file offers names of all of them, and none of them may need it.
    *("studies", "report", "field", "cli", "__init__", "__main__"),
)
# The same within the field: administration of a fleet, what runs in it, and the rig that tests it.
FIELD_ORDER = ("fleet", "runtime", "rig")
# Files outside `cli` that hold options of a command line, and why. The list must not grow.
MAY_NAME_OPTIONS = {
    "field/rig/broker.py": "starts nats-server",
    "field/fleet/broker_config.py": "writes a configuration that explains how to reload nats-server",
    "learning/data/packages.py": "starts npm and dpkg-deb",
    "mobility/traces/sumo_run.py": "starts SUMO",
    "records/origin.py": "starts git",
    "report/repeat.py": "writes commands that repeat a study onto its page",
}
FILES = sorted(SOURCE.rglob("*.py"))


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_names(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def imported_parts(file: Path) -> set[str]:
    names = imported_names(file)
    parts = {f"{name}.__init__".split(".")[1] for name in names if name.split(".")[0] == "wayfare"}
    # What is no part is a name that the package offers.
    return {part if part in ORDER else "__init__" for part in parts}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_only_up_the_list(file: Path) -> None:
    part = part_of(file)
    below = {other for other in imported_parts(file) if ORDER.index(other) > ORDER.index(part)}
    assert not below, f"{part} imports {below}, which come after it"


def test_within_the_field_imports_point_only_up_the_list() -> None:
    for file in sorted((SOURCE / "field").glob("*/**/*.py")):
        room = FIELD_ORDER.index(file.relative_to(SOURCE / "field").parts[0])
        imported = [name.split(".")[2] for name in imported_names(file) if name.startswith("wayfare.field.")]
        below = {other for other in imported if FIELD_ORDER.index(other) > room}
        assert not below, f"{file}: {FIELD_ORDER[room]} imports {below}, which come after it"


def test_the_file_of_the_field_states_its_protocol_and_nothing_else() -> None:
    tree = ast.parse((SOURCE / "field/__init__.py").read_text(encoding="utf-8"))
    assert "How every upload counts exactly once" in (ast.get_docstring(tree) or "")
    assert len(tree.body) == 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_files_stay_short_enough_to_read(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


def test_the_loop_reads_as_its_steps() -> None:
    assert len((SOURCE / "simulator" / "loop.py").read_text(encoding="utf-8").splitlines()) <= 250


def test_nothing_of_a_method_or_part_is_guessed() -> None:
    names = "scheme|method|part|rule|upload|compressor|memory|local|server|peers"
    guessed = re.compile(rf"(get|has)attr\((self\.)?_?({names})\b")
    for file in FILES:
        assert not guessed.search(file.read_text(encoding="utf-8")), file


def library_files() -> list[Path]:
    return [file for file in FILES if part_of(file) != "cli"]


def texts_in(file: Path) -> list[str]:
    """The string literals of a file that are not docstrings."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in strings if isinstance(node.value, str)]


def test_only_the_command_line_names_its_options() -> None:
    # A name with a colon behind it is a variable of CSS.
    option = re.compile(r"(^|[^-\w])--[a-z][a-z-]+(?![a-z:-])")
    found = {
        file.relative_to(SOURCE).as_posix(): text
        for file in library_files()
        for text in texts_in(file)
        if option.search(text)
    }
    assert set(found) == set(MAY_NAME_OPTIONS), {file: found.get(file) for file in set(found) ^ set(MAY_NAME_OPTIONS)}


def test_only_the_command_line_names_its_commands() -> None:
    names = [command.name or "" for command in app.registered_commands]
    names += [group.name or "" for group in app.registered_groups]
    command = re.compile(rf"\bwayfare ({'|'.join(names)})\b")
    assert not {file: text for file in library_files() for text in texts_in(file) if command.search(text)}


def test_only_the_command_line_draws_progress_bars() -> None:
    for file in library_files():
        assert not re.search(r"rich\.progress|rich import progress|\btqdm\b", file.read_text(encoding="utf-8")), file


def test_the_package_imports_nothing_but_its_version_at_once() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    at_once = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert [name for name in at_once if name.startswith("wayfare")] == ["wayfare.version"]


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
        "Arrival",
        "Compressor",
        "LocalRule",
        "MemoryRule",
        "Method",
        "Metric",
        "PeerRule",
        "ServerRule",
        "ServerTerms",
        "UploadRule",
        "compose",
        "Upload",
        "__version__",
        "compare",
        "load",
        "load_study",
        "local_task",
        "own_task",
        "power_and_allowance",
        "resume",
        "run",
        "send_dense",
        "send_top_k",
        "simulated_task",
        "sweep",
    }
    assert all(getattr(wayfare, name) is not None for name in wayfare.__all__)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = wayfare.walk  # type: ignore[attr-defined]


def test_commands_that_do_not_train_do_not_wait_for_torch() -> None:
    code = (
        "import sys, wayfare; from wayfare.cli.app import app\n"
        "app(['plan', '--parameters', '1000', '--set', 'rounds=20', '--json'], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0
