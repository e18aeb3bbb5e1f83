"""What runs in threads of one process share, such as data and captured graphs on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any, TypeVar, cast

Value = TypeVar("Value")

# One thread makes a value while the others wait for it: they need it too.
_lock = threading.RLock()
_values: dict[Hashable, Any] = {}
_users = 0


@contextmanager
def sharing() -> Generator[None, None, None]:
    """Inside the block, runs share values. The values are forgotten when the last such block ends."""
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _values.clear()


def is_sharing() -> bool:
    return _users > 0


def shared(key: Hashable, make: Callable[[], Value]) -> Value:
    """The value of a key: made once inside `sharing`, and on every call outside of it."""
    if not is_sharing():
        return make()
    with _lock:
        if key not in _values:
            _values[key] = make()
        return cast(Value, _values[key])
