"""Goldens: what small runs of every scheme recorded, to the bit.

They hold a redesign of the method code to its promise: records, evaluations, the final model and all memories stay as
they are, for every scheme and on both engines. ``goldens.json`` has, for each case of ``golden_cases.py``:

- ``hashes`` for each machine: the bytes of all contacts, relays and evaluations, field by field in the order below, of
  the final model and of the devices' memories. They are compared where numbers are rounded as on that machine
  (``numerics.py``).
- ``discrete``: a hash of the integer columns, without those in ``unstable``.
- ``numbers`` and ``margins``: totals, and how far they may be off on a machine that rounds differently.

``unstable`` and ``margins`` are measured, not guessed: each case is run again from initial models that are off by
1e-5, and with the other engine. What changes then may also change with the processor.

Regenerate them only when an issue says that numbers change: name the issue in the commit and write only the cases that
it means. A redesign, a faster engine or a new default elsewhere is no reason. From the repository's root::

    python -m tests.simulator.goldens --write [WORD ...]    # cases whose names have one of the words, or all
    python -m tests.simulator.goldens --add                 # this machine's hashes beside those that are there
    python -m tests.simulator.goldens --show CASE           # every record of a case, for a diff with another commit

Use ``--add`` on a machine that rounds differently, at the commit *before* a change, to hold the change to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.simulator.golden_cases import CASES, Case
from tests.simulator.numerics import description, fingerprint
from wayfare.methods import make_method
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent, Simulation
from wayfare.threads import one_thread
from wayfare.world import World

FILE = Path(__file__).with_name("goldens.json")
SHAKES = 4
# What is hashed of each record, in this order: q is an int64 (or a bool as one), d a double, s a text. Should a field
# get another name, `Records` says where it is found; the names and the order here stay.
FIELDS: dict[str, tuple[tuple[str, str], ...]] = {
    "contacts": (
        ("round", "q"),
        ("device", "q"),
        ("contact_s", "d"),
        ("distance_m", "d"),
        ("gain_per_watt", "d"),
        ("staleness_rounds", "q"),
        ("update_norm_sq", "d"),
        ("backlog_joules", "d"),
        ("power_watts", "d"),
        ("entries", "q"),
        ("bits", "d"),
        ("energy_joules", "d"),
        ("completed", "q"),
    ),
    "relays": (
        ("round", "q"),
        ("kind", "s"),
        ("giver", "q"),
        ("taker", "q"),
        ("owner", "q"),
        ("contact_s", "d"),
        ("bits", "d"),
        ("energy_joules", "d"),
        ("completed", "q"),
    ),
    "evaluations": (
        ("round", "q"),
        ("time_s", "d"),
        ("score", "d"),
        ("loss", "d"),
        ("energy_joules", "d"),
        ("bits", "d"),
    ),
}
Row: TypeAlias = tuple[int | float | str, ...]
Golden: TypeAlias = dict[str, Any]


@dataclass
class Records:
    """Every record of a run as a row of plain values, by table, and the order in which tables got them."""

    tables: dict[str, list[Row]] = field(default_factory=lambda: {table: [] for table in FIELDS})
    order: list[str] = field(default_factory=list)

    def on_contact(self, event: ContactEvent) -> None:
        self._keep("contacts", event)

    def on_relay(self, event: RelayEvent) -> None:
        self._keep("relays", event)

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        self._keep("evaluations", event)

    def on_round(self, round_: int) -> None:
        pass

    def _keep(self, table: str, event: object) -> None:
        kinds = {"q": int, "d": float, "s": str}
        self.tables[table].append(tuple(kinds[kind](getattr(event, name)) for name, kind in FIELDS[table]))
        self.order.append(table)

    def column(self, table: str, name: str) -> list[Any]:
        place = [known for known, _ in FIELDS[table]].index(name)
        return [row[place] for row in self.tables[table]]


@dataclass(frozen=True)
class Run:
    """All that is compared of a run."""

    records: Records
    initial: Tensor
    model: Tensor
    memories: list[Tensor]

    def hashes(self) -> dict[str, str]:
        """Of every table, of the order of records, and of the vectors at the end."""
        tables = {table: _hash(_packed(table, rows)) for table, rows in self.records.tables.items()}
        order = _hash(table.encode() for table in self.records.order)
        return {
            **tables,
            "order": order,
            "model": _hash([_bytes(self.model)]),
            "memories": _hash(map(_bytes, self.memories)),
        }

    def columns(self) -> dict[str, str]:
        """A hash of every column that no rounding changes, unless it tips a decision."""
        return {
            f"{table}.{name}": _hash(str(value).encode() for value in self.records.column(table, name))
            for table, fields in FIELDS.items()
            for name, kind in fields
            if kind != "d"
        }

    def numbers(self) -> dict[str, float]:
        """What tells a reader how two runs differ."""
        column = self.records.column
        return {
            "contacts": len(self.records.tables["contacts"]),
            "completed": sum(column("contacts", "completed")),
            "entries": sum(column("contacts", "entries")),
            "relays": len(self.records.tables["relays"]),
            "relayed": sum(column("relays", "completed")),
            **{name: column("evaluations", name)[-1] for name in ("energy_joules", "bits", "score", "loss")},
            "moved": float((self.model.double() - self.initial.double()).norm()),
            "remembered": float(torch.stack([memory.double().norm() for memory in self.memories]).norm()),
        }


def _packed(table: str, rows: Iterable[Row]) -> Iterable[bytes]:
    for row in rows:
        for (_, kind), value in zip(FIELDS[table], row, strict=True):
            if isinstance(value, str):
                text = value.encode()
                yield struct.pack("<q", len(text)) + text
            else:
                yield struct.pack(f"<{kind}", value)


def _bytes(vector: Tensor) -> bytes:
    assert vector.dtype == torch.float32
    return vector.contiguous().numpy().tobytes()


def _hash(pieces: Iterable[bytes]) -> str:
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece + b"\0")
    return sha.hexdigest()[:12]


def run(case: Case, world: World | None = None) -> Run:
    """Run a case on one thread, as studies do."""
    with one_thread():
        world = world or case.world()
        records = Records()
        outcome = Simulation(world, make_method(case.scheme, world.scenario), records, engine=case.engine).run()
    return Run(records, world.initial_model, outcome.model, [state.memory for state in outcome.states])


def read() -> Golden:
    """The file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def exact_differences(golden: Golden, found: Run, machine: str) -> list[str]:
    """Which hashes differ from those of a machine, and which totals with them."""
    expected, hashes = golden["hashes"][machine], found.hashes()
    differing = [name for name in hashes if hashes[name] != expected[name]]
    if not differing:
        return []
    numbers = found.numbers()
    totals = [
        f"{name}: {numbers[name]!r}, was {value!r}"
        for name, value in golden["numbers"].items()
        if numbers[name] != value
    ]
    return [f"not the same to the bit: {', '.join(differing)}", *(totals or ["all totals are the same"])]


def rough_differences(golden: Golden, found: Run) -> list[str]:
    """What differs by more than rounding can explain."""
    numbers, margins = found.numbers(), golden["margins"]
    beyond = [
        f"{name}: {numbers[name]!r}, was {value!r}, may be off by {margins.get(name, 0):.3g}"
        for name, value in golden["numbers"].items()
        if abs(numbers[name] - value) > margins.get(name, 0)
    ]
    if _discrete(found, golden["unstable"]) != golden["discrete"]:
        beyond.append(f"an integer column differs, other than {', '.join(golden['unstable']) or 'none'}")
    return beyond


def _discrete(found: Run, unstable: Collection[str]) -> str:
    return _hash(f"{name} {value}".encode() for name, value in found.columns().items() if name not in unstable)


def measure(cases: Sequence[Case]) -> dict[str, Golden]:
    """The goldens of cases that differ in their engine alone.

    What rounding may do is seen in runs that are slightly shaken, and in the difference between the engines.
    """
    exact = {case.name: run(case) for case in cases}
    others = [*exact.values(), *(run(case, case.shaken_world(shake)) for case in cases for shake in range(SHAKES))]
    columns, totals = [other.columns() for other in others], [other.numbers() for other in others]
    spread = {
        number: max(other[number] for other in totals) - min(other[number] for other in totals) for number in totals[0]
    }
    seen = {name for name in columns[0] if len({other[name] for other in columns}) > 1}
    goldens = {}
    for name, found in exact.items():
        numbers = found.numbers()
        # Where the digits of an update sway how much is sent, they may do so in any contact.
        sways = any(spread[number] for number in _SENT)
        tips = any(spread[number] > _VISIBLE * numbers[number] for number in _SENT)
        unstable = seen | ({"contacts.entries"} if sways else set())
        unstable |= {"contacts.completed", "contacts.staleness_rounds"} if tips else set()
        shares = {number: _share(spread[number], value) for number, value in numbers.items()}
        if sways:
            shares |= dict.fromkeys(_SENT, _TIPPED if tips else _SWAYED)
        margins = {number: max(4 * spread[number], shares[number] * value) for number, value in numbers.items()}
        margins["score"] = max(margins["score"], 0.2 if shares["loss"] == _TIPPED else 0.02)
        if tips:
            margins["completed"] = _TIPPED * numbers["completed"]
        goldens[name] = {
            "numbers": numbers,
            "margins": {number: float(f"{margin:.3g}") for number, margin in margins.items() if margin},
            "unstable": sorted(unstable),
            "discrete": _discrete(found, unstable),
            "hashes": {fingerprint(): found.hashes()},
        }
    return goldens


# Totals of what schemes decide to send.
_SENT = ("entries", "bits", "energy_joules")
# A number that a single decision moves by more than this share is good for its size only.
_VISIBLE = 3e-3
# The shares by which numbers may be off: those that shaking leaves alone, totals that it sways, vectors that it sways,
# and whatever it changes visibly.
_SAME, _SWAYED, _DRIFTED, _TIPPED = 1e-6, 0.01, 0.05, 0.3


def _share(spread: float, value: float) -> float:
    if not spread:
        return _SAME if isinstance(value, float) else 0.0
    return _TIPPED if spread > _VISIBLE * value else _DRIFTED


def write(words: Sequence[str]) -> None:
    """Measure some cases anew, or all; cases that the file lacks are always measured, unknown ones are dropped."""
    known = read() if FILE.exists() else {"machines": {}, "cases": {}}
    cases: dict[str, Golden] = {}
    for _, group in groupby(CASES.values(), key=lambda case: case.title):
        some = list(group)
        chosen = not words or any(word in case.name for case in some for word in words)
        keeps = not chosen and all(case.name in known["cases"] for case in some)
        cases |= {case.name: known["cases"][case.name] for case in some} if keeps else measure(some)
    _save(cases, known["machines"])


def add() -> None:
    """Add the hashes of this machine; it must agree with the goldens but for rounding."""
    known = read()
    for name, case in CASES.items():
        golden, found = known["cases"][name], run(case)
        differences = rough_differences(golden, found)
        if differences:
            sys.exit(f"{name}: {'; '.join(differences)}")
        golden["hashes"][fingerprint()] = found.hashes()
    _save(known["cases"], known["machines"])


def _save(cases: Golden, machines: dict[str, str]) -> None:
    """One case a line, and only machines that some case has hashes of."""
    machines = {**machines, fingerprint(): description()}
    used = {machine for golden in cases.values() for machine in golden["hashes"]}
    head = json.dumps({machine: text for machine, text in machines.items() if machine in used})
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(golden)}" for name, golden in cases.items())
    FILE.write_text(f'{{"machines": {head},\n"cases": {{\n{lines}\n}}}}\n', encoding="utf-8")


def show(name: str) -> None:
    """Every record, one a line, with all digits."""
    for table, rows in run(CASES[name]).records.tables.items():
        print(table, *(field for field, _ in FIELDS[table]))
        for row in rows:
            print(*map(repr, row))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", nargs="*", metavar="WORD")
    action.add_argument("--add", action="store_true")
    action.add_argument("--show", metavar="CASE", choices=CASES)
    chosen = parser.parse_args()
    if chosen.show:
        show(chosen.show)
    elif chosen.add:
        add()
    else:
        write(chosen.write)


if __name__ == "__main__":
    main()
