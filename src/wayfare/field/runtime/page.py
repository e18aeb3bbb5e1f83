"""One live page of a fleet for people: read-only, and only for those who know its address.

The token is part of the path, so a browser needs no login. The page asks for the status every two seconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from wayfare.field.runtime.endpoint import Page, Pages
from wayfare.field.runtime.status import FleetStatus

_TOKEN_FILE, _TOKEN_BYTES = "page.token", 24


def token_of(state: Path) -> str:
    """The token of a server's page: made once, readable only by the server's user."""
    file = state / _TOKEN_FILE
    if not file.is_file():
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(_TOKEN_BYTES), encoding="ascii")
    return file.read_text(encoding="ascii")


def live_page(token: str, status: Callable[[], Awaitable[FleetStatus]]) -> Pages:
    text = files("wayfare.field.runtime").joinpath("page.html").read_text(encoding="utf-8")

    async def page() -> Page:
        return Page(text, "text/html; charset=utf-8")

    async def data() -> Page:
        return Page((await status()).to_json() + "\n", "application/json")

    return {f"/fleet/{token}/": page, f"/fleet/{token}/status": data}
