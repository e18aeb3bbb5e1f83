"""What a frozen backbone makes of an image set, computed once and cached by content: weights, preprocessing and images.

It is either feature vectors, or activations at a cut: what the first trained block gets. Files can be larger than the
memory: they are written piece by piece, and mapped into memory when they are used.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wayfare.errors import ScenarioError
from wayfare.files import DRAFT_SUFFIX, lock, open_atomically, writing
from wayfare.forking import available_cores
from wayfare.learning.backbones.base import Backbone, normalised
from wayfare.learning.data import ImageArrays
from wayfare.learning.data.features import drafts_of, features_folder, lock_file
from wayfare.learning.data.sets import Pixels
from wayfare.progress import report_progress
from wayfare.threads import one_thread

# Images of a batch. On a CPU each core has its own batch, and 16 images of 160 pixels take 250 MB.
_AT_ONCE, _AT_ONCE_CPU = 64, 16
# Part of the key: change it when the same images and weights give other features. Machines and sizes of a batch
# differ in the last bit of a few values in ten thousand.
_VERSION = 1
# The difference from stored values that machines may have, as a share of the largest; rounding is below a tenth of it.
_ALLOWED = 0.01
_WATCH_EVERY_S = 0.2
_NAME_LETTERS = 80
_PARTS = ("train", "test")
_SHAPE = "must be an array of bytes (uint8) of the shape (n, channels, height, width) with 1 or 3 channels"


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Values (n, ...) of training and test images. Half precision: a file of half the size.

    Feature vectors are (n, features). Images at a cut are (n, height, width, channels), the fastest order for
    convolutions on a CPU.
    """

    train: NDArray[np.float16]
    test: NDArray[np.float16]


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A frozen part of a backbone and what goes before and after it. Activations have a cut; features have none."""

    module: nn.Module
    prepare: Callable[[Tensor], Tensor]
    arrange: Callable[[Tensor], Tensor]
    cut: int | None = None

    @property
    def what(self) -> str:
        return "features" if self.cut is None else "activations"


def features_of(name: str, images: ImageArrays, backbone: Backbone, pixels: int) -> Features:
    """The feature vectors of an image set, from the cache or computed now.

    The first process computes them and the others wait. A killed process leaves nothing but a draft, which the next
    one removes.
    """
    _check(images, backbone, pixels)
    work = _Work(backbone.module, partial(backbone.prepare, pixels=pixels), normalised)
    return _cached(work, name, images, backbone, pixels)


def activations_of(name: str, images: ImageArrays, backbone: Backbone, pixels: int, cut: int) -> Features:
    """What the block ``cut`` of a backbone gets for every image of a set, from the cache or computed now."""
    _check(images, backbone, pixels)
    work = _Work(
        nn.Sequential(*backbone.folded_blocks[:cut]), partial(backbone.prepare, pixels=pixels), _channels_last, cut
    )
    return _cached(work, name, images, backbone, pixels)


def _channels_last(signal: Tensor) -> Tensor:
    return signal.permute(0, 2, 3, 1) if signal.ndim == 4 else signal


def _check(images: ImageArrays, backbone: Backbone, pixels: int) -> None:
    """Reject arrays that would be read as other images: values between 0 and 1 are black as bytes."""
    if not isinstance(backbone, Backbone):
        rule = "must be a Backbone, as load_backbone('efficientnet-lite0') gives it"
        raise ScenarioError("backbone", type(backbone).__name__, rule)
    if not isinstance(images, ImageArrays):
        raise ScenarioError("images", type(images).__name__, "must be ImageArrays of images and labels")
    train, test = (images.train_images, images.train_labels), (images.test_images, images.test_labels)
    for part, (pictures, labels) in zip(_PARTS, (train, test), strict=True):
        if not isinstance(pictures, np.ndarray):
            raise ScenarioError(f"{part}_images", type(pictures).__name__, _SHAPE)
        found = f"{pictures.dtype} {pictures.shape}"
        if pictures.dtype.kind == "f":
            rule = f"{_SHAPE}: (255 * images).round().astype(np.uint8) for values between 0 and 1"
            raise ScenarioError(f"{part}_images", found, rule)
        if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[1] not in (1, 3) or not len(pictures):
            raise ScenarioError(f"{part}_images", found, _SHAPE)
        if not isinstance(labels, np.ndarray):
            rule = f"must be an array of as many labels as images: {len(pictures)}"
            raise ScenarioError(f"{part}_labels", type(labels).__name__, rule)
        if len(labels) != len(pictures):
            rule = f"must be as many as images: {len(pictures)}"
            raise ScenarioError(f"{part}_labels", f"{len(labels)} labels", rule)
    if type(pixels) is not int or pixels < 1:
        raise ScenarioError("pixels", pixels, "must be a whole number of at least 1")


def _cached(work: _Work, name: str, images: ImageArrays, backbone: Backbone, pixels: int) -> Features:
    cut_key, cut_name = ("", "") if work.cut is None else (f" cut {work.cut}", f"-cut{work.cut}")
    # A network with dropout or batch normalisation may have been trained since it became a backbone.
    work.module.eval()
    content = f"{_VERSION} {backbone.digest} {pixels} {images.digest()}{cut_key}"
    key = hashlib.sha256(content.encode()).hexdigest()[:20]
    names = f"{_plain(name)}-{_plain(Path(backbone.name).name)}"
    file = features_folder() / f"{names}-{pixels}px{cut_name}-{key}.npz"
    found = _read(file)
    if found is not None and _agrees(found, work, images):
        return found
    with writing(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        waiting = lock_file(file).open("w")
    with waiting:
        count = len(images.train_images) + len(images.test_images)
        _lock_or_watch(waiting.fileno(), file, f"{work.what} of {name}", count)
        found = _read(file)
        if found is None or not _agrees(found, work, images):
            backbone.check_pixels(pixels)
            _check_steady(work, images, backbone.name)
            _remove_abandoned_drafts(file)
            _compute(work, name, file, images, backbone.name)
            found = _read(file)
    if found is None:
        raise ScenarioError("learning.backbone", backbone.name, f"{file} cannot be read again")
    return found


def _plain(name: str) -> str:
    """A part of a file name: the hash distinguishes files, and the name only tells a person what they are."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", str(name))[:_NAME_LETTERS]


@torch.inference_mode()
def _check_steady(work: _Work, images: ImageArrays, backbone: str) -> None:
    """Reject a network that draws random numbers, or mixes the images of a batch, before all images are computed."""
    with one_thread():
        batch = _tensor(images.train_images[:_AT_ONCE_CPU])
        together, alone = _values(work, batch), _values(work, batch[:1])
    if len(together) != len(batch) or _differs(together[:1], alone):
        rule = f"gives other {work.what} for an image in a batch than alone, or at every call"
        raise ScenarioError("learning.backbone", backbone, rule)


def _differs(stored: Tensor, expected: Tensor) -> bool:
    return float((stored - expected).abs().max()) > _ALLOWED * float(stored.abs().max())


@torch.inference_mode()
def _agrees(found: Features, work: _Work, images: ImageArrays) -> bool:
    """Whether there is a value of every image, and the network still gives that of the first.

    The hash in the name of a file covers weights and not code, which may call functions of other files and libraries.
    """
    # Several threads would wait for each other after every layer.
    with one_thread():
        expected = _values(work, _tensor(images.train_images[:1]))
    counts = len(images.train_images), len(images.test_images)
    if (found.train.shape, found.test.shape) != tuple((count, *expected.shape[1:]) for count in counts):
        return False
    return not _differs(torch.from_numpy(found.train[:1].astype(np.float32)), expected)


def _lock_or_watch(opened: int, file: Path, what: str, total: int) -> None:
    """Lock a file. While another process holds it to compute the same values, report how far that one is."""
    watched = False
    while True:
        try:
            lock(opened)
            break
        except BlockingIOError:
            watched = True
            report_progress(what, min(_drafted(file), total - 1), total)
            time.sleep(_WATCH_EVERY_S)
    if watched:
        # The end removes the bar.
        report_progress(what, total, total)


def _drafted(file: Path) -> int:
    """About how many images the draft of a file holds."""
    with suppress(OSError, ValueError, StopIteration):
        draft = next(iter(drafts_of(file)))
        with draft.open("rb") as content:
            (_, *shape), dtype = _header(content, 0)
        return int(draft.stat().st_size // (math.prod(shape) * dtype.itemsize))
    return 0


def _remove_abandoned_drafts(file: Path) -> None:
    """Remove what killed processes left in the folder; the caller holds the lock of ``file``.

    A draft is abandoned if nobody holds the lock of its features.
    """
    for draft in file.parent.glob(f".*.npz.*{DRAFT_SUFFIX}"):
        name = draft.name.removeprefix(".").rpartition(".npz.")[0]
        if name == file.stem:
            draft.unlink(missing_ok=True)
            continue
        with suppress(OSError), draft.with_name(f"{name}.lock").open("w") as held:
            lock(held.fileno())
            draft.unlink(missing_ok=True)


def _tensor(pictures: Pixels) -> Tensor:
    """A copy if PyTorch cannot hold them: negative strides, or read-only."""
    return torch.from_numpy(np.require(pictures, requirements=("C", "W")))


def _values(work: _Work, batch: Tensor) -> Tensor:
    prepared = work.prepare(batch)
    try:
        return work.arrange(work.module(prepared))
    except RuntimeError:
        # A user's own network may look at a signal as rows (`x.view(x.size(0), -1)`), which needs PyTorch's own layout.
        work.module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return work.arrange(work.module(prepared))


def _in_order(work: _Work, pictures: Pixels, device: torch.device) -> Iterator[Tensor]:
    """Values of all pictures, batch by batch; on a CPU one thread per core computes a batch.

    A run has one core, but all runs of a study wait for these values. Threads that share one batch would wait for each
    other after every layer, which takes many times as long where other programs use the same cores.
    """

    at_once = _AT_ONCE_CPU if device.type == "cpu" else _AT_ONCE

    @torch.inference_mode()
    def values(begin: int) -> Tensor:
        batch = _tensor(pictures[begin : begin + at_once]).to(device)
        return _values(work, batch).half().cpu().contiguous()

    begins = iter(range(0, len(pictures), at_once))
    # The first batch finds the layout that the network takes.
    yield from map(values, islice(begins, 1))
    cores = available_cores() if device.type == "cpu" else 1
    if cores == 1:
        yield from map(values, begins)
        return
    with ThreadPoolExecutor(cores, "features", initializer=partial(torch.set_num_threads, 1)) as pool:
        ahead: deque[Future[Tensor]] = deque()
        try:
            for begin in begins:
                ahead.append(pool.submit(values, begin))
                if len(ahead) > cores:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for batch in ahead:
                batch.cancel()


def _compute(work: _Work, name: str, file: Path, images: ImageArrays, backbone: str) -> None:
    parts = dict(zip(_PARTS, (images.train_images, images.test_images), strict=True))
    total, done = sum(map(len, parts.values())), 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Runs in other threads of this process use the module meanwhile.
    module = copy.deepcopy(work.module).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    work = replace(work, module=module)

    def write(pictures: Pixels, target: IO[bytes]) -> None:
        nonlocal done
        begin = 0
        for values in _in_order(work, pictures, device):
            if not bool(values.isfinite().all()):
                last = begin + len(values) - 1
                rule = f"the {work.what} of image {begin} to {last} of {name} do not fit half precision"
                raise ScenarioError("learning.backbone", backbone, rule)
            if begin == 0:
                header: dict[str, Any] = {"descr": "<f2", "fortran_order": False}
                np.lib.format.write_array_header_1_0(target, {**header, "shape": (len(pictures), *values.shape[1:])})
            target.write(values.numpy().tobytes())
            begin, done = begin + len(values), done + len(values)
            report_progress(f"{work.what} of {name}", done, total)

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with (
            # In full precision on every machine: by default a GPU rounds the products of convolutions to 10 bits.
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
            writing(file, "cannot be written"),
            open_atomically(file) as target,
            zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive,
        ):
            for part, pictures in parts.items():
                with archive.open(f"{part}.npy", "w", force_zip64=True) as member:
                    write(pictures, member)
    finally:
        torch.set_float32_matmul_precision(precision)
        # Some libraries have one number for all threads.
        torch.set_num_threads(threads)


def _read(file: Path) -> Features | None:
    """The values of a file; None if there is none, or if it is damaged and has to be made again."""
    try:
        return _loaded(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


@lru_cache(maxsize=2)
def _loaded(file: Path, changed_ns: int) -> Features:
    """Shared by all runs of a process, and mapped, so that the processes of a study share the memory too."""
    with file.open("rb") as content, zipfile.ZipFile(content) as archive:
        _keep(content)
        # Reads everything once and compares checksums.
        if archive.testzip() is not None:
            raise ValueError("damaged")
        return Features(*(_mapped(file, archive.getinfo(f"{part}.npy")) for part in _PARTS))


def _keep(content: IO[bytes]) -> None:
    """Lock an open file so that no user removes it; some file systems have no locks."""
    with suppress(OSError):
        lock(content.fileno(), shared=True)


def _mapped(file: Path, member: zipfile.ZipInfo) -> NDArray[np.float16]:
    """An array of an uncompressed archive. Changes stay in memory, as PyTorch accepts no array that is read-only."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError("compressed")
    with file.open("rb") as content:
        # The map keeps the file for as long as it exists.
        _keep(content)
        shape, dtype = _header(content, member.header_offset)
        return np.memmap(content, dtype, "c", content.tell(), shape)


def _header(content: IO[bytes], offset: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array whose entry in an archive begins at an offset; its values come next."""
    content.seek(offset + 26)
    name_bytes, extra_bytes = (int.from_bytes(content.read(2), "little") for _ in range(2))
    content.seek(name_bytes + extra_bytes, 1)
    np.lib.format.read_magic(content)
    shape, _, dtype = np.lib.format.read_array_header_1_0(content)
    return shape, dtype
