from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.field.brokers import needs_broker
from wayfare.field.fleet import Fleet, create_fleet
from wayfare.field.rig.broker import Broker


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A fleet of three devices, not to be changed."""
    return create_fleet(tmp_path_factory.mktemp("fleet") / "fleet", devices=["bus-1", "bus-2", "drone"])


@pytest.fixture
def broker(fleet: Fleet, tmp_path: Path) -> Iterator[Broker]:
    """Its broker, with a store of its own."""
    needs_broker()
    with Broker(fleet, store=tmp_path / "store", port=0) as running:
        yield running
