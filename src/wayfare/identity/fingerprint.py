"""A hash of a user's Python object: its values, its code, and all of the user's code that it refers to.

A scheme or task given as an object has no version and perhaps no file. This hash detects an edited method, helper,
constant or data set, so that Wayfare never reuses runs of the old code.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, cast

import torch

from wayfare.errors import WayfareError

# An environment may include packages of another one: system, user or parent.
_LIBRARIES = {"site-packages", "dist-packages"}
_KNOWN = {*sys.stdlib_module_names, "wayfare"}


class UnreadableError(WayfareError):
    """An object contains something without content, such as a lock or an open file."""


def fingerprint(thing: object, *, of: type | None = None, files: bool = True) -> str:
    """The hash of an object, which may be an attribute of the class ``of``. Raises UnreadableError if it has none.

    Modules that the code refers to count by their files, or without ``files`` by their names.
    """
    sha = hashlib.sha256()
    kind = of or (thing if isinstance(thing, type) else type(thing))
    try:
        _Reader(sha.update, kind, files).dump(_in_order(thing))
    except (pickle.PicklingError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from None
    return sha.hexdigest()


class _Reader(pickle.Pickler):
    """Traverses an object like pickle, but also functions and classes; nothing is ever unpickled."""

    def __init__(self, write: Callable[[bytes], None], kind: type, files: bool) -> None:
        super().__init__(cast(Any, SimpleNamespace(write=write)), protocol=5)
        self._kind, self._files = kind, files
        self._seen: set[int] = set()

    def reducer_override(self, thing: Any) -> Any:
        """Replace code by its content, and tensors by their values."""
        match thing:
            case torch.Tensor():
                # PyTorch's own pickles contain addresses.
                numbers = thing.detach().cpu().flatten().view(torch.uint8).numpy()
                return _parts(thing.dtype, tuple(thing.shape), numbers)
            case CodeType():
                arguments = thing.co_argcount, thing.co_kwonlyargcount, thing.co_varnames
                constants = [*map(_in_order, thing.co_consts)]
                return _parts(thing.co_code, thing.co_exceptiontable, constants, thing.co_names, arguments)
            case FunctionType() | type() | ModuleType() if self._is_own(thing):
                # Recursive functions and `super()` refer back to themselves.
                if id(thing) in self._seen:
                    return _parts(thing.__name__)
                self._seen.add(id(thing))
                return _parts(*_contents(thing))
            case FunctionType() | type() if "<locals>" in thing.__qualname__:
                return _parts(thing.__module__, thing.__qualname__)
            case ModuleType():
                return _parts(thing.__name__)
            case FunctionType() | type():
                return NotImplemented  # pickle stores its name
            case property():
                return _parts(thing.fget, thing.fset)
            case cached_property():
                return _parts(thing.func)
            case _ if is_dataclass(thing):
                # Only its fields, without cached results.
                return _parts(type(thing), [getattr(thing, field.name) for field in fields(thing)])
            case _ if hasattr(thing, "__wrapped__"):  # such as a static method, or a cached function
                return _parts(type(thing), thing.__wrapped__)
        return NotImplemented

    def _is_own(self, thing: FunctionType | type | ModuleType) -> bool:
        return is_users(thing, self._kind) and (self._files or not isinstance(thing, ModuleType))


def is_users(thing: FunctionType | type | ModuleType, whole: type) -> bool:
    """Whether code belongs to the user, or to the package of `whole`: not to Python, Wayfare or another package."""
    name = _module_of(thing)
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    package = name.partition(".")[0]
    if package in _KNOWN:
        return False
    return package == _module_of(whole).partition(".")[0] or _LIBRARIES.isdisjoint(Path(file).parts)


def imported_by(module: ModuleType) -> list[FunctionType | type | ModuleType]:
    """The user's functions, classes and modules that a module has from elsewhere, by name."""
    things = [thing for _, thing in sorted(vars(module).items()) if isinstance(thing, FunctionType | type | ModuleType)]
    return [thing for thing in things if is_users(thing, type) and _module_of(thing) != module.__name__]


def _parts(*parts: object) -> tuple[type, tuple[tuple[object, ...]]]:
    """The parts that represent an object, in pickle's format."""
    return tuple, (parts,)


def _contents(thing: FunctionType | type | ModuleType) -> Iterator[object]:
    yield thing.__name__
    if isinstance(thing, ModuleType):
        yield Path(thing.__file__ or "").read_bytes()
    elif isinstance(thing, FunctionType):
        yield from (thing.__code__, thing.__defaults__, thing.__kwdefaults__)
        yield [_in_order(cell.cell_contents) for cell in thing.__closure__ or ()]
        known = {name: thing.__globals__[name] for name in _names(thing.__code__) if name in thing.__globals__}
        yield {name: _in_order(value) for name, value in (known | vars(thing)).items()}
    else:
        yield thing.__bases__
        yield {name: _in_order(value) for name, value in vars(thing).items() if _is_content(name, value)}


def _is_content(name: str, value: object) -> bool:
    """Whether the author of a class wrote an attribute, rather than Python."""
    if isinstance(value, FunctionType | property | staticmethod | classmethod):
        return True
    return not name.startswith(("__", "_abc_")) and not isinstance(value, MemberDescriptorType)


def _names(code: CodeType) -> list[str]:
    """The names that a function and its inner functions look up."""
    inside = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return [*dict.fromkeys([*code.co_names, *inside])]


def _in_order(constant: object) -> object:
    """Sort sets, because the order of strings in a set differs between processes."""
    return sorted(map(repr, constant)) if isinstance(constant, frozenset | set) else constant


def _module_of(thing: FunctionType | type | ModuleType) -> str:
    return thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
