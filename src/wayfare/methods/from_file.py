"""Load your own part from a file: ``mine.py:Patient``, or ``mine.py`` if it has one upload rule."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from inspect import getmembers, isabstract, isclass
from pathlib import Path
from types import ModuleType
from typing import Any

from wayfare.errors import InputError, ScenarioError
from wayfare.methods.own_code import described, place_of
from wayfare.methods.parts import Method, UploadRule

# The content hash of each loaded module.
_READ: dict[str, str] = {}


def reject_edited(method: Method) -> None:
    """Reject a method whose file was edited after it was loaded: it still runs the old code."""
    for part in method.parts.values():
        name = type(part).__module__
        if name in _READ and _READ[name] != _hash_of(Path(sys.modules[name].__file__ or "")):
            rule = f"{name}.py was edited after it was loaded; name the file again or restart the program"
            raise ScenarioError("schemes", method.name, rule)


def from_file(text: str) -> Any:
    module, name = module_of(text, "schemes")
    file = Path(module.__file__ or "").name
    if name:
        found = vars(module).get(name)
        if found is None:
            raise ScenarioError("schemes", text, f"{file} has no {name}; it contains {_listed(module)}")
        return found
    own = _rules_of(module)
    if len(own) != 1:
        raise ScenarioError(
            "schemes", text, f"name the class, as in {file}:Patient; the file contains {_listed(module)}"
        )
    return own[0]


def own_folders() -> list[Path]:
    """The folders of all files that were loaded."""
    return [Path(sys.modules[name].__file__ or "").resolve().parent for name in _READ if name in sys.modules]


def own_error(error: BaseException) -> InputError | None:
    """The error as one of input, if it arose in a loaded file or beside it."""
    folders = own_folders()
    return None if place_of(error, folders) is None else InputError(described(error, folders))


def module_of(text: str, field: str) -> tuple[ModuleType, str]:
    """Import the file of ``FILE.py:NAME``; return the module and NAME. ``field`` is the setting that names it.

    The folder joins ``sys.path``, so that worker processes can import the module too.
    """
    file, _, name = text.rpartition(".py")
    path = Path(f"{file}.py")
    if not path.is_file():
        raise ScenarioError(field, text, f"file {path} does not exist")
    folder, stem = str(path.resolve().parent), path.stem
    taken = sys.modules.get(stem)
    if "." in stem or stem in sys.stdlib_module_names:
        raise ScenarioError(field, text, f"{path.name} cannot be imported under this name; rename it")
    if folder not in sys.path:
        # At the end, so that no file in that folder hides a package.
        sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        content = _hash_of(path)
        module = importlib.import_module(stem) if taken is None else _up_to_date(taken, content)
    except SystemExit as end:
        raise ScenarioError(
            field,
            text,
            f"the file exits when it is imported (SystemExit: {end.code}); move the code that runs as a program "
            'below `if __name__ == "__main__":`',
        ) from None
    except Exception as error:
        raise ScenarioError(field, text, f"cannot be imported: {described(error, [Path(folder)])}") from error
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise ScenarioError(field, text, f"another module is called {stem} ({module.__file__}); rename yours")
    _READ[stem] = content
    return module, name.removeprefix(":")


def _up_to_date(module: ModuleType, content: str) -> ModuleType:
    """Reload a module if its file was edited."""
    if _READ.get(module.__name__, content) == content:
        return module
    # Python would reuse a compiled file with the same second and size.
    Path(importlib.util.cache_from_source(module.__file__ or "")).unlink(missing_ok=True)
    for name in [name for name in vars(module) if not name.startswith("__")]:
        del vars(module)[name]
    return importlib.reload(module)


def _hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _rules_of(module: ModuleType) -> list[type[UploadRule]]:
    return [
        found
        for _, found in getmembers(module, isclass)
        if found.__module__ == module.__name__ and issubclass(found, UploadRule) and not isabstract(found)
    ]


def _listed(module: ModuleType) -> str:
    return ", ".join(found.__name__ for found in _rules_of(module)) or "no upload rule"
