"""Kernels compile for a Hopper GPU, which Triton's interpreter cannot tell. No GPU is needed."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import wayfare

SOURCE = Path(wayfare.__file__).parent
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Together they launch every kernel.
PARTS = "mads-rd", "ResNet-9 tf32", "ResNet-9 bf16", "bottleneck bf16", "bottleneck tf32", "LaneGCN bf16"

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton to compile kernels")


def kernels_of(file: Path) -> set[str]:
    """The functions of a file that Triton compiles, without those that others of them call."""
    functions = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    found = [each for each in functions if any("triton.jit" in ast.unparse(mark) for mark in each.decorator_list)]
    calls = [node.func for each in found for node in ast.walk(each) if isinstance(node, ast.Call)]
    called = {call.id for call in calls if isinstance(call, ast.Name)}
    module = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
    return {f"{module}.{each.name.strip('_')}" for each in found if each.name not in called}


@pytest.mark.long
def test_the_largest_variant_of_every_kernel_compiles_and_fits_into_shared_memory(tmp_path: Path) -> None:
    found = tmp_path / "kernels.json"
    command = [sys.executable, str(BENCHMARKS / "compiled_kernels.py"), "--one-each", "--json", str(found)]
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([*command, "--only", *PARTS], env=surroundings, capture_output=True, text=True)
    assert found.exists(), done.stderr
    rows = json.loads(found.read_text("utf-8"))
    assert [f"{row['kernel']} {row['fault']}" for row in rows if row["fault"]] == []
    assert done.returncode == 0, done.stderr
    kernels = set.union(*map(kernels_of, SOURCE.rglob("*.py")))
    assert {row["kernel"] for row in rows} == kernels


def test_a_kernel_that_does_not_compile_or_fit_has_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    compiler = import_module("kernel_compiler")
    assert compiler.Compiled(seconds=1.0, shared_bytes=227 * 1024).fault == ""
    assert "needs 232,449 bytes of shared memory" in compiler.Compiled(seconds=1.0, shared_bytes=232_449).fault
    assert "does not compile: " in compiler.compiled(compiler.Launch("nowhere", object(), {})).fault
