"""What runs of one process share, such as data and captured graphs on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

Value = TypeVar("Value")

# One thread makes a value while the others wait for it: they need it too.
_lock = threading.RLock()
_values: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
# The latest value of each kind stays for the next run. Others end with their last user: a study may need many.
_latest: dict[str, Any] = {}
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
                _latest.clear()
                _values.clear()


def is_sharing() -> bool:
    return _users > 0


def shared(kind: str, key: Hashable, make: Callable[[], Value]) -> Value:
    """The value of a kind and key: made once inside `sharing`, if it is still in use, and always outside of it."""
    if not is_sharing():
        return make()
    with _lock:
        found = _values.get((kind, key))
        if found is None:
            # Free its memory first, if no run uses it.
            _latest.pop(kind, None)
            found = make()
            _values[kind, key] = found
        _latest[kind] = found
        return cast(Value, found)
