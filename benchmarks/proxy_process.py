"""Links in their own process, so that emulated air costs devices and server no time.

The process reads one JSON object per line, answers each with one, and exits at the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from wayfare.contacts.store import load_plan
from wayfare.errors import FieldError, WayfareError
from wayfare.field.rig.proxy import Link
from wayfare.field.rig.replay import replay


class ProxyProcess:
    """Links to one broker, by number, in another process."""

    def __init__(self, broker_port: int, links: int, broker_host: str = "127.0.0.1") -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, broker_host, str(broker_port), str(links)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ports: list[int] = self._answer()["ports"]

    def url(self, link: int) -> str:
        """The URL for a device."""
        return f"tls://127.0.0.1:{self.ports[link]}"

    def open(self, link: int, uplink_bps: float = math.inf, downlink_bps: float = math.inf) -> None:
        """Start a contact, or change its rates."""
        self._ask({"do": "open", "link": link, "uplink_bps": uplink_bps, "downlink_bps": downlink_bps})

    def close(self, link: int, *, silently: bool = False) -> None:
        """End a contact."""
        self._ask({"do": "close", "link": link, "silently": silently})

    def replay(self, plan: Path, *, speed: float = 1.0, uplink_bps: float = 1e6, downlink_bps: float = 1e6) -> None:
        """Start to play a saved plan, without waiting for its end."""
        words = {"speed": speed, "uplink_bps": uplink_bps, "downlink_bps": downlink_bps}
        self._ask({"do": "replay", "plan": str(plan.resolve()), **words})

    def carried(self, link: int) -> tuple[int, int, float]:
        """The bytes carried up and down, and the total length of all contacts in seconds."""
        answer = self._ask({"do": "carried", "link": link})
        return answer["up_bytes"], answer["down_bytes"], answer["open_s"]

    def stop(self) -> None:
        """Stop the process."""
        if self._process.stdin is not None and self._process.stdout is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()

    def __enter__(self) -> ProxyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _ask(self, words: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise FieldError("the proxy process has ended") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise FieldError("the proxy process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FieldError(answer["error"])
        return answer


async def _serve(host: str, port: int, count: int) -> None:
    links = [await Link(port, host).start() for _ in range(count)]
    playing: set[asyncio.Task[None]] = set()
    _say({"ports": [link.port for link in links]})
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        try:
            _say(_obey(json.loads(line), links, playing))
        except WayfareError as error:
            _say({"error": str(error)})
    for task in playing:
        task.cancel()
    for link in links:
        await link.stop()


def _obey(words: dict[str, Any], links: list[Link], playing: set[asyncio.Task[None]]) -> dict[str, Any]:
    if words["do"] == "replay":
        rates = {name: words[name] for name in ("speed", "uplink_bps", "downlink_bps")}
        task = asyncio.ensure_future(replay(load_plan(Path(words["plan"])), links, **rates))
        playing.add(task)
        task.add_done_callback(playing.discard)
        return {}
    link = links[words["link"]]
    if words["do"] == "open":
        link.open(words["uplink_bps"], words["downlink_bps"])
    elif words["do"] == "close":
        link.close(silently=words["silently"])
    return {"up_bytes": link.up.carried_bytes, "down_bytes": link.down.carried_bytes, "open_s": link.open_s}


def _say(words: dict[str, Any]) -> None:
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
