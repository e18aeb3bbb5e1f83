"""Samples in a folder that grows, in all formats, larger than the memory, and damaged."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from wayfare import local_task
from wayfare.errors import InputError, ScenarioError
from wayfare.field.runtime.local_folder import LocalFolder
from wayfare.field.runtime.logs import Sparing
from wayfare.learning.folders import FolderSamples, Wanted
from wayfare.learning.tasks.local import folder_task

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(20, 3)).astype(np.float32)
LABELS = RNG.integers(0, 4, size=20)
WANTED = Wanted(shape=(3,), classes=4, class_names=("car", "bus", "tram", "bike"))

TASK = local_task("traffic", network=torch.nn.Linear(3, 4), sample=torch.zeros(3), classes=4)


def opened(folder: Path, wanted: Wanted = WANTED) -> FolderSamples:
    return FolderSamples(folder, wanted, folder / ".cache")


def write_csv(file: Path, *, names: bool = False) -> None:
    rows = [
        ",".join([*map(repr, map(float, row)), WANTED.class_names[label] if names else str(label)])
        for row, label in zip(INPUTS, LABELS, strict=True)
    ]
    file.write_text("\n".join(["a,b,c,label", *rows]), encoding="utf-8")


def write_parquet(file: Path, *, lists: bool) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns: dict[str, Any] = {"x": INPUTS.tolist()} if lists else {name: INPUTS[:, i] for i, name in enumerate("abc")}
    parquet.write_table(pyarrow.table({**columns, "label": LABELS}), file, row_group_size=7)


FORMATS = {
    "a.npz": lambda file: np.savez(file, inputs=INPUTS, labels=LABELS),
    "b.npz": lambda file: np.savez_compressed(file, x=INPUTS, y=LABELS),
    "fortran.npz": lambda file: np.savez(file, inputs=np.asfortranarray(INPUTS), labels=LABELS),
    "c.pt": lambda file: torch.save({"inputs": torch.from_numpy(INPUTS), "labels": torch.from_numpy(LABELS)}, file),
    "d.pt": lambda file: torch.save((torch.from_numpy(INPUTS), torch.from_numpy(LABELS)), file),
    "e.csv": write_csv,
    "f.csv": lambda file: write_csv(file, names=True),
    "g.parquet": lambda file: write_parquet(file, lists=False),
    "h.parquet": lambda file: write_parquet(file, lists=True),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_samples_and_maps_its_inputs(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name)
    samples = opened(tmp_path)
    numbers = np.array([7, 0, 19, 7])
    inputs, labels = samples.batch(numbers)
    assert torch.equal(inputs, torch.from_numpy(INPUTS[numbers]))
    assert torch.equal(labels, torch.from_numpy(LABELS[numbers]))
    # Inputs stay on the disk.
    (part,) = samples._kept
    base: Any = part.inputs
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap) and base.base is not None:
        base = base.base
    assert isinstance(base, np.memmap) or name.endswith(".pt")


def test_a_folder_grows_and_shrinks_and_keeps_the_order_of_names(tmp_path: Path) -> None:
    samples = opened(tmp_path)
    assert len(samples) == 0
    assert not samples.rescan()
    write_csv(tmp_path / "b.csv")
    assert samples.rescan()
    np.savez(tmp_path / "a.npz", inputs=INPUTS[:5] + 1, labels=LABELS[:5])
    assert samples.rescan()
    assert len(samples) == 25
    assert torch.equal(samples.batch(np.array([0]))[0][0], torch.from_numpy(INPUTS[0] + 1))
    assert torch.equal(samples.batch(np.array([5, 4]))[0], torch.from_numpy(np.stack([INPUTS[0], INPUTS[4] + 1])))
    assert len(list((tmp_path / ".cache").iterdir())) == 1
    (tmp_path / "b.csv").unlink()
    assert samples.rescan()
    assert (len(samples), list((tmp_path / ".cache").iterdir())) == (5, [])


def test_images_are_in_folders_named_by_class(tmp_path: Path) -> None:
    for name, shade in (("bus", 10), ("bike", 200)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 6), (shade, 0, 0)).save(tmp_path / name / "one.png")
    for shape in ((6, 8, 3), (3, 6, 8), (6, 8), (1, 6, 8), (3, 3, 4)):
        samples = opened(tmp_path, Wanted(shape=shape, classes=4, class_names=WANTED.class_names))
        inputs, labels = samples.batch(np.arange(2))
        assert inputs.shape == (2, *shape)
        assert inputs.dtype == torch.uint8
        assert labels.tolist() == [3, 1]
    (tmp_path / "bus" / "two.png").write_bytes((tmp_path / "bus" / "one.png").read_bytes())
    assert samples.rescan()
    assert len(samples) == 3


def test_a_damaged_image_has_a_line_and_the_next_one_takes_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "bus").mkdir()
    for name, shade in (("a", 10), ("b", 20), ("c", 30)):
        Image.new("L", (4, 4), shade).save(tmp_path / "bus" / f"{name}.png")
    wanted = Wanted(shape=(4, 4), classes=4, class_names=WANTED.class_names)
    samples = opened(tmp_path, wanted)
    cut = tmp_path / "bus" / "c.png"
    cut.write_bytes(cut.read_bytes()[:40])
    (tmp_path / "bus" / "b.png").unlink()
    for _ in range(2):
        assert samples.batch(np.array([2, 1, 0]))[0][:, 0, 0].tolist() == [10, 10, 10]
    assert [line.partition(" is skipped: ")[0] for line in caplog.messages] == [str(cut), str(cut.with_name("b.png"))]
    (tmp_path / "bus" / "a.png").unlink()
    with pytest.raises(InputError, match="bus: none of its 3 images can be read"):
        samples.batch(np.array([0]))


def test_images_need_a_task_with_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bus").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "bus" / "one.png")
    assert len(opened(tmp_path)) == 0
    assert "images need a sample of 2 or 3 axes, the task expects (3,)" in caplog.text
    with pytest.raises(ScenarioError, match=r"data = '.*': has no samples for the task"):
        folder_task(TASK, tmp_path, tmp_path / ".cache").evaluate(TASK.model.module())


def test_the_log_counts_images_not_class_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bus").mkdir()
    for name in ("a", "b", "c"):
        Image.new("L", (4, 4)).save(tmp_path / "bus" / f"{name}.png")
    np.savez(tmp_path / "more.npz", inputs=np.zeros((5, 4, 4)), labels=np.zeros(5, dtype=int))
    with caplog.at_level(logging.INFO, "wayfare.field"):
        opened(tmp_path, Wanted(shape=(4, 4), classes=4, class_names=WANTED.class_names))
    (line,) = map(vars, caplog.records)
    assert (line["samples"], line["files"]) == (8, 4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"inputs": INPUTS, "labels": LABELS[:3]}, "has 20 inputs and 3 labels"),
        ({"inputs": INPUTS[:, :2], "labels": LABELS}, r"inputs have shape \(2,\), the task expects \(3,\)"),
        ({"inputs": INPUTS, "labels": LABELS + 9}, "has labels from 9 to"),
        ({"inputs": INPUTS, "labels": LABELS + 0.5}, "labels must be classes"),
        ({"inputs": INPUTS, "labels": np.array(["plane"] * 20)}, "has the label 'plane'; the task knows car, bus"),
        ({"inputs": np.where(INPUTS > 1, np.nan, INPUTS), "labels": LABELS}, "NaN or infinity in sample"),
        ({"inputs": INPUTS, "other": LABELS}, "one must be called `label`"),
        ({"p": INPUTS, "q": INPUTS, "labels": LABELS}, "name the inputs `inputs`"),
    ],
)
def test_a_file_that_cannot_be_used_is_skipped_with_one_warning(
    content: dict[str, Any], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez(tmp_path / "good.npz", inputs=INPUTS, labels=LABELS)
    np.savez(tmp_path / "bad.npz", **content)
    with caplog.at_level(logging.WARNING, "wayfare.field"):
        samples = opened(tmp_path)
        assert not samples.rescan()
    assert len(samples) == 20
    (line,) = caplog.messages
    assert "bad.npz is skipped: " in line
    assert re.search(reason, line)


def test_a_half_written_file_counts_when_it_is_complete(tmp_path: Path) -> None:
    np.savez(tmp_path / ".whole.npz", inputs=INPUTS, labels=LABELS)
    data = (tmp_path / ".whole.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(data[:100])
    samples = opened(tmp_path)
    assert len(samples) == 0
    (tmp_path / ".whole.npz").replace(tmp_path / "a.npz")
    assert samples.rescan()
    assert len(samples) == 20


class Items:
    """A data set as of PyTorch."""

    def __init__(self, folder: Path) -> None:
        self.rows = [float(line) for line in (folder / "rows.txt").read_text(encoding="utf-8").split()]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), self.rows[row]), int(self.rows[row]) % 4


def test_a_load_of_your_own_reads_the_folder_and_is_called_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("1 2", encoding="utf-8")
    samples = opened(tmp_path, Wanted(shape=(3,), classes=4, load=Items))
    assert samples.batch(np.array([1]))[0].tolist() == [[2.0] * 3]
    assert samples.targets.tolist() == [1, 2]
    (tmp_path / "rows.txt").write_text("1 2 3 4 5", encoding="utf-8")
    assert samples.rescan()
    assert len(samples) == 5
    pair = opened(tmp_path, Wanted(shape=(3,), classes=4, load=lambda folder: (INPUTS, torch.from_numpy(LABELS))))
    assert len(pair) == 20


def test_a_task_of_real_numbers_gets_pixels_between_0_and_1_beside_real_numbers(tmp_path: Path) -> None:
    (tmp_path / "bus").mkdir()
    Image.new("L", (4, 3), 51).save(tmp_path / "bus" / "one.png")
    np.savez(tmp_path / "bytes.npz", inputs=np.full((1, 1, 3, 4), 51, np.uint8), labels=[0])
    np.savez(tmp_path / "integers.npz", inputs=np.full((1, 12), 51), labels=[0])
    np.savez(tmp_path / "real.npz", inputs=np.full((1, 1, 3, 4), 0.2), labels=[0])
    wanted = Wanted(shape=(1, 3, 4), classes=4, class_names=WANTED.class_names, real_numbers=True)
    inputs, labels = opened(tmp_path, wanted).batch(np.arange(4))
    assert inputs.dtype == torch.float32
    assert inputs[:, 0, 0, 0].tolist() == pytest.approx([0.2, 0.2, 51, 0.2])
    assert labels.tolist() == [1, 0, 0, 0]


def test_every_skipped_file_and_an_empty_folder_have_their_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sparing = Sparing()
    with caplog.at_level(logging.WARNING, "wayfare.field"):
        folder = LocalFolder(TASK, tmp_path, tmp_path / ".cache", rescan_s=0.0)
        for name in ("cut.npz", "other.npz"):
            (tmp_path / name).write_bytes(b"PK")
        assert folder.has_changed()
    shown = [record.getMessage() for record in caplog.records if sparing.filter(record)]
    assert [re.sub(r"skipped: .*", "skipped", line.removeprefix(f"{tmp_path}/")) for line in shown] == [
        "no data yet; the device waits for files",
        "cut.npz is skipped",
        "other.npz is skipped",
    ]
