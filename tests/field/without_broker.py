"""A device and the server without a broker between them: every message is seen, and any may be lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.field.brokers import finish
from tests.field.parts import LAYOUT, LINK, Fixed, Told, open_ledger, open_outbox
from wayfare.device import Terms
from wayfare.field.runtime.exchange import Exchanger, Patience
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.messages import Ask, Finish, Part, parse
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.radio import Radio
from wayfare.methods import make_method
from wayfare.scenario import Scenario

KINDS: dict[str, Any] = {"ask": Ask, "finish": Finish, "part": Part}
QUICK = Patience(answer_s=0.3, mark_s=0.15, refused_s=0.01, again_s=0.01, idle_s=0.001)


class Unsealed:
    """The end of a device where nobody can alter a message."""

    def sealed(self, kind: str, data: bytes) -> bytes:
        return data

    def answer(self, kind: str, question: bytes, sealed: bytes) -> bytes:
        return sealed

    def mark(self, sealed: bytes) -> bytes:
        return sealed


class Wire:
    """Stands for client, broker and network: answers of a real intake, unless somebody is in between."""

    def __init__(self, folder: Path) -> None:
        self.intake = Intake(open_ledger(folder / "mes"), OnArrival(), LAYOUT)
        self.connected = asyncio.Event()
        self.connected.set()
        self.asked: list[tuple[str, Any]] = []
        self.between: dict[str, Callable[[int, bytes], bytes | None]] = {}
        self.ids: list[str] = []

    def device_end(self, name: str) -> Unsealed:
        return Unsealed()

    async def subscribe(self, subject: str, cb: Any) -> None:
        assert subject == "applied.bus-1"
        self.mark = cb

    async def request(self, subject: str, data: bytes, *, timeout: float, headers: dict[str, str] | None) -> Any:
        kind = subject.removeprefix("up.bus-1.")
        assert timeout == 0.3
        seen = sum(one == kind for one, _ in self.asked)
        self.asked.append((kind, data if kind == "chunk" else parse(KINDS[kind], data).model_dump()))
        self.ids += [headers["Nats-Msg-Id"]] if headers else []
        await asyncio.sleep(0)
        if kind in self.between:
            answer = self.between[kind](seen, data)
            if answer is not None:
                return SimpleNamespace(data=answer)
        if kind == "chunk":
            for _, mark in self.intake.chunks([(0, data)]):
                await self.mark(SimpleNamespace(data=mark.packed()))
            return SimpleNamespace(data=b'{"seq":1}')
        answered = getattr(self.intake, kind)(0, data)
        return SimpleNamespace(data=answered if kind == "part" else answered.packed())

    def counts(self) -> Counter[str]:
        return Counter(kind for kind, _ in self.asked)


class Site:
    def __init__(self, folder: Path) -> None:
        self.outbox, self.wire, self.watts = open_outbox(folder / "device"), Wire(folder), [0.0]

    def exchanger(self, guide: Told, outbox: Outbox | None = None, entries: int = 200) -> Exchanger:
        terms = Terms(method=make_method(Fixed(entries), Scenario()), link=LINK, rounds=100)
        radio = Radio(terms=terms, set_power_watts=self.watts.append)
        return Exchanger(self.wire, "bus-1", outbox or self.outbox, guide, radio, LAYOUT, QUICK)  # type: ignore[arg-type]

    def exchange(self, guide: Told | None = None, **settings: Any) -> Told:
        guide = guide or Told()
        finish(self.exchanger(guide, **settings).run(threading.Event()), 20)
        return guide
