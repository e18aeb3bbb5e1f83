"""A hash of a Python object of someone's own: its values, its code, and everything of theirs that the code refers to.

A scheme or task that is given as an object has no version and perhaps no file. What it does is compared instead, so
that an edited method, helper, constant or data set is never taken for what has run before.
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

# An environment may see packages of another one: of the system, of the user, of a parent.
_LIBRARIES = {"site-packages", "dist-packages"}
_KNOWN = {*sys.stdlib_module_names, "wayfare"}


class UnreadableError(WayfareError):
    """An object holds something without content, such as a lock or an open file."""


def fingerprint(thing: object, *, of: type | None = None, files: bool = True) -> str:
    """The hash of an object, which may be an attribute of a class. One that cannot be read completely is refused.

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
    """Goes through an object as pickle does, but into functions and classes too; nothing is ever unpickled."""

    def __init__(self, write: Callable[[bytes], None], kind: type, files: bool) -> None:
        super().__init__(cast(Any, SimpleNamespace(write=write)), protocol=5)
        self._kind, self._files = kind, files
        self._seen: set[int] = set()

    def reducer_override(self, thing: Any) -> Any:
        """Replace code by what it says, and tensors by their numbers."""
        match thing:
            case torch.Tensor():
                # PyTorch's own pickles hold addresses.
                numbers = thing.detach().cpu().flatten().view(torch.uint8).numpy()
                return _parts(thing.dtype, tuple(thing.shape), numbers)
            case CodeType():
                arguments = thing.co_argcount, thing.co_kwonlyargcount, thing.co_varnames
                constants = [*map(_in_order, thing.co_consts)]
                return _parts(thing.co_code, thing.co_exceptiontable, constants, thing.co_names, arguments)
            case FunctionType() | type() | ModuleType() if self._is_own(thing):
                # Recursive functions and `super()` come back to where they started.
                if id(thing) in self._seen:
                    return _parts(thing.__name__)
                self._seen.add(id(thing))
                return _parts(*_contents(thing))
            case FunctionType() | type() if "<locals>" in thing.__qualname__:
                return _parts(thing.__module__, thing.__qualname__)
            case ModuleType():
                return _parts(thing.__name__)
            case FunctionType() | type():
                return NotImplemented  # pickle notes its name
            case property():
                return _parts(thing.fget, thing.fset)
            case cached_property():
                return _parts(thing.func)
            case _ if is_dataclass(thing):
                # Its fields alone: what it has worked out and kept since is no part of it.
                return _parts(type(thing), [getattr(thing, field.name) for field in fields(thing)])
            case _ if hasattr(thing, "__wrapped__"):  # such as a static method, or a cached function
                return _parts(type(thing), thing.__wrapped__)
        return NotImplemented

    def _is_own(self, thing: FunctionType | type | ModuleType) -> bool:
        return is_users(thing, self._kind) and (self._files or not isinstance(thing, ModuleType))


def is_users(thing: FunctionType | type | ModuleType, whole: type) -> bool:
    """Whether code is the user's, or of the package of the whole: not Python's, ours or of another package."""
    name = _module_of(thing)
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    package = name.partition(".")[0]
    if package in _KNOWN:
        return False
    return package == _module_of(whole).partition(".")[0] or _LIBRARIES.isdisjoint(Path(file).parts)


def _parts(*parts: object) -> tuple[type, tuple[tuple[object, ...]]]:
    """What stands for an object, in the form that pickle wants."""
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
    """Whether an attribute of a class was written by its author; the others come with every class."""
    if isinstance(value, FunctionType | property | staticmethod | classmethod):
        return True
    return not name.startswith(("__", "_abc_")) and not isinstance(value, MemberDescriptorType)


def _names(code: CodeType) -> list[str]:
    """The names that a function and the functions inside it look up."""
    inside = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return [*dict.fromkeys([*code.co_names, *inside])]


def _in_order(constant: object) -> object:
    """Sets of texts have another order in every process."""
    return sorted(map(repr, constant)) if isinstance(constant, frozenset | set) else constant


def _module_of(thing: FunctionType | type | ModuleType) -> str:
    return thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
