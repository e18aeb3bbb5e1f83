"""How a fleet is doing, for Prometheus, for programs and for people."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.error
import urllib.request
from dataclasses import fields, replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.field.brokers import finish
from wayfare.cli.app import app
from wayfare.cli.field_fleet import status_table
from wayfare.errors import FieldError, InputError
from wayfare.field.runtime import endpoint
from wayfare.field.runtime.endpoint import fetch_status, fleet_pages, serving
from wayfare.field.runtime.metrics import CONTENT_TYPE, Metric, render
from wayfare.field.runtime.status import DeviceStatus, FleetStatus, metrics_of

STATUS = FleetStatus(
    fleet="harbour",
    version=1200,
    queued_chunks=3,
    broker_in_reach=True,
    up_s=3600.0,
    memory_bytes=250_000_000,
    devices=(
        DeviceStatus(name="bus-1", exchanges=7, chunks=70, version=1190, heard_s_ago=12.5, received_bytes=5_000_000),
        DeviceStatus(name="bus-2"),
    ),
)
# A line of the exposition format: a name, labels, a number.
LINE = re.compile(r'[a-z_]+(\{device="(?:[^"\\]|\\.)*"\})? -?[0-9.e+]+')


def test_every_figure_of_a_device_is_a_metric_and_every_line_is_in_the_format() -> None:
    metrics = metrics_of(STATUS)
    lines = render(metrics).splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in samples)
    of_devices = [metric for metric in metrics if metric.name.startswith("wayfare_device_")]
    assert len(of_devices) == len(fields(DeviceStatus)) - 1
    assert 'wayfare_device_chunks_total{device="bus-1"} 70' in samples
    assert 'wayfare_device_version{device="bus-2"}' not in render(metrics)
    for metric in metrics:
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert lines.count(f"# TYPE {metric.name} {metric.kind}") == 1
        assert sum(line.startswith(f"# HELP {metric.name} ") for line in lines) == 1


def test_a_table_with_all_columns_cuts_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = tuple(replace(each, released_version=1100, running_version=900, loss=0.12345) for each in STATUS.devices)
    monkeypatch.setattr(endpoint, "fetch_status", lambda address: replace(STATUS, devices=devices))
    printed = CliRunner().invoke(app, ["field", "status"]).output
    assert "\u2026" not in printed
    assert "1,100" in printed
    assert "0.1235" in printed


def test_a_label_cannot_break_out_of_its_quotes() -> None:
    text = render([Metric("x", "gauge", "An x.", [({"device": 'a"b\\c\nd'}, 1.0)])])
    assert text == '# HELP x An x.\n# TYPE x gauge\nx{device="a\\"b\\\\c\\nd"} 1.0\n'


def test_a_status_is_the_same_after_its_journey() -> None:
    assert FleetStatus.from_json(STATUS.to_json()) == STATUS
    for wrong in ("{}", "[]", "x", '{"devices": 3}', STATUS.to_json().replace("version", "visions")):
        with pytest.raises(InputError, match="is not the status of a fleet"):
            FleetStatus.from_json(wrong)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_table_fits_a_terminal(columns: int) -> None:
    console = Console(width=columns, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(status_table(STATUS))
    text = capture.get()
    assert "harbour: model version 1,200" in text
    row = next(line for line in text.splitlines() if line.startswith("bus-1"))
    assert row.split() == ["bus-1", "12", "s", "1,190", "10", "7", "70", "0", "0", "5.00", "0.00", "0.00"]
    assert "never" in text
    assert "waits" not in text


def test_the_table_of_a_standby_says_that_it_waits() -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(status_table(replace(STATUS, leads=False)))
    assert "This server waits: another one holds the lease" in capture.get()


async def _now() -> FleetStatus:
    return STATUS


def _get(port: int, path: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_endpoint_answers_what_it_knows_and_says_what_it_does_not() -> None:
    async def scene() -> None:
        async with serving(fleet_pages(_now), port=0) as port:
            ask = asyncio.to_thread
            assert await ask(_get, port, "/metrics") == (200, CONTENT_TYPE, render(metrics_of(STATUS)))
            assert (await ask(_get, port, "/healthz"))[0] == 200
            assert (await ask(_get, port, "/readyz"))[0] == 200
            assert (await ask(_get, port, "/etc/passwd"))[0] == 404
            assert await ask(fetch_status, f"127.0.0.1:{port}") == STATUS
            with pytest.raises(FieldError, match="cannot serve metrics at 127"):
                async with serving(fleet_pages(_now), port=port):
                    pass

    finish(scene())


@pytest.mark.parametrize("field", ["broker_in_reach", "leads"])
def test_a_server_without_a_broker_or_the_lease_is_healthy_and_not_ready(field: str) -> None:
    async def ill() -> FleetStatus:
        return FleetStatus.from_json(STATUS.to_json().replace(f'"{field}": true', f'"{field}": false'))

    async def scene() -> None:
        async with serving(fleet_pages(ill), port=0) as port:
            assert (await asyncio.to_thread(_get, port, "/healthz"))[0] == 200
            assert (await asyncio.to_thread(_get, port, "/readyz"))[0] == 503

    finish(scene())


def test_callers_who_misbehave_hurt_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_TIMEOUT_S", 0.2)

    async def said(port: int, words: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(words)
        try:
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()

    async def scene() -> None:
        async with serving(fleet_pages(_now), port=0) as port:
            assert (await said(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
            assert await said(port, b"GET /metrics HTTP/1.1\r\n" + b"x" * 100_000) == b""
            assert await said(port, b"GET ") == b""
            assert b"HTTP/1.1 404" in await said(port, b"\xff\x00\r\n\r\n".replace(b"\xff\x00", b"GET \xff\x00"))
            head = await said(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert head.endswith(b"\r\n\r\n")
            assert (await asyncio.to_thread(_get, port, "/metrics"))[0] == 200

    finish(scene())


def test_where_no_server_is_the_message_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(FieldError, match=r"no server answers .* is the fleet's server running there"):
        fetch_status(address)
    for wrong in ("9464", "http://x:1", "x:y"):
        with pytest.raises(InputError, match="must be HOST:PORT"):
            fetch_status(wrong)
