"""Structured logs: one JSON object per line."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# The number of messages that are remembered; beyond it, every message counts as new.
_MOST_KINDS = 1000


class JsonLines(logging.Formatter):
    def __init__(self, who: str) -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "from": self._who,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Sparing(logging.Filter):
    """Lets a message through once in ``every_s`` per device and file, and counts the others in the next one."""

    def __init__(self, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._every_s, self._clock = every_s, clock
        self._seen: dict[tuple[object, ...], tuple[float, int]] = {}  # when it was shown last, and hidden since

    def filter(self, record: logging.LogRecord) -> bool:
        about = vars(record).get("device"), vars(record).get("file")
        key, now_s = (record.name, record.levelno, record.msg, *about), self._clock()
        shown_s, hidden = self._seen.get(key, (-math.inf, 0))
        if now_s - shown_s < self._every_s:
            self._seen[key] = shown_s, hidden + 1
            return False
        if hidden:
            record.hidden = hidden
        if len(self._seen) >= _MOST_KINDS:
            self._seen.clear()
        self._seen[key] = now_s, 0
        return True


def log_to_stderr(who: str, level: str = "INFO") -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines(who))
    handler.addFilter(Sparing())
    logger = logging.getLogger("wayfare")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    # The standard library logs TLS errors at every lost connection.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
