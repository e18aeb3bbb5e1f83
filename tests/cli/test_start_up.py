"""Commands that train nothing start without PyTorch, which takes seconds to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import sys

from wayfare.cli.app import app
from wayfare.errors import WayfareError

for command in sys.argv[1:]:
    try:
        app(command.split(), standalone_mode=False)
    except (WayfareError, SystemExit) as error:
        print("ended:", error, file=sys.stderr)
    assert "torch" not in sys.modules, command
"""

COMMANDS = [
    "--version",
    "contacts fashion-small --set rounds=20",
    "plan fashion-small --set rounds=20",
    "contacts nonsense",
    "plan nonsense",
    "compare nonsense",
    "run --set bogus=1",
    "sweep nonsense",
    "paper nonsense",
    "show nowhere",
    "report nowhere",
    "export nowhere --csv",
    "field status 127.0.0.1:1",
]


def test_commands_that_train_nothing_and_messages_do_not_import_pytorch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *COMMANDS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rejected = [line for line in done.stderr.splitlines() if line.startswith("ended:")]
    assert len(rejected) == 10, done.stderr
