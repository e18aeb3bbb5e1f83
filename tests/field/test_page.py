"""The live page of a fleet: in a real browser, and only for those who know its address."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.field.test_status import STATUS
from tests.report.browser import chromium, console_errors
from wayfare.field.runtime.alerts import AlertRules, alerts_of
from wayfare.field.runtime.endpoint import fleet_pages, serving
from wayfare.field.runtime.page import live_page, token_of
from wayfare.field.runtime.status import DeviceStatus, FleetStatus, Judged

HOSTILE = "<img src=x onerror=alert(1)>"


class Told:
    def __init__(self, status: FleetStatus) -> None:
        self.status = status

    async def __call__(self) -> FleetStatus:
        return self.status


@contextmanager
def served(told: Told, token: str) -> Iterator[int]:
    """The pages of a server, from a thread of their own."""
    ports: list[int] = []
    ended = threading.Event()

    async def run() -> None:
        async with serving({**fleet_pages(told), **live_page(token, told)}, port=0) as port:
            ports.append(port)
            while not ended.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    while not ports:
        time.sleep(0.01)
    try:
        yield ports[0]
    finally:
        ended.set()
        thread.join()


def test_alerts_name_what_a_person_should_look_at() -> None:
    devices = (
        DeviceStatus(name="held", quarantined=True, heard_s_ago=5.0, version=1200),
        DeviceStatus(name="gone", heard_s_ago=3 * 86_400.0, version=100),
        DeviceStatus(name="odd", refused=40, chunks=70),
        DeviceStatus(name="well", heard_s_ago=5.0, version=1200, refused=5),
    )
    status = replace(STATUS, devices=devices, broker_in_reach=False, free_disk_bytes=10**9)
    found = [(alert.rule, alert.about) for alert in alerts_of(status, AlertRules(behind_versions=1000))]
    assert found == [
        ("broker", "server"),
        ("disk", "server"),
        ("quarantine", "held"),
        ("silent", "gone"),
        ("behind", "gone"),
        ("rejected", "odd"),
    ]
    assert alerts_of(STATUS) == ()


@pytest.mark.parametrize(("loss", "is_told"), [(0.4, False), (0.7, False), (0.8, True), (math.nan, True)])
def test_a_model_that_has_become_much_worse_is_told(loss: float, is_told: bool) -> None:
    best = Judged(version=13, metric="accuracy", score=0.74, loss=0.5)
    last = Judged(version=1200, metric="accuracy", score=0.3, loss=loss)
    found = alerts_of(replace(STATUS, judged=last, best=best))
    assert [alert.rule for alert in found] == ["worse"] * is_told
    if is_told:
        assert "0.5 at version 13" in found[0].text


@pytest.mark.parametrize(
    ("least", "loss", "untrained_loss", "is_told"),
    [
        # Ten times as much, but an untrained network has 2.3, so hardly anything has changed.
        (0.001, 0.01, 2.3, False),
        (0.0, 0.1, 2.3, False),
        (0.0, 0.12, 2.3, True),
        (0.5, 0.74, 2.3, False),
        (0.5, 0.76, 2.3, True),
        # The same in other units.
        (1e-9, 1e-8, 2.3e-6, False),
        (1e-9, 1.2e-7, 2.3e-6, True),
        (0.001, math.nan, 2.3, True),
        # Unknown: the multiple alone decides.
        (0.001, 0.002, None, True),
        (0.001, 0.002, math.nan, True),
    ],
)
def test_a_tiny_loss_that_is_a_little_larger_is_no_alert(
    least: float, loss: float, untrained_loss: float | None, is_told: bool
) -> None:
    best = Judged(version=13, metric="accuracy", score=0.99, loss=least, untrained_loss=untrained_loss)
    status = replace(STATUS, judged=replace(best, version=1200, loss=loss), best=best)
    assert [alert.rule for alert in alerts_of(status)] == ["worse"] * is_told


def test_the_token_is_made_once_and_private(tmp_path: Path) -> None:
    token = token_of(tmp_path)
    assert len(token) >= 32
    assert token_of(tmp_path) == token
    assert (tmp_path / "page.token").stat().st_mode & 0o077 == 0


def test_without_the_token_there_is_no_page_and_nobody_is_told_of_it() -> None:
    with served(Told(STATUS), "secret") as port:
        for path in ("/fleet/", "/fleet/other/", "/fleet/other/status", "/fleet/secret"):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}")
            with error.value as answer:
                assert answer.code == 404
                assert b"secret" not in answer.read()
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/fleet/secret/", data=b"x")
        with error.value as answer:
            assert answer.code == 405


def test_the_page_shows_the_fleet_and_follows_it() -> None:
    bus = replace(STATUS.devices[0], quarantined=True, spent_joules=1.25, loss=0.12345)
    devices = (replace(bus, released_version=1100, running_version=900), DeviceStatus(name=HOSTILE))
    status = replace(STATUS, devices=devices)
    told = Told(replace(status, alerts=alerts_of(status)))
    with served(told, "secret") as port, chromium() as browser:
        browser.get(f"http://127.0.0.1:{port}/fleet/secret/")
        _wait_for(browser, "version 1,200")
        text = browser.find_element("tag name", "body").text
        assert "harbour" in text
        assert "bus-1: in quarantine" in text
        row = browser.find_element("css selector", "#devices tr").text
        assert row == "bus-1 12 s 1,190 10 1,100 900 0.1235 7 0 5.00 0.00 1.25"
        # A name is text, whatever it is.
        assert HOSTILE in text
        assert not browser.find_elements("tag name", "img")
        told.status = replace(STATUS, version=1300)
        _wait_for(browser, "version 1,300")
        assert not browser.find_elements("css selector", "#alerts li")
        # Browsers ask for an icon by themselves.
        assert [line for line in console_errors(browser) if "favicon" not in line] == []


def _wait_for(browser: Any, text: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda one: text in one.find_element("id", "summary").text)
