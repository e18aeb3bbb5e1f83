"""Processes that receive a signal to stop."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_while_the_event_is_set_does_not_wait_for_itself(number: str) -> None:
    """In another process, so that a deadlock does not stop the tests."""
    code = f"""
        import signal
        from wayfare.signals import stop_at_signals

        stop = stop_at_signals()
        # As inside `stop.set()`, or `stop.wait()`, of the main thread.
        with stop._cond:
            signal.raise_signal(signal.{number})
        assert stop.wait(20)
        """
    subprocess.run([sys.executable, "-c", dedent(code)], timeout=60, check=True)


def test_a_second_interrupt_ends_at_once() -> None:
    code = """
        import signal
        from wayfare.signals import stop_at_signals

        stop = stop_at_signals()
        signal.raise_signal(signal.SIGINT)
        assert stop.wait(20)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("at once")
        """
    done = subprocess.run([sys.executable, "-c", dedent(code)], timeout=60, check=True, capture_output=True, text=True)
    assert done.stdout == "at once\n"
