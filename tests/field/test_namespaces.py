"""The page docs/how-to/field.md, word by word, on two hosts with a slow and lossy network between them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "field_namespaces.py"


# Not every kernel allows it, so that a skip is no failure in CI.
@pytest.mark.long
def test_the_page_leads_to_a_device_that_exchanges_over_a_lossy_network() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--exchanges", "2", "--mbps", "8", "--loss", "0.01"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stderr.startswith("skipped: "):
        pytest.skip(done.stderr.strip().removeprefix("skipped: "))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"]["exchanges"] >= 2
    assert found["status"]["refused"] == 0


def test_the_script_takes_the_commands_of_sections_2_to_5_from_the_page() -> None:
    spec = importlib.util.spec_from_file_location("field_namespaces", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = module.blocks()
    assert found[2][0].startswith("wayfare field init FLEET")
    assert found[2][1].startswith("for bus in bus-1 bus-2 bus-3; do")
    assert "systemctl enable --now wayfare-broker wayfare-mes" in found[3][0]
    assert "systemctl enable --now wayfare-device" in found[4][0]
    assert found[5][0].startswith("wayfare field status")
