"""`python -m tests.kit.attacker TARGET [ATTACK ...]`: attacks in a process of their own, few requests at a time.

Every attack is tried, then `prepared` is printed. From SIGUSR1 on, until SIGTERM, they take turns, two requests at a
time and a rest after each, beside sockets that are held open and events that are refused: the machine should not be
busy with the attackers' own work. The last line has the answers by attack: how many of which status, and the seconds
of the longest one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec

from handbill.events.model import Impression, encode
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.redis import Redis
from tests.kit.attacks import ATTACKS, Shot, Target, sockets

AT_ONCE = 2
REST_S = 0.05
REST_FACTOR = 1.0
"""A request is followed by a rest of so many times its own length: about one is under way at any time."""
TRIED = 5
"""Requests of each attack before the round, which make the server load what they need."""
POISON = 100
ADDRESS = "127.0.0.2"
EXTRAS = ("poison", "sockets")


class Attacker:
    """Sends the attacks and counts the answers."""

    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self._target = target
        self._session = session
        self._rng = random.Random(13)
        self._shots: dict[str, Iterator[Shot]] = {}
        self.statuses: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.longest: defaultdict[str, float] = defaultdict(float)

    def next_shot(self, name: str) -> Shot:
        """Large bodies are made when the first one is asked for."""
        if name not in self._shots:
            self._shots[name] = ATTACKS[name](self._target, self._rng)
        return next(self._shots[name])

    async def fire(self, name: str, shot: Shot) -> float:
        began = time.monotonic()
        try:
            async with self._session.request(
                shot.method, shot.path, data=io.BytesIO(shot.body) if shot.body else None, headers=shot.headers
            ) as reply:
                await reply.read()
                status = str(reply.status)
        except (aiohttp.ClientError, OSError):
            status = "closed"  # as a server may do that has refused what is still being sent
        except TimeoutError:
            status = "timeout"
        took = time.monotonic() - began
        self.statuses[name][status] += 1
        self.longest[name] = max(self.longest[name], took)
        return took

    async def repeat(self, names: Iterator[str], stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            name = next(names)
            took = await self.fire(name, self.next_shot(name))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), REST_S + REST_FACTOR * took)

    async def append_poison(self, stopping: asyncio.Event) -> None:
        """Events that the database refuses, put straight into the journal: the API lets none of them through."""
        redis = Redis(self._target.redis_url, timeout=30)
        await redis.start()
        try:
            journal, lanes = StreamsJournal(redis), [lane for lane, _ in Lanes().all()]
            while not stopping.is_set():
                await journal.append(self._rng.choice(lanes), [self._refused() for _ in range(POISON)])
                self.statuses["poison"]["appended"] += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), 0.5)
        finally:
            await redis.stop()

    def _refused(self) -> bytes:
        now = int(time.time() * 1000)
        event_id = self._rng.randbytes(16).hex()
        return encode(
            Impression(self._target.tenant_id, event_id, now, now, self._target.banner_number, page="zero\0byte")
        )

    async def hold_sockets(self, stopping: asyncio.Event) -> None:
        host, port = self._target.base.removeprefix("http://").split(":")
        writers = []
        for first in sockets(self._target):
            _, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.3", 0))
            writer.write(first)
            writers.append(writer)
            self.statuses["sockets"]["opened"] += 1
        await stopping.wait()
        for writer in writers:
            writer.close()


async def run(target: Target, names: list[str]) -> None:
    loop, begin, stopping = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, begin.set)
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    connector = aiohttp.TCPConnector(local_addr=(ADDRESS, 0))
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(target.base, connector=connector, timeout=timeout) as session:
        attacker = Attacker(target, session)
        for name in (name for name in names if name in ATTACKS):
            for _ in range(TRIED):
                await attacker.fire(name, attacker.next_shot(name))
        print(json.dumps({"event": "prepared"}), flush=True)
        attacker.statuses.clear()
        attacker.longest.clear()
        await begin.wait()
        print(json.dumps({"event": "begun", "at": time.monotonic()}), flush=True)
        async with asyncio.TaskGroup() as group:
            if "poison" in names:
                group.create_task(attacker.append_poison(stopping))
            if "sockets" in names:
                group.create_task(attacker.hold_sockets(stopping))
            if sent := [name for name in names if name in ATTACKS]:
                turns = itertools.cycle(sent)
                for _ in range(AT_ONCE):
                    group.create_task(attacker.repeat(turns, stopping))
    print(json.dumps({"event": "finished", "answers": attacker.statuses, "longest": attacker.longest}), flush=True)


if __name__ == "__main__":
    chosen = sys.argv[2:] or [*ATTACKS, *EXTRAS]
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Target), chosen))
