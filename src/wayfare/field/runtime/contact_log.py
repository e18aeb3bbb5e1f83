"""The contacts that a server has seen: when each device was in reach, what it sent and received, and what it spent.

A contact is a time in which the messages of a device follow each other closely. Wayfare reads the table as a contact
list, so that the simulator and the planner replay what a fleet has measured.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from wayfare.errors import InputError
from wayfare.field.runtime.database import Database

# A device exchanges every 10 s while it is in reach; longer silence ends a contact.
_SILENCE_S = 30.0
# Chunks of an upload follow each other more closely than this.
_PAUSE_S = 2.0
# About 50 bytes each.
_MOST_ROWS = 200_000
SERVER = "server"


@dataclass(slots=True)
class _Contact:
    start_s: float
    end_s: float
    spent_before_joules: float
    spent_joules: float
    up_bytes: int = 0
    down_bytes: int = 0
    up_s: float = 0.0  # spent on uploads


class ContactLog:
    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database, self._clock = database, clock
        self._open: dict[int, _Contact] = {}

    def heard(self, device: int, spent_joules: float, *, up_bytes: int = 0, down_bytes: int = 0) -> None:
        """Note a message of a device, and the bytes that it or its answer carried."""
        now_s, contact = self._clock(), self._open.get(device)
        if contact is not None and now_s - contact.end_s > _SILENCE_S:
            self.flush()
            contact = None
        if contact is None:
            contact = self._open[device] = _Contact(now_s, now_s, spent_joules, spent_joules)
        if up_bytes and now_s - contact.end_s <= _PAUSE_S:
            # From the previous message, such as the question before an upload, to the end of this chunk.
            contact.up_s += max(now_s - contact.end_s, 0.0)
        contact.end_s, contact.spent_joules = max(now_s, contact.end_s), spent_joules
        contact.up_bytes += up_bytes
        contact.down_bytes += down_bytes

    def flush(self, *, everything: bool = False) -> None:
        """Write contacts that are over, and forget the oldest beyond a number."""
        now_s = self._clock()
        over = [device for device, one in self._open.items() if everything or now_s - one.end_s > _SILENCE_S]
        if not over:
            return
        with self._database.transaction() as connection:
            for device in over:
                one = self._open.pop(device)
                spent = max(one.spent_joules - one.spent_before_joules, 0.0)
                row = (device, one.start_s, one.end_s, one.up_bytes, one.down_bytes, spent, one.up_s)
                connection.execute("INSERT INTO contacts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            most = "SELECT max(rowid) FROM contacts"
            connection.execute(f"DELETE FROM contacts WHERE rowid <= ({most}) - {_MOST_ROWS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The contacts of a fleet as a contact list, and what was measured in them."""

    text: str  # CSV, for `mobility.file`
    contacts: int
    devices: int
    up_bps: float  # over all time in contact
    down_bps: float
    joules_per_device: float
    joules_per_bit: float  # of uploads
    rates_bps: Mapping[str, float]  # by device: the median over contacts, while it uploaded


def measured_contacts(file: Path) -> Measured:
    """Read the contacts in a ledger's file. Time starts with the first contact."""
    query = (
        "SELECT name, start_s, end_s, up_bytes, down_bytes, joules, up_s FROM contacts JOIN devices USING (device)"
        " WHERE end_s > start_s ORDER BY start_s"
    )
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            rows = connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            raise InputError(f"{file}: has an older format ({error}); start the server once to migrate it") from None
    if not rows:
        rule = f"a contact ends {_SILENCE_S:g} s after the last message of its device"
        raise InputError(f"{file}: no contact has ended yet; {rule}")
    began_s = rows[0][1]
    lines = [
        f"{start_s - began_s:.3f},{end_s - began_s:.3f},{name},{SERVER},{up},{down},{joules:.6g},{up_s:.3f}"
        for name, start_s, end_s, up, down, joules, up_s in rows
    ]
    rates = defaultdict[str, list[float]](list)
    for name, _, _, up, _, _, up_s in rows:
        if up and up_s > 0:
            rates[name].append(8 * up / up_s)
    in_contact_s = sum(end_s - start_s for _, start_s, end_s, *_ in rows)
    devices = len({name for name, *_ in rows})
    return Measured(
        text="\n".join(["start_s,end_s,a,b,up_bytes,down_bytes,joules,up_s", *lines, ""]),
        contacts=len(rows),
        devices=devices,
        up_bps=8 * sum(row[3] for row in rows) / in_contact_s,
        down_bps=8 * sum(row[4] for row in rows) / in_contact_s,
        joules_per_device=sum(row[5] for row in rows) / devices,
        joules_per_bit=sum(row[5] for row in rows) / max(8 * sum(row[3] for row in rows), 1),
        rates_bps={name: median(found) for name, found in rates.items()},
    )
