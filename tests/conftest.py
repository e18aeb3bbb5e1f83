from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import replace

# Before `pytest_collection_finish`: it asks who refers to its objects, and those that are frozen do not answer.
import hypothesis  # noqa: F401
import pytest
import torch

import wayfare
from tests.pictures import check_every_picture
from wayfare.forking import quick_context
from wayfare.scenario import Scenario

# A shell starts jobs in the background with Ctrl-C ignored, and whatever the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where the environment forbids bytecode files, every process would compile Wayfare and all tests again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Modules and tests stay as long as the process. Until all of them are there, searching them for garbage is in vain.
gc.disable()

# Tests already use every core. A second thread of a program that they start would only wait, at full load.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton reads this when it is first imported, by whatever: without a GPU its kernels are tested in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Whichever test first starts a process, later ones of all tests are to start quickly.
quick_context("wayfare.studies.local", "wayfare.field.rig.demo", "tests.preloaded")

# Everything small enough to run a scheme in a fraction of a second, and still with every kind of contact in it.
SMALL = (
    "rounds=60",
    "fleet.devices=6",
    "fleet.energy_total_joules=9",
    "mobility.width_m=300",
    "mobility.height_m=300",
    "learning.hidden=[16]",
    "learning.batch_size=8",
    "learning.evaluate_every_rounds=20",
    "radio.bandwidth_hz=1e3",
)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _pictures_have_words() -> Generator[None]:
    """Check the text of every figure that a test draws, with the installed version of matplotlib."""
    with pytest.MonkeyPatch.context() as patch:
        check_every_picture(patch)
        yield


@pytest.fixture(scope="session")
def _interpreter() -> None:
    """Triton's interpreter for kernels, without work that its compilers leave out too.

    It computes whether each sum and product of integers overflows, and drops the answer, which only `debug` asserts.
    """
    reason = "no CUDA device, and no Triton to interpret its kernels"
    builder = pytest.importorskip("triton.runtime.interpreter", reason=reason).interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)


@pytest.fixture(scope="session")
def small() -> Scenario:
    """A small scenario on the embedded data."""
    return wayfare.load("fashion-small", SMALL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long tests first, so that no process ends long after the others. Skip GPU tests without a GPU."""
    items.sort(key=lambda item: "long" not in item.keywords)
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    """From here on, search only what tests create for garbage."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In continuous integration, a missing program is a failure, not a skip."""
    report = yield
    if report.skipped and "system" in item.keywords and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where every part is to be there: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how runs were compared with their goldens: bit by bit, or within a tolerance on other machines."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    notes = Counter(
        value
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == "goldens"
    )
    for how, count in notes.items():
        terminalreporter.write_line(f"goldens: {count} runs {how}")
