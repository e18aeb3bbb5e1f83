from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SMALL

SCRIPT = Path(__file__).parents[2] / "scripts" / "kill_runs.py"


@pytest.mark.long
def test_runs_killed_at_twenty_random_points_resume_to_the_same_bits() -> None:
    fields = [word for override in SMALL for word in ("--set", override)]
    command = [sys.executable, str(SCRIPT), "--kills", "20", "--rounds", "40", "--seed", "7", *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 resumes identical, 0 not" in done.stdout
