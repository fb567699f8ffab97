"""Sends the reports that wait: in batches, again until an answer is understood, and beside whoever makes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine, Iterator
from itertools import groupby
from typing import Any

import msgspec

from handbill.client import rules
from handbill.client.gate import DecisionGate
from handbill.client.model import Kind, Outcome, State
from handbill.client.outbox import Entry, Outbox, now_ms
from handbill.client.transport import Transport

PATHS: dict[Kind, str] = {
    "impression": "/api/banners/events/impression",
    "click": "/api/banners/events/click",
    "view": "/views",
    "event": "/v1/events",
}
IDLE_S = 2.0
"""How long reports that waited let decisions go first."""
MISSES_MAX = 3
"""Refusals in a row that are not the server's; then nothing more is tried for now."""
BLOCKED_S = 60.0
"""Between two tries of reports that something between us and the server refuses."""
_log = logging.getLogger("handbill.client")


class Sender:
    """Whoever waits for it does so for at most a time limit of theirs; the sending goes on without them."""

    def __init__(self, transport: Transport, outbox: Outbox, gate: DecisionGate) -> None:
        self._transport = transport
        self._outbox = outbox
        self._gate = gate
        self._sending = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._flushes: set[asyncio.Task[None]] = set()
        self._waiters: dict[int, asyncio.Future[Outcome]] = {}
        self._delayed = max((entry.id for entry in outbox.waiting()), default=0)
        """Reports up to this number were sent before, or are an earlier run's."""
        self._tries = 0
        self._not_before = 0.0
        self._blocked: dict[int, None] = {}
        """Reports that something between us and the server refuses; sent alone, behind all others, now and then."""
        self._blocked_until = 0.0

    def start(self) -> None:
        """Send in the background, beginning with what an earlier run left."""
        if self._delayed:
            self._gate.hold()
            self._wake.set()
        self._task = asyncio.create_task(self._keep_sending(), name="handbill-client")

    async def close(self, timeout_s: float) -> None:
        """Try once more, for so long at most. What has no file is tried even where the server asked for patience."""
        if self._task is not None:
            await _cancel({self._task})
            self._task = None
        if not self._outbox.has_file:
            self._not_before = 0.0
        await self.flush(timeout_s)
        await _cancel(self._flushes)

    async def send(self, number: int, timeout_s: float) -> Outcome:
        """What became of the report of this number; queued, if that is not certain in time."""
        waiter = self._waiters[number] = asyncio.get_running_loop().create_future()
        flush = self._spawn(self._flush({}, with_delayed=self._gate.is_open))
        try:
            await asyncio.wait({waiter, flush}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return waiter.result() if waiter.done() else Outcome(State.QUEUED)
        finally:
            self._waiters.pop(number, None)

    async def flush(self, timeout_s: float) -> dict[int, Outcome]:
        """What became of each report that was sent in time; decisions in progress go first."""
        outcomes: dict[int, Outcome] = {}
        await asyncio.wait({self._spawn(self._flush_all(outcomes))}, timeout=timeout_s)
        return dict(outcomes)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._logged(work))
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        return task

    async def _logged(self, work: Coroutine[Any, Any, None]) -> None:
        """An error delays what waits; it is never the app's."""
        try:
            await work
        except Exception:  # noqa: BLE001 - whatever it is, reports must be sent again
            _log.exception("reports could not be sent; they stay, and are sent later")
            self._pace(rules.fate_of(0, None, self._tries).wait_ms)

    async def _keep_sending(self) -> None:
        """Waits as long as the server asks for. An error delays what waits, and never ends this."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), BLOCKED_S if self._blocked else None)
            self._wake.clear()
            delay = self._not_before - asyncio.get_running_loop().time()
            if delay > 0:
                await asyncio.sleep(delay)
            await self._gate.wait(IDLE_S)
            self._gate.release()
            await self._logged(self._flush({}, with_delayed=True))

    async def _flush_all(self, outcomes: dict[int, Outcome]) -> None:
        if self._gate.is_deciding:
            await self._gate.wait(IDLE_S)
        await self._flush(outcomes, with_delayed=True)

    async def _flush(self, outcomes: dict[int, Outcome], *, with_delayed: bool) -> None:
        """A server that does not answer is asked once; one that refuses a kind of report for now, once for each."""
        async with self._sending:
            if asyncio.get_running_loop().time() < self._not_before:
                return
            waits: dict[Kind, int] = {}
            misses, was_understood, retry_ms = 0, False, 0
            for batch in self._batches(with_delayed):
                kind = batch[0].kind
                if waits.get(kind):
                    continue
                sent = await self._send(batch)
                outcomes |= sent.outcomes
                was_understood |= sent.is_understood
                if sent.is_blocked:
                    misses, retry_ms = misses + 1, sent.wait_ms
                else:
                    misses, waits[kind] = 0, sent.wait_ms
                if sent.is_silent or misses == MISSES_MAX:
                    break
            self._pace(max(waits.values(), default=0) or (0 if was_understood else retry_ms))

    def _pace(self, wait_ms: int) -> None:
        if not wait_ms:
            self._tries, self._not_before = 0, 0.0
            return
        self._tries += 1
        # Some spread, so that a thousand processes do not come back in the same moment.
        self._not_before = asyncio.get_running_loop().time() + wait_ms / 1000 * (1 + random.random() / 2)
        self._wake.set()

    def _batches(self, with_delayed: bool) -> Iterator[list[Entry]]:
        def kind(entry: Entry) -> str:
            return entry.kind

        waiting = {entry.id: entry for entry in self._outbox.waiting() if with_delayed or entry.id > self._delayed}
        if with_delayed:  # some may have become too old
            self._blocked = {number: None for number in self._blocked if number in waiting}
        blocked = list(self._blocked)
        entries = sorted((entry for entry in waiting.values() if entry.id not in self._blocked), key=kind)
        for _, group in groupby(entries, key=kind):
            yield from rules.batches(group, lambda entry: len(msgspec.json.encode(entry.body)))
        now = asyncio.get_running_loop().time()
        if blocked and now >= self._blocked_until:
            self._blocked_until = now + BLOCKED_S
            yield from ([waiting[number]] for number in blocked if number in waiting)

    async def _send(self, entries: list[Entry]) -> _Sent:
        path, data = _packed(entries)
        answer = await self._transport.call("POST", path, data=data)
        status, count = answer.status, len(entries)
        is_understood = rules.is_understood(status, answer.body, count)
        fate = rules.fate_of(status, answer.retry_after, self._tries, count=count, understood=is_understood)
        if fate.batch_max is not None:
            return await self._send_parts(entries, fate.batch_max)
        ids = [entry.id for entry in entries]
        for number in ids:
            self._blocked.pop(number, None)
        if fate.keep:
            is_blocked = not is_understood and 400 <= status < 500 and status not in rules.AGAIN
            if is_blocked:
                self._blocked.update(dict.fromkeys(ids))
                self._wake.set()  # the background task is to come back for them
            self._delayed = max(self._delayed, *ids)
            outcomes = dict.fromkeys(ids, Outcome(State.QUEUED))
            return _Sent(outcomes, fate.wait_ms, is_understood, is_blocked=is_blocked, is_silent=status == 0)
        codes = rules.refusals(status, answer.body, count)
        outcomes = {number: _outcome(codes.get(place)) for place, number in enumerate(ids)}
        self._outbox.drop(ids)
        for number, outcome in outcomes.items():
            waiter = self._waiters.get(number)
            if waiter is not None and not waiter.done():
                waiter.set_result(outcome)
        return _Sent(outcomes, 0, is_understood=True)

    async def _send_parts(self, entries: list[Entry], size: int) -> _Sent:
        first = await self._send(entries[:size])
        if first.wait_ms:
            return first
        rest = await self._send(entries[size:])
        return msgspec.structs.replace(rest, outcomes=first.outcomes | rest.outcomes)


class _Sent(msgspec.Struct, frozen=True):
    """What became of each, how long to wait before this kind is sent again, and what kind of answer came."""

    outcomes: dict[int, Outcome]
    wait_ms: int
    is_understood: bool
    is_blocked: bool = False
    """Something between us and the server refused it, perhaps for what is in it: others may pass."""
    is_silent: bool = False


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _packed(entries: list[Entry]) -> tuple[str, bytes]:
    """Where these reports of one kind go, and as what: events always as a batch, with the time of sending."""
    kind, bodies = entries[0].kind, [entry.body for entry in entries]
    if kind == "event":
        return PATHS[kind], msgspec.json.encode({"sent_at": rules.iso(now_ms()), "events": bodies})
    if len(bodies) == 1:
        return PATHS[kind], msgspec.json.encode(bodies[0])
    return f"{PATHS[kind]}/batch", msgspec.json.encode({"events": bodies})


def _outcome(code: str | None) -> Outcome:
    return Outcome(State.KEPT) if code is None else Outcome(State.REFUSED, code)
