"""Something of one's own from a file: ``mine.py:Patient``, or ``mine.py`` where it holds one upload rule only."""

from __future__ import annotations

import hashlib
import importlib
import sys
from inspect import getmembers, isabstract, isclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from wayfare.errors import ScenarioError
from wayfare.methods.parts import Part, UploadRule

# Names of modules that were read from files.
_READ: set[str] = set()


def source_of(part: object) -> str | None:
    """A hash of the file a part was read from; None for one that belongs to a package or a program."""
    module = type(part).__module__
    if module not in _READ:
        return None
    return hashlib.sha256(Path(sys.modules[module].__file__ or "").read_bytes()).hexdigest()


def identity_of(part: Part) -> dict[str, Any]:
    """What a part is: its class, its values, and its code where that is read from a file."""
    kind = type(part)
    values = {name: _plain(value) for name, value in sorted(vars(part).items())}
    source = source_of(part) or part.version
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "values": values, **({"code": source} if source else {})}


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)


def is_file(text: str) -> bool:
    """Whether a name is that of a file, and perhaps of a class in it."""
    file, _, name = text.rpartition(".py")
    return bool(file) and (not name or name.startswith(":"))


def from_file(text: str) -> Any:
    """The class or composition that is meant."""
    file, _, name = text.rpartition(".py")
    module = _module(Path(f"{file}.py"), text)
    if name:
        found = vars(module).get(name[1:])
        if found is None:
            raise ScenarioError("schemes", text, f"{file}.py has no {name[1:]}; it has {_listed(module)}")
        return found
    own = _rules_of(module)
    if len(own) != 1:
        raise ScenarioError("schemes", text, f"name the class, as in {file}.py:Patient; the file has {_listed(module)}")
    return own[0]


def _module(path: Path, text: str) -> ModuleType:
    """The file as a module that other processes can import too: they search where this one does."""
    if not path.is_file():
        raise ScenarioError("schemes", text, f"there is no file {path}")
    folder, stem = str(path.resolve().parent), path.stem
    taken = sys.modules.get(stem)
    if "." in stem or stem in sys.stdlib_module_names:
        raise ScenarioError("schemes", text, f"{path.name} cannot be imported under this name; call it otherwise")
    if folder not in sys.path:
        # Last, so that nothing in that folder takes the place of a package.
        sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        module = taken or importlib.import_module(stem)
    except SystemExit as end:
        raise ScenarioError(
            "schemes",
            text,
            f"the file ended the program when it was imported (SystemExit: {end.code}); what it does as a program goes "
            'below `if __name__ == "__main__":`',
        ) from None
    except Exception as error:
        raise ScenarioError("schemes", text, f"cannot be imported: {type(error).__name__}: {error}") from error
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise ScenarioError("schemes", text, f"there is another module {stem}, {module.__file__}; call yours otherwise")
    _READ.add(stem)
    return module


def _rules_of(module: ModuleType) -> list[type[UploadRule]]:
    return [
        found
        for _, found in getmembers(module, isclass)
        if found.__module__ == module.__name__ and issubclass(found, UploadRule) and not isabstract(found)
    ]


def _listed(module: ModuleType) -> str:
    return ", ".join(found.__name__ for found in _rules_of(module)) or "no upload rule"
