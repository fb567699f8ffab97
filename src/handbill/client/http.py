"""The client over HTTP. Asking for banners never fails, it finds none; reporting never loses what may still be sent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import msgspec

from handbill.client import rules
from handbill.client.gate import DecisionGate
from handbill.client.model import Decision, How, Kind, Moment, Outcome, Showing, State
from handbill.client.outbox import NotJson, Outbox, encoded, now_ms
from handbill.client.sender import Sender
from handbill.client.transport import Transport


class AsyncClient:
    """One tenant's client; entered, it sends what waits in the background.

    `token` is one end user's: with it the client speaks for that user alone, without it for any, unverified. No call
    takes longer than `timeout_s`, whatever the server does and however much waits. A client that was opened less than
    `open_after_s` ago asks for no banners: a decision waits for the rest of that time, too.
    """

    def __init__(
        self,
        url: str,
        *,
        write_key: str,
        token: str | None = None,
        outbox: Outbox | None = None,
        timeout_s: float = 3.0,
        open_after_s: float = 0.0,
    ) -> None:
        headers = {"X-Write-Key": write_key}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._outbox = Outbox() if outbox is None else outbox
        self._timeout_s = timeout_s
        self._open_after_s = open_after_s
        self._opened = time.monotonic()
        self._closing = asyncio.Event()
        self._gate = DecisionGate()
        self._transport = Transport(url, headers, timeout_s)
        self._sender = Sender(self._transport, self._outbox, self._gate)
        self.failures = 0
        """How often an answer failed and the caller got an empty list instead."""

    async def __aenter__(self) -> Self:
        self._opened = time.monotonic()
        self._sender.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Tries once more to send what waits, then ends. What is left stays in the outbox's file, if it has one."""
        if self._closing.is_set():
            return
        self._closing.set()
        await self._sender.close(self._timeout_s)
        await self._transport.close()
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
        """What to show now, in any number of placements. Whatever goes wrong, nothing: an app renders without any."""
        body = {
            "user_id": user_id,
            "session_id": session_id,
            "device_id": device_id,
            "limit": limit,
            "context": dict(context) if context else None,
        }
        found: list[Decision] = []
        with self._gate.decision():
            if not await self._has_been_open():
                return found
            deadline = asyncio.get_running_loop().time() + self._timeout_s
            for names in rules.placements_by_request(placements):
                reply = await self._ask_to_decide({**body, "placements": names or None}, deadline)
                if reply is None:
                    break
                found += rules.decisions_of(reply)
        return found

    async def _ask_to_decide(self, body: dict[str, Any], deadline: float) -> Any:
        try:
            data = encoded({name: value for name, value in body.items() if value is not None})
        except NotJson:
            self.failures += 1
            return None
        left = deadline - asyncio.get_running_loop().time()
        return await self._ask("POST", "/v1/decide", data=data, timeout_s=left)

    async def banners(self, *, user_id: str | None = None, placement: str | None = None) -> list[UUID]:
        """Only the ids of what may be shown now. Whatever goes wrong, none."""
        query = {"user_id": user_id, "placement": placement}
        with self._gate.decision():
            if not await self._has_been_open():
                return []
            reply = await self._ask("GET", "/banners", params={k: v for k, v in query.items() if v is not None})
        if reply is None:
            return []
        try:
            return msgspec.convert(reply["banners"], list[UUID])
        except (KeyError, TypeError, msgspec.ValidationError):
            self.failures += 1
            return []

    async def _has_been_open(self) -> bool:
        """Wait until it has been open for long enough; False when it is closed before."""
        wait_ms = rules.wait_before_decision((time.monotonic() - self._opened) * 1000, self._open_after_s * 1000)
        if wait_ms:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_ms / 1000)
        return not self._closing.is_set()

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        answer = await self._transport.call(method, path, **options)
        if answer.status == 200 and answer.body is not None:
            return answer.body
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
        return await self._report("click", rules.click(showing, destination, now_ms()), send)

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
        if self._closing.is_set():
            return Outcome(State.REFUSED, "CLOSED")
        try:
            number = self._outbox.put(kind, body)
        except NotJson:
            return Outcome(State.REFUSED, "NOT_JSON")
        return await self._sender.send(number, self._timeout_s) if send else Outcome(State.QUEUED)

    async def flush(self, timeout_s: float | None = None) -> dict[int, Outcome]:
        """Send what waits, in batches, unless the server asked for patience. Gives what became of each, by number.

        It ends after `timeout_s`, the client's own unless given; what is left then is sent in the background. Decisions
        in progress go first. A server that does not answer is asked once; one that refuses a kind of report for now,
        once for each kind.
        """
        return await self._sender.flush(self._timeout_s if timeout_s is None else timeout_s)
