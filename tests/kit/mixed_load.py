"""A steady load of tracked, captured and decided requests, and what a caller noticed of it between two moments."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from handbill.kit.clock import SystemClock
from tests.kit.knower import Knower
from tests.kit.tracker import Tracker

SLOW_S = 1.0


@dataclass
class Decisions:
    """Asks for decisions at a steady pace, never twice for the same user."""

    url: str
    places: Sequence[tuple[str, str]]
    """(write key, slug of a placement)"""
    dice: random.Random
    per_s: float = 10.0
    ended: list[tuple[float, float, str]] = field(default_factory=list)
    """(when, how many seconds it took, the status or the name of the error)"""

    async def _ask(self, http: aiohttp.ClientSession) -> None:
        write_key, slug = self.dice.choice(self.places)
        body = {"user_id": uuid.UUID(int=self.dice.getrandbits(128)).hex, "placements": [slug]}
        began = time.monotonic()
        try:
            async with http.post(f"{self.url}/v1/decide", json=body, headers={"X-Write-Key": write_key}) as reply:
                await reply.read()
                outcome = str(reply.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            outcome = type(error).__name__
        self.ended.append((time.monotonic(), time.monotonic() - began, outcome))

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped; a request that waits does not keep the next one from being sent."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=70)) as http,
            asyncio.TaskGroup() as group,
        ):
            while not stop.is_set():
                group.create_task(self._ask(http))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 1 / self.per_s)


class MixedLoad:
    """Tracking, capture and decisions at once. `since` tells what happened after a `mark`."""

    def __init__(self, tracker: Tracker, knower: Knower, decisions: Decisions) -> None:
        self.tracker, self.knower, self.decisions = tracker, knower, decisions
        self._accepted: list[float] = []
        """Moments at which the number of accepted events was seen to have grown."""

    @property
    def answered(self) -> int:
        return self.tracker.answered + self.knower.answered

    def mark(self) -> tuple[float, int, Counter[str]]:
        return time.monotonic(), self.answered, self.tracker.repeated + self.knower.repeated

    def since(self, mark: tuple[float, int, Counter[str]]) -> dict[str, Any]:
        """What callers noticed from the mark until now."""
        begin, answered, repeated = mark
        asked = [one for one in self.decisions.ended if one[0] >= begin]
        outcomes = Counter(outcome for _, _, outcome in asked)
        moments = [begin, *(at for at in self._accepted if at >= begin), time.monotonic()]
        return {
            "events_accepted": self.answered - answered,
            "event_requests_repeated": dict(self.tracker.repeated + self.knower.repeated - repeated),
            "longest_without_accepted_event_s": round(max(b - a for a, b in itertools.pairwise(moments)), 1),
            "decisions_answered": outcomes.pop("200", 0),
            "decisions_failed": dict(outcomes),
            "decisions_slower_than_1_s": sum(took > SLOW_S for _, took, _ in asked),
            "slowest_decision_s": round(max((took for _, took, _ in asked), default=0.0), 1),
        }

    async def _watch(self, stop: asyncio.Event) -> None:
        seen = self.answered
        while not stop.is_set():
            await asyncio.sleep(0.1)  # sleeps: a load is sampled at its own pace
            if self.answered != seen:
                seen = self.answered
                self._accepted.append(time.monotonic())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For the length of the block; at its end every request under way is answered first."""
        stop, now_ms = asyncio.Event(), SystemClock().now_ms()
        tasks = [
            asyncio.create_task(work)
            for work in (
                self.tracker.run(now_ms, stop, senders=4), self.knower.run(now_ms, stop, senders=4),
                self.decisions.run(stop), self._watch(stop),
            )
        ]  # fmt: skip
        try:
            yield
            assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
            stop.set()
            await asyncio.wait_for(asyncio.gather(*tasks), 120)
        finally:
            stop.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
