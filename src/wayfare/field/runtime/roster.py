"""The devices that a server knows: their names and numbers, and how much each one counts now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from wayfare.codec.errors import WireError
from wayfare.field.runtime.aggregation import Piece
from wayfare.field.runtime.daily import DailyUploads
from wayfare.field.runtime.database import Database
from wayfare.field.runtime.membership import Membership
from wayfare.field.runtime.messages import Chunk
from wayfare.field.runtime.rules import Latest


def unlimited_uploads() -> None:
    """The default: a device may upload at any time."""


class Roster:
    """The table of devices in a ledger. Without a membership, a plan has a fixed number of them."""

    def __init__(
        self,
        database: Database,
        membership: Membership | None,
        planned: int,
        uploads_per_day: Callable[[], int | None] = unlimited_uploads,
    ) -> None:
        self._database, self._membership, self._planned = database, membership, planned
        self.uploads = DailyUploads(database, uploads_per_day, self.now_s)
        self.devices: list[Latest] = []
        self._numbers: dict[str, int] = {}

    def load(self) -> None:
        self.uploads.load()
        rows = self._database.rows(
            "SELECT number, open, norm_sq, spent_joules, name, delivered_s, samples FROM devices ORDER BY device"
        )
        self.devices[:] = [Latest(number, bool(open_), *others) for number, open_, *others in rows]
        self._numbers = {latest.name: device for device, latest in enumerate(self.devices)}

    def begin(self, names: Sequence[str]) -> None:
        """Give the first devices their numbers, and their names if the ledger is from before devices had names."""
        with self._database.transaction() as connection:
            nameless = [(name, number) for number, name in enumerate(names)]
            connection.executemany("UPDATE devices SET name = ? WHERE device = ? AND name = ''", nameless)
        self.load()
        for name in names:
            self.number_of(name)

    @property
    def names(self) -> Sequence[str]:
        """Every known device, by number."""
        return [latest.name for latest in self.devices]

    def number_of(self, name: str) -> int:
        """The number of a device. A new one joins; the broker lets only devices of the fleet through."""
        # Without the lock: messages of known devices must not wait for the ledger's work.
        if (known := self._numbers.get(name)) is not None:
            return known
        with self._database.lock:
            if name not in self._numbers:
                number = len(self.devices)
                with self._database.transaction() as connection:
                    connection.execute("INSERT INTO devices (device, name) VALUES (?, ?)", (number, name))
                self.devices.append(Latest(name=name))
                self._numbers[name] = number
            return self._numbers[name]

    def hold(self, device: int, samples: int | None) -> None:
        """Note how many samples a device reports."""
        latest = self.devices[device]
        if samples is not None and samples != latest.samples:
            with self._database.transaction():
                latest.samples = samples
                self.keep(device)

    def keep(self, device: int) -> None:
        latest = self.devices[device]
        self._database.connection.execute(
            "UPDATE devices SET number = ?, open = ?, norm_sq = ?, spent_joules = ?, delivered_s = ?, samples = ?"
            " WHERE device = ?",
            (
                *(latest.number, latest.open, latest.norm_sq, latest.spent_joules),
                *(latest.delivered_s, latest.samples, device),
            ),
        )

    def now_s(self) -> float:
        return time.time() if self._membership is None else self._membership.clock()

    @property
    def active_devices(self) -> int:
        """N of the next version."""
        if self._membership is None:
            return self._planned
        return self._membership.count(self._membership.active(self.devices))

    def weighed(self, device: int, chunk: Chunk) -> Piece:
        """A chunk with the weight that its device has now."""
        membership, latest = self._membership, self.devices[device]
        if membership is None:
            return Piece(device, chunk)
        superseded_s = self._superseded_s(chunk.base_version)
        return Piece(
            device, chunk, membership.weight(latest, membership.active(self.devices), superseded_s), latest.samples
        )

    def check(self, device: int, chunk: Chunk) -> None:
        """Reject a chunk against an outdated model, and the first one of an upload beyond those of the day."""
        membership, base = self._membership, chunk.base_version
        if chunk.update > self.devices[device].number:
            self.uploads.check(device)
        if membership is not None and membership.is_outdated(self._superseded_s(base)):
            raise WireError(f"base_version = {base}: superseded more than {membership.outdated_days:g} days ago")

    def is_outdated(self, version: int) -> bool:
        """Whether a device with this version must start from a newer one, without what it learned since.

        That holds for a model that was superseded long ago, and for the initial model an hour after the first version:
        a device that joins starts where the fleet is.
        """
        if self._membership is None:
            return False
        return self._membership.is_outdated(self._superseded_s(version), initial=version == 0)

    def _superseded_s(self, version: int) -> float | None:
        """When the version after this one was made; None: it is the latest."""
        rows = self._database.rows("SELECT made_s FROM rounds WHERE version > ? ORDER BY version LIMIT 1", version)
        return rows[0][0] if rows else None
