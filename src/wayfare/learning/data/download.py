"""Downloads that resume after an interruption."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

from wayfare.errors import InputError, UnavailableError
from wayfare.version import __version__

_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 18
_ATTEMPTS = 4


class Watch:
    """Receives the progress of a fetch; this base class ignores it."""

    def begin(self, what: str, done: int, total: int | None) -> None:
        """A transfer starts, with `done` of `total` bytes already present (None: unknown total)."""

    def advance(self, count: int) -> None:
        """`count` more bytes have arrived."""

    def note(self, text: str) -> None:
        """A message for the user."""


def download(url: str, file: Path, watch: Watch) -> None:
    """Download a file. An incomplete download is called `<file>.part`, and a later call requests only the rest.

    A lost connection is retried a few times. The partial file is kept only if the server confirms, by ETag or date,
    that the file has not changed.
    """
    if file.exists():
        return
    part = file.with_name(f"{file.name}.part")
    reason = ""
    for _ in range(_ATTEMPTS):
        before = _size(part)
        try:
            if _resume(url, part, watch):
                part.replace(file)
                _mark_of(part).unlink(missing_ok=True)
                return
            reason = "the connection was lost"
        except urllib.error.HTTPError as error:
            reason = f"{error.code} {error.reason}"
            if error.code == 416:  # the partial file is longer than the server's file: start again
                part.unlink(missing_ok=True)
                continue
            break
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        except OSError as error:
            raise InputError(f"{part}: cannot be written: {error.strerror}") from None
        if _size(part) <= before:
            break
    kept = f"; {_size(part):,} bytes are kept, and the next fetch resumes there" if _size(part) else ""
    raise UnavailableError(f"{url}: {reason}{kept}")


def _resume(url: str, part: Path, watch: Watch) -> bool:
    """Request the rest of a file; return whether the file is complete."""
    have = _size(part)
    headers = {"User-Agent": f"wayfare/{__version__}"}
    mark = _read_mark(part)
    if have and mark:
        headers |= {"Range": f"bytes={have}-", "If-Range": mark}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:
        if answer.status != 206 or _start(answer.headers) != have:
            have = 0
        total = _total(answer.headers, have)
        _write_mark(part, answer.headers)
        watch.begin(url.rpartition("/")[2], have, total)
        with part.open("ab" if have else "wb") as target:
            while chunk := answer.read(_CHUNK_BYTES):
                target.write(chunk)
                watch.advance(len(chunk))
    return total is None or _size(part) == total


def _start(headers: Message) -> int | None:
    """The first byte of a partial answer: `Content-Range: bytes 100-999/1000`."""
    first = (headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else None


def _total(headers: Message, have: int) -> int | None:
    length = headers.get("Content-Length") or ""
    return have + int(length) if length.isdecimal() else None


def _mark_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _write_mark(part: Path, headers: Message) -> None:
    """Store the version of the partial file; weak ETags do not guarantee equal bytes."""
    tag = headers.get("ETag") or ""
    mark = headers.get("Last-Modified") if not tag or tag.startswith("W/") else tag
    _mark_of(part).write_text(json.dumps({"mark": mark}), encoding="utf-8")


def _read_mark(part: Path) -> str | None:
    try:
        mark = json.loads(_mark_of(part).read_text(encoding="utf-8")).get("mark")
    except (OSError, ValueError, AttributeError):
        return None
    return mark if isinstance(mark, str) else None


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
