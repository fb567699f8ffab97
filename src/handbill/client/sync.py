"""The same client without `await`: its loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from handbill.client.http import AsyncClient
from handbill.client.model import Decision, How, Outcome, Showing
from handbill.client.outbox import Outbox

T = TypeVar("T")


class Client:
    """For programs without a loop. Every method waits for its answer; close it, or use it in a `with`."""

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="handbill-client", daemon=True)
        self._thread.start()

        async def build() -> AsyncClient:
            made = AsyncClient(
                url, write_key=write_key, token=token, outbox=outbox, timeout_s=timeout_s, open_after_s=open_after_s
            )
            return await made.__aenter__()

        self._client = self._run(build())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def waiting(self) -> int:
        return self._client.waiting

    def decide(
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        device_id: str | None = None,
        placements: Sequence[str] = (),
        limit: int | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> list[Decision]:
        return self._run(
            self._client.decide(
                user_id=user_id,
                session_id=session_id,
                device_id=device_id,
                placements=placements,
                limit=limit,
                context=context,
            )
        )

    def banners(self, *, user_id: str | None = None, placement: str | None = None) -> list[UUID]:
        return self._run(self._client.banners(user_id=user_id, placement=placement))

    def impression(self, showing: Showing, *, send: bool = True) -> Outcome:
        return self._run(self._client.impression(showing, send=send))

    def view(self, showing: Showing, *, visible_ms: float, how: How = "timer", send: bool = True) -> Outcome:
        return self._run(self._client.view(showing, visible_ms=visible_ms, how=how, send=send))

    def click(self, showing: Showing, destination: str, *, send: bool = True) -> Outcome:
        return self._run(self._client.click(showing, destination, send=send))

    def track(
        self,
        distinct_id: str,
        event: str,
        properties: Mapping[str, Any] | None = None,
        *,
        person: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        send: bool = True,
    ) -> Outcome:
        work = self._client.track(distinct_id, event, properties, person=person, context=context, send=send)
        return self._run(work)

    def identify(
        self,
        distinct_id: str,
        traits: Mapping[str, Any] | None = None,
        *,
        anonymous_id: str | None = None,
        send: bool = True,
    ) -> Outcome:
        return self._run(self._client.identify(distinct_id, traits, anonymous_id=anonymous_id, send=send))

    def alias(self, distinct_id: str, other: str, *, send: bool = True) -> Outcome:
        return self._run(self._client.alias(distinct_id, other, send=send))

    def flush(self, timeout_s: float | None = None) -> dict[int, Outcome]:
        return self._run(self._client.flush(timeout_s))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
