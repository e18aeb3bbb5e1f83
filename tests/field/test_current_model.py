"""A device keeps the model that it received last in a file for inference."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from safetensors import safe_open

from tests.field.brokers import finish
from tests.field.test_life_cycle import LAYOUT, MODEL
from wayfare.field.runtime.current_model import CURRENT, CurrentModel
from wayfare.field.runtime.outbox import Outbox
from wayfare.methods import make_method
from wayfare.scenario import Scenario


def test_the_file_follows_the_received_model(tmp_path: Path) -> None:
    first = torch.zeros(MODEL.parameters)
    outbox = Outbox(
        *(tmp_path / "device.sqlite", first, make_method("mads", Scenario())),
        layout=LAYOUT,
        budget_joules=1.0,
        identity={"name": "one"},
    )
    file = tmp_path / CURRENT

    async def a_moment() -> list[str]:
        keeping = asyncio.ensure_future(CurrentModel(outbox, MODEL, LAYOUT, tmp_path).keep(0.0))
        seen = []
        for version in (0, 7):
            if version:
                outbox.receive(torch.full_like(first, 0.5), version, 1)
            while not file.exists() or _version(file) != str(version):
                await asyncio.sleep(0.02)
            seen.append(_version(file))
        keeping.cancel()
        return seen

    assert finish(a_moment()) == ["0", "7"]
    with safe_open(file, framework="pt") as stored:
        assert all(bool((stored.get_tensor(name) == 0.5).all()) for name in stored.keys())  # noqa: SIM118
    outbox.close()


def _version(file: Path) -> str:
    with safe_open(file, framework="pt") as stored:
        return str(stored.metadata()["version"])
