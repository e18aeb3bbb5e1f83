"""Something of one's own from a file: ``mine.py:Patient``, or ``mine.py`` where it holds one upload rule only."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from inspect import getmembers, isabstract, isclass
from pathlib import Path
from types import ModuleType
from typing import Any

from wayfare.errors import ScenarioError
from wayfare.methods.parts import Method, UploadRule

# Modules that were read from files, with the hash of what was read.
_READ: dict[str, str] = {}


def refuse_edited(method: Method) -> None:
    """A method made before its file was edited still has the code of before: it must be made again."""
    for part in method.parts.values():
        name = type(part).__module__
        if name in _READ and _READ[name] != _hash_of(Path(sys.modules[name].__file__ or "")):
            rule = f"{name}.py was edited after this program read it; name the file again, or restart the program"
            raise ScenarioError("schemes", method.name, rule)


def from_file(text: str) -> Any:
    module, name = module_of(text, "schemes")
    file = Path(module.__file__ or "").name
    if name:
        found = vars(module).get(name)
        if found is None:
            raise ScenarioError("schemes", text, f"{file} has no {name}; it has {_listed(module)}")
        return found
    own = _rules_of(module)
    if len(own) != 1:
        raise ScenarioError("schemes", text, f"name the class, as in {file}:Patient; the file has {_listed(module)}")
    return own[0]


def module_of(text: str, field: str) -> tuple[ModuleType, str]:
    """The file of a name as a module, and what is named in it. ``field`` is the setting that names it.

    Other processes can import the module too: they search where this one does.
    """
    file, _, name = text.rpartition(".py")
    path = Path(f"{file}.py")
    if not path.is_file():
        raise ScenarioError(field, text, f"there is no file {path}")
    folder, stem = str(path.resolve().parent), path.stem
    taken = sys.modules.get(stem)
    if "." in stem or stem in sys.stdlib_module_names:
        raise ScenarioError(field, text, f"{path.name} cannot be imported under this name; call it otherwise")
    if folder not in sys.path:
        # Last, so that nothing in that folder takes the place of a package.
        sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        content = _hash_of(path)
        module = importlib.import_module(stem) if taken is None else _up_to_date(taken, content)
    except SystemExit as end:
        raise ScenarioError(
            field,
            text,
            f"the file ended the program when it was imported (SystemExit: {end.code}); what it does as a program goes "
            'below `if __name__ == "__main__":`',
        ) from None
    except Exception as error:
        raise ScenarioError(field, text, f"cannot be imported: {type(error).__name__}: {error}") from error
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise ScenarioError(field, text, f"there is another module {stem}, {module.__file__}; call yours otherwise")
    _READ[stem] = content
    return module, name.removeprefix(":")


def _up_to_date(module: ModuleType, content: str) -> ModuleType:
    """A module that was read before, read again if its file was edited since."""
    if _READ.get(module.__name__, content) == content:
        return module
    # Python takes a compiled file of the same second and size for the edited one.
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
