"""A process that waits for the features that another one computes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.backbones import backbone as chain
from tests.image_files import small_arrays

from wayfare.files import lock
from wayfare.learning.backbones import activations_of
from wayfare.learning.data import CIFAR10
from wayfare.progress import listening


@pytest.mark.parametrize("half", [True, False])
def test_a_process_that_waits_for_features_says_how_far_the_other_is(
    half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    arrays, folder = small_arrays(CIFAR10, train=20, test=7), tmp_path / "features"
    activations_of("small", arrays, chain(), 32, 2)
    (file,) = folder.glob("*.npz")
    content, reports = file.read_bytes(), list[tuple[str, int, int]]()
    file.unlink()
    draft = folder / f".{file.name}.0123.new"
    draft.write_bytes(content[: len(content) // 2] if half else b"")

    def other_ends(what: str, done: int, total: int) -> None:
        reports.append((what, done, total))
        draft.unlink(missing_ok=True)
        file.write_bytes(content)
        held.close()

    held = file.with_suffix(".lock").open("w")
    lock(held.fileno())
    with listening(other_ends):
        found = activations_of("small", arrays, chain(), 32, 2)
    total = len(arrays.train_labels) + len(arrays.test_labels)
    assert [(what, all_) for what, _, all_ in reports] == [("activations of small", total)] * 2
    assert [done for _, done, _ in reports] == [pytest.approx(total / 2, abs=2) if half else 0, total]
    assert found.test.shape == (7, 16, 16, 4)
