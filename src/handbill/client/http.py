"""The client over HTTP. Asking for banners never fails, it finds none; reporting never loses what may still be sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import aiohttp
import msgspec

from handbill.client import rules
from handbill.client.gate import DecisionGate
from handbill.client.model import Decision, How, Kind, Moment, Outcome, Showing, State
from handbill.client.outbox import Entry, NotJson, Outbox, now_ms

PATHS: dict[Kind, str] = {
    "impression": "/api/banners/events/impression",
    "click": "/api/banners/events/click",
    "view": "/views",
    "event": "/v1/events",
}
IDLE_S = 2.0
"""How long reports that waited let decisions go first."""
_log = logging.getLogger("handbill.client")
_FAILURES = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class AsyncClient:
    """One tenant's client; entered, it sends what waits in the background.

    `token` is one end user's: with it the client speaks for that user alone, without it for any, unverified.
    """

    def __init__(
        self,
        url: str,
        *,
        write_key: str,
        token: str | None = None,
        outbox: Outbox | None = None,
        timeout_s: float = 3.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._write_key = write_key
        self._token = token
        self._outbox = Outbox() if outbox is None else outbox
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._http: aiohttp.ClientSession | None = None
        self._sending = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._gate = DecisionGate()
        self._delayed = max((entry.id for entry in self._outbox.waiting()), default=0)
        """Reports up to this number were sent before, or are an earlier run's."""
        self._tries = 0
        self._not_before = 0.0
        self.failures = 0
        """How often an answer failed and the caller got an empty list instead."""

    async def __aenter__(self) -> Self:
        if self._delayed:  # reports of an earlier run
            self._gate.hold()
            self._wake.set()
        self._task = asyncio.create_task(self._keep_sending(), name="handbill-client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Tries once more to send what waits, then ends. What is left stays in the outbox's file, if it has one."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self.flush()
        if self._http is not None:
            await self._http.close()
            self._http = None
        self._outbox.close()

    @property
    def waiting(self) -> int:
        return len(self._outbox)

    # --- asking

    async def decide(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        device_id: str | None = None,
        placements: Sequence[str] = (),
        limit: int | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> list[Decision]:
        """What to show now. Whatever goes wrong, nothing: an app renders without banners."""
        body = {
            "user_id": user_id,
            "session_id": session_id,
            "device_id": device_id,
            "placements": list(placements) or None,
            "limit": limit,
            "context": dict(context) if context else None,
        }
        sent = msgspec.json.encode({name: value for name, value in body.items() if value is not None})
        with self._gate.decision():
            reply = await self._asked("POST", "/v1/decide", data=sent)
        return rules.decisions_of(reply)

    async def banners(self, *, user_id: str | None = None, placement: str | None = None) -> list[UUID]:
        """Only the ids of what may be shown now. Whatever goes wrong, none."""
        asked = {"user_id": user_id, "placement": placement}
        with self._gate.decision():
            reply = await self._asked("GET", "/banners", params={k: v for k, v in asked.items() if v is not None})
        try:
            return msgspec.convert(reply["banners"], list[UUID]) if isinstance(reply, dict) else []
        except (KeyError, msgspec.ValidationError):
            self.failures += 1
            return []

    async def _asked(self, method: str, path: str, **options: Any) -> Any:
        try:
            status, _, answer = await self._call(method, path, **options)
        except _FAILURES:
            status, answer = 0, None
        if status == 200:
            return answer
        self.failures += 1
        return None

    # --- reporting

    async def impression(self, showing: Showing, *, send: bool = True) -> Outcome:
        """It appeared on a screen. Needs a placement. With `send=False` it waits for the next flush, in one batch."""
        return await self._report("impression", rules.impression(showing), send)

    async def view(self, showing: Showing, *, visible_ms: float, how: How = "timer", send: bool = True) -> Outcome:
        """How long it was seen and how that ended. It counts when seen for its whole time, or dismissed."""
        return await self._report("view", rules.view(showing, rules.report_of(visible_ms, how)), send)

    async def click(self, showing: Showing, destination: str, *, send: bool = True) -> Outcome:
        """It was followed, by a link that did not lead through the server's own `click_url`."""
        return await self._report("click", rules.click(showing, destination), send)

    async def track(
        self,
        distinct_id: str,
        event: str,
        properties: Mapping[str, Any] | None = None,
        *,
        person: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        send: bool = True,
    ) -> Outcome:
        """An event of the app's own. `person` changes the person: `$set`, `$set_once`, `$unset`."""
        moment = Moment.now(distinct_id, **(context or {}))
        return await self._report("event", rules.event(moment, event, properties, person), send)

    async def identify(
        self,
        distinct_id: str,
        traits: Mapping[str, Any] | None = None,
        *,
        anonymous_id: str | None = None,
        send: bool = True,
    ) -> Outcome:
        """This is a person's own name; whoever was seen as `anonymous_id` before is the same person."""
        person = {"$set": dict(traits)} if traits else None
        body = rules.event(Moment.now(distinct_id, anonymous_id), "$identify", None, person)
        return await self._report("event", body, send)

    async def alias(self, distinct_id: str, other: str, *, send: bool = True) -> Outcome:
        """`other` is another name of the same person."""
        body = rules.event(Moment.now(distinct_id), "$create_alias", {"alias": other})
        return await self._report("event", body, send)

    async def _report(self, kind: Kind, body: dict[str, Any], send: bool) -> Outcome:
        try:
            number = self._outbox.put(kind, body)
        except NotJson:
            return Outcome(State.REFUSED, "NOT_JSON")
        if not send:
            return Outcome(State.QUEUED)
        found = await self._flush(with_delayed=self._gate.is_open)
        return found.get(number, Outcome(State.QUEUED))

    async def flush(self) -> dict[int, Outcome]:
        """Send what waits, in batches, unless the server asked for patience. Gives what became of each, by number.

        Decisions in progress go first. A server that does not answer is asked once; one that refuses a kind of report
        for now, once for each kind.
        """
        if self._gate.is_deciding:
            await self._gate.wait(IDLE_S)
        return await self._flush(with_delayed=True)

    async def _flush(self, *, with_delayed: bool) -> dict[int, Outcome]:
        found: dict[int, Outcome] = {}
        async with self._sending:
            if asyncio.get_running_loop().time() < self._not_before:
                return found
            waits: dict[Kind, int] = {}
            for batch in self._batches(with_delayed):
                kind = batch[0].kind
                if waits.get(kind):
                    continue
                outcomes, waits[kind], answered = await self._send(batch)
                found |= outcomes
                if not answered:
                    break
            self._pace(max(waits.values(), default=0))
        return found

    def _pace(self, wait_ms: int) -> None:
        if not wait_ms:
            self._tries, self._not_before = 0, 0.0
            return
        self._tries += 1
        # Some spread, so that a thousand processes do not come back in the same moment.
        self._not_before = asyncio.get_running_loop().time() + wait_ms / 1000 * (1 + random.random() / 2)
        self._wake.set()

    def _batches(self, with_delayed: bool) -> list[list[Entry]]:
        def kind(entry: Entry) -> str:
            return entry.kind

        entries = [entry for entry in self._outbox.waiting() if with_delayed or entry.id > self._delayed]
        whole = [list(group) for _, group in groupby(sorted(entries, key=kind), key=kind)]
        return [group[at : at + rules.BATCH_MAX] for group in whole for at in range(0, len(group), rules.BATCH_MAX)]

    async def _send(self, entries: list[Entry]) -> tuple[dict[int, Outcome], int, bool]:
        """What became of each, how long to wait before this kind is sent again, and whether the server answered."""
        path, data = _packed(entries)
        try:
            status, after, answer = await self._call("POST", path, data=data)
        except _FAILURES:
            status, after, answer = 0, None, None
        fate = rules.fate_of(status, after, self._tries)
        if fate.keep:
            self._delayed = max(self._delayed, *(entry.id for entry in entries))
            return {entry.id: Outcome(State.QUEUED) for entry in entries}, fate.wait_ms, status != 0
        self._outbox.drop([entry.id for entry in entries])
        codes = rules.refusals(status, answer, len(entries))
        return {entry.id: _outcome(codes.get(place)) for place, entry in enumerate(entries)}, 0, True

    async def _keep_sending(self) -> None:
        """Comes back when the server said so. An error delays what waits, and never ends this."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            delay = self._not_before - asyncio.get_running_loop().time()
            if delay > 0:
                await asyncio.sleep(delay)
            await self._gate.wait(IDLE_S)
            self._gate.release()
            try:
                await self._flush(with_delayed=True)
            except Exception:  # noqa: BLE001 - whatever it is, reports must be sent again
                _log.exception("reports could not be sent; they stay, and are sent later")
                self._pace(rules.fate_of(0, None, self._tries).wait_ms)

    async def _call(self, method: str, path: str, **options: Any) -> tuple[int, str | None, Any]:
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=self._timeout)
        headers = {"X-Write-Key": self._write_key, "Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        async with self._http.request(
            method, self._url + path, headers=headers, allow_redirects=False, **options
        ) as reply:
            body = await reply.read()
            try:
                answer = msgspec.json.decode(body) if body else None
            except msgspec.DecodeError:
                answer = None
            return reply.status, reply.headers.get("Retry-After"), answer


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
