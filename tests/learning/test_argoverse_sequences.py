"""Sequences in the official CSV layout: read back as written, and refused by name when they cannot be used."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from wayfare.errors import InputError
from wayfare.learning.argoverse.sequence import COLUMNS, STEPS, read_sequence, sequence_files, write_sequence
from wayfare.learning.argoverse.synthetic import synthetic_sequence, write_synthetic


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "7.csv"
    write_sequence(path, synthetic_sequence(0, "train", 3))
    return path


def test_a_sequence_reads_back_as_it_was_written(file: Path) -> None:
    original, back = synthetic_sequence(0, "train", 3), read_sequence(file)
    seen = ~np.isnan(original.places_m[:, :, 0]).all(axis=1)
    assert back.city == original.city
    assert back.kinds.tolist() == original.kinds[seen].tolist()
    np.testing.assert_allclose(back.places_m[0], original.places_m[0], atol=1e-6)
    assert np.nansum(back.places_m) == pytest.approx(np.nansum(original.places_m[seen]), abs=1e-2)


def test_steps_go_by_rank_and_not_by_time(file: Path) -> None:
    rows = [line.split(",") for line in file.read_text().splitlines()]
    for row in rows[1:]:
        row[0] = str(float(row[0]) ** 2)
    # Columns and rows in another order, one column more.
    shuffled = [",".join([*reversed(row), "x"]) for row in [rows[0], *reversed(rows[1:])]]
    uneven = file.with_name("8.csv")
    uneven.write_text("\n".join(shuffled) + "\n\n")
    np.testing.assert_allclose(read_sequence(uneven).places_m[0], read_sequence(file).places_m[0])


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def without_last_step(text: str) -> str:
    lines = text.splitlines()
    last = lines[-1].split(",")[0]
    return "\n".join(line for line in lines if not line.startswith(last))


def without_an_agent_row(text: str) -> str:
    lines = text.splitlines()
    lines.remove(next(line for line in lines if ",AGENT," in line))
    return "\n".join(lines)


def with_the_second_row_twice(text: str) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[:2], *lines[1:]])


def in_two_cities(text: str) -> str:
    return re.sub("MIA|PIT", lambda found: "PIT" if found[0] == "MIA" else "MIA", text, count=1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (replaced("CITY_NAME", "TOWN"), "7.csv: the column CITY_NAME is missing"),
        (lambda text: "", "7.csv: the column TIMESTAMP is missing"),
        (lambda text: ",".join(COLUMNS), "7.csv: contains no rows"),
        (replaced(",AGENT,", ",AGENT,,"), "cells, but the header has 6"),
        (replaced(",AGENT,", ",TRAIN,"), "OBJECT_TYPE = 'TRAIN' must be one of AGENT, AV, OTHERS"),
        (replaced(",AGENT,", ",OTHERS,"), "0 tracks of type AGENT; a sequence has exactly one"),
        (replaced(",AV,", ",AGENT,"), "2 tracks of type AGENT"),
        (lambda text: re.sub("MIA|PIT", "ROM", text), "CITY_NAME = 'ROM' is unknown; must be one of MIA, PIT"),
        (in_two_cities, "a sequence lies in one city"),
        (without_last_step, f"{STEPS - 1} steps; a sequence has 50"),
        (without_an_agent_row, "the AGENT must be seen in all 50 steps, not in 49"),
        (with_the_second_row_twice, "appears twice in one step"),
        (lambda text: text + "315968000.0000000,b,OTHERS,here,0,MIA\n", "X = 'here' is not a valid number"),
        (lambda text: text + "315968000.0000000,b,OTHERS,nan,0,MIA\n", "X = 'nan' is not a valid number"),
        (lambda text: text + "noon,b,OTHERS,1,0,MIA\n", "TIMESTAMP = 'noon' is not a valid number"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(
    file: Path, damage: Callable[[str], str], message: str
) -> None:
    file.write_text(damage(file.read_text()))
    with pytest.raises(InputError) as caught:
        read_sequence(file)
    assert message in str(caught.value)
    assert "7.csv" in str(caught.value)


def test_bytes_that_are_no_text_are_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"7\.csv: cannot be read"):
        read_sequence(file)


def test_folders_without_sequences_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such folder"):
        sequence_files(tmp_path / "nowhere", "train")
    with pytest.raises(InputError, match="the official layout has train/data"):
        sequence_files(tmp_path, "train")
    (tmp_path / "train" / "data").mkdir(parents=True)
    with pytest.raises(InputError, match=r"contains no sequences \(\*.csv\)"):
        sequence_files(tmp_path, "train")


def test_a_synthetic_folder_has_the_official_layout(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "made", 3, 2)
    names = sorted(str(path.relative_to(tmp_path / "made")) for path in (tmp_path / "made").rglob("*.*"))
    assert names == [
        *("navmap/MIA.json", "navmap/PIT.json", "train/data/1.csv", "train/data/2.csv", "train/data/3.csv"),
        *("val/data/1.csv", "val/data/2.csv"),
    ]
    with pytest.raises(InputError, match="made: already exists"):
        write_synthetic(tmp_path / "made", 1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_synthetic_sequence_depends_on_its_key_alone() -> None:
    first, again = (synthetic_sequence(4, "val", 11) for _ in range(2))
    np.testing.assert_array_equal(first.places_m, again.places_m)
    assert not np.array_equal(first.places_m[0], synthetic_sequence(4, "train", 11).places_m[0])


def test_synthetic_cars_keep_apart_move_smoothly_and_turn() -> None:
    turned = 0
    for number in range(40):
        track = synthetic_sequence(0, "train", number).places_m[0]
        speeds_mps = np.linalg.norm(track[10:] - track[:-10], axis=1)
        assert speeds_mps.max() < 25
        begin, end = track[10] - track[0], track[-1] - track[-11]
        cosine = begin @ end / max(np.linalg.norm(begin) * np.linalg.norm(end), 1e-9)
        turned += int(cosine < 0.7 and np.linalg.norm(end) > 1)
    assert 2 <= turned <= 30


@pytest.mark.skipif("WAYFARE_ARGOVERSE" not in os.environ, reason="WAYFARE_ARGOVERSE names no folder of real sequences")
def test_real_sequences_can_be_read() -> None:
    for path in sequence_files(Path(os.environ["WAYFARE_ARGOVERSE"]), "val")[:50]:
        sequence = read_sequence(path)
        assert sequence.places_m.shape[1:] == (STEPS, 2)
        assert not np.isnan(sequence.places_m[0]).any()
