from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Finished
from tests.image_files import cifar_binary, small_cifar10, small_fashion, write_folder
from wayfare.errors import UnavailableError
from wayfare.files import lock
from wayfare.learning.data import IMAGE_SETS

Type = Callable[..., Finished]


@pytest.fixture(autouse=True)
def small_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of a few images under the names of the real ones, an empty cache, and no network."""
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "cache"))
    for spec, _ in (small_cifar10(), small_fashion()):
        monkeypatch.setitem(IMAGE_SETS, spec.name, spec)  # type: ignore[arg-type]
    monkeypatch.setattr("wayfare.learning.data.packages.shutil.which", lambda program: None)
    monkeypatch.setattr("wayfare.learning.data.fetch.download", _no_network)


def _no_network(url: str, *_: object) -> None:
    raise UnavailableError(f"{url}: no network")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "cifar-10-batches-bin", cifar_binary(small_cifar10()[1]))


def test_a_set_is_listed_fetched_and_verified(wayfare_command: Type, source: Path, tmp_path: Path) -> None:
    assert [each["here"] for each in wayfare_command("data", "list", "--json").json["sets"]] == [False, False]
    done = wayfare_command("data", "fetch", "cifar10", "--from", source)
    assert done.code == 0
    assert f"cifar10: fetched ({source})" in done.out
    assert "cifar10: reading cifar-10-batches-bin" in done.err
    assert "cifar10: already in the cache" in wayfare_command("data", "fetch", "cifar10").out
    assert [each["here"] for each in wayfare_command("data", "list", "--json").json["sets"]] == [True, False]
    assert "yes" in wayfare_command("data", "list").out
    done = wayfare_command("data", "verify")
    assert done.code == 0
    for words in ("CIFAR-10: exact", "20 for training, 4 for testing", "0 1 2 3 4", "published 0.4914 0.4822 0.4465"):
        assert words in " ".join(done.out.split())
    (found,) = wayfare_command("data", "verify", "cifar10", "--json").json["sets"]
    assert found["exact"]
    assert found["sha256"] == small_cifar10()[1].digest()


def test_a_set_is_packed_and_joined(wayfare_command: Type, source: Path, tmp_path: Path) -> None:
    wayfare_command("data", "fetch", "cifar10", "--from", source)
    done = wayfare_command("data", "pack", "cifar10", "--out", tmp_path / "parts", "--part-mb", 0.02)
    assert done.code == 0
    assert done.out.count("cifar10.npz.") == 4
    done = wayfare_command("data", "fetch", "cifar10", "--from", tmp_path / "parts", "--json")
    assert done.json["sets"][0]["source"] == str(tmp_path / "parts")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fetch", "imagenet"], "imagenet: no such data set; must be one of cifar10, fashion"),
        (["fetch", "cifar10"], "cifar10: all sources failed (official: https://www.cs.toronto.edu"),
        (["fetch", "cifar10", "--from", "/nowhere"], "/nowhere: no such file or folder"),
        (["fetch", "--from", "/nowhere"], "--from = '/nowhere': name the one data set that this copy holds"),
        (["fetch", "cifar10", "--source", "moon"], "Invalid value for '--source'"),
        (["verify"], "contains no data set; run `wayfare data fetch`"),
        (["verify", "fashion"], "fashion: Fashion-MNIST is not in"),
        (["pack", "fashion", "--out", "parts"], "fetch it with `wayfare data fetch fashion`"),
        (["remove"], "Missing argument 'NAME...'"),
        (["remove", "cifar10"], "cache/features have this name"),
        (["who", "paper-cifar10-waypoint"], "fetch it with `wayfare data fetch cifar10`"),
        (["who", "--set", "learning.partition.kind=fair"], "learning.partition.kind = 'fair': must be one of"),
        (["who", "--plot", "/nowhere/who.png"], "/nowhere/who.png: cannot write the figure"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: list[str], message: str, wayfare_command: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = wayfare_command("data", *words)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert done.out == ""


# Names of own image sets may begin with dots.
NAMES = ("..-cifar10-net-32px-0123abcd", "..-cifar10-net-32px-cut2-0123abce", "fashion-net-32px-0123abcf")


@pytest.fixture
def features(tmp_path: Path) -> list[Path]:
    """Files of features, one of which is only a draft."""
    files = [tmp_path / "cache" / "features" / f"{name}0123456789ab.npz" for name in NAMES]
    files[0].parent.mkdir(parents=True)
    for file in files[:2]:
        file.write_bytes(bytes(3_000_000))
    files[2].with_name(f".{files[2].name}.89abcdef.new").write_bytes(bytes(1_500_000))
    return files


def test_features_are_listed_and_removed(wayfare_command: Type, features: list[Path]) -> None:
    found = wayfare_command("data", "list", "--json").json["features"]
    assert [(each["name"], each["file"], each["size_bytes"], each["state"]) for each in found] == [
        (NAMES[0], str(features[0]), 3_000_000, "ready"),
        (NAMES[1], str(features[1]), 3_000_000, "ready"),
        (NAMES[2], str(features[2]), 1_500_000, "interrupted"),
    ]
    shown = wayfare_command("data", "list").out
    assert all(word in shown for word in (*NAMES, "3.0", "1.5", "ready", "interrupted"))
    done = wayfare_command("data", "remove", NAMES[2])
    assert (done.code, done.out) == (0, f"{NAMES[2]}: removed, 1.5 MB\n")
    assert [each["name"] for each in wayfare_command("data", "list", "--json").json["features"]] == [*NAMES[:2]]
    done = wayfare_command("data", "remove", "*cifar10-*", "*cifar10-net-32px-0*", "--json")
    assert [each["name"] for each in done.json["removed"]] == [*NAMES[:2]]
    assert done.json["kept"] == []
    assert {file.suffix for file in features[0].parent.iterdir()} == {".lock"}
    assert "Remove features" not in wayfare_command("data", "list").out


@pytest.mark.parametrize(
    ("suffix", "shared", "state"), [(".npz", True, "in use"), (".lock", False, "computing")], ids=["use", "computing"]
)
def test_features_that_a_process_uses_or_computes_stay(
    suffix: str, shared: bool, state: str, wayfare_command: Type, features: list[Path]
) -> None:
    with features[0].with_suffix(suffix).open("ab+") as held:
        lock(held.fileno(), shared=shared)
        assert wayfare_command("data", "list", "--json").json["features"][0]["state"] == state
        done = wayfare_command("data", "remove", "*")
    assert done.code == 0
    assert f"{NAMES[0]}: kept, because a process uses or computes it" in done.out
    assert f"{NAMES[1]}: removed, 3.0 MB" in done.out
    assert [file.suffix for file in sorted(features[0].parent.iterdir()) if file.suffix != ".lock"] == [".npz"]
    assert wayfare_command("data", "remove", NAMES[0], "--json").json["kept"] == []


def test_a_damaged_set_is_named(wayfare_command: Type, source: Path, tmp_path: Path) -> None:
    wayfare_command("data", "fetch", "cifar10", "--from", source)
    file = tmp_path / "cache" / "cifar10.npz"
    file.write_bytes(file.read_bytes()[:-100])
    done = wayfare_command("data", "verify", "cifar10")
    assert done.code == 2
    assert f"{file}: damaged" in done.err


def test_who_holds_what_is_a_table_and_a_picture(wayfare_command: Type, tmp_path: Path) -> None:
    picture = tmp_path / "who.png"
    settings = ("--set", "learning.partition.kind=shards", "--set", "fleet.devices=5", "--plot", picture)
    done = wayfare_command("data", "who", *settings)
    assert done.code == 0
    assert "fashion-small: shards, shards_per_device 2" in done.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = wayfare_command("data", "who", "--seed", 3, "--json").json
    assert len(found["counts"]) == 20
    assert sum(map(sum, found["counts"])) == 10_000
    assert 0.5 < found["largest_share_mean"] < 0.9


def test_the_commands_about_data_do_not_wait_for_torch() -> None:
    code = "import sys, wayfare.cli.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
