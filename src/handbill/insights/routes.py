"""Insights over HTTP: questions by POST, stored events by GET, the live tail by SSE, each also as CSV."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import date, timedelta
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter, SkipValidation
from litestar.response import Stream

from handbill.insights import examples, table
from handbill.insights.model import (
    MOST_FILTERS,
    EventPage,
    EventRow,
    Filter,
    Funnel,
    FunnelQuery,
    Retention,
    RetentionQuery,
    SearchQuery,
    Trends,
    TrendsQuery,
    Whereabouts,
)
from handbill.insights.service import InsightsService, Told, Wanted
from handbill.kit import disconnects
from handbill.kit.errors import Fault, Invalid
from handbill.kit.faults import faults_of
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.kit.read_waits import LONGEST_WAIT_S, Completeness, ReadWaits, WaitFor, headers_of, read_after, state_and
from handbill.kit.untrusted_json import UNREADABLE
from handbill.tenants.model import Principal

Answer = TypeVar("Answer", bound=Completeness)
Insights = NamedDependency[SkipValidation[InsightsService]]
Who = NamedDependency[SkipValidation[Principal]]
Asker = Request[Any, Any, Any]
From = Annotated[date | None, QueryParameter(name="from", description="The first day; a week ago if not given.")]
To = Annotated[date | None, QueryParameter(name="to", description="The day after the last one; tomorrow if not given.")]
Zone = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=64, description="Whose days; the tenant's own if not given."),
]
Name = Annotated[str | None, QueryParameter(min_length=1, max_length=200, description="Only events of this name.")]
Whose = Annotated[str | None, QueryParameter(min_length=1, max_length=200, description="Only events of this id.")]
Where = Annotated[
    str | None, QueryParameter(max_length=4000, description="More filters, as a JSON array like those of a question.")
]
Cursor = Annotated[
    str | None, QueryParameter(max_length=2000, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
Wait = Annotated[
    float | None,
    QueryParameter(
        ge=0, le=LONGEST_WAIT_S,
        description="Seconds to wait until everything accepted before is in the answer, at most 5. See `complete`.",
    ),
]  # fmt: skip
Waits = NamedDependency[SkipValidation[ReadWaits]]
EventId = Annotated[str, QueryParameter(min_length=1, max_length=200, description="The id the event was sent with.")]
_READ: dict[str, Any] = {"scope": "insights:read"}


def _opt(example: Any, body: Any = None) -> dict[str, Any]:
    return {**_READ, "example": example, **({"body_example": body} if body is not None else {})}


class QuestionRoutes(Controller):
    path = "/v1/insights"
    tags = ("Insights",)

    @post("/trends", operation_id="trends", status_code=200, opt=_opt(examples.TRENDS, examples.ASK_TRENDS))
    async def trends(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        data: JSONBody[TrendsQuery],
        wait: Wait = None,
    ) -> Trends:
        """Counts, people and figures of a property over time, by any property; compared with the days before."""
        asked = _wait_for(principal, wait)
        return await _asked(request, read_waits, asked, lambda: insights.trends(principal.tenant_id, data))

    @post("/funnels", operation_id="funnel", status_code=200, opt=_opt(examples.FUNNEL, examples.ASK_FUNNEL))
    async def funnel(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        data: JSONBody[FunnelQuery],
        wait: Wait = None,
    ) -> Funnel:
        """How many people went from step to step, and how long it took them."""
        asked = _wait_for(principal, wait)
        return await _asked(request, read_waits, asked, lambda: insights.funnel(principal.tenant_id, data))

    @post("/retention", operation_id="retention", status_code=200, opt=_opt(examples.RETENTION, examples.ASK_RETENTION))
    async def retention(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        data: JSONBody[RetentionQuery],
        wait: Wait = None,
    ) -> Retention:
        """Of the people who began in a period, how many came back in each later one."""
        asked = _wait_for(principal, wait)
        return await _asked(request, read_waits, asked, lambda: insights.retention(principal.tenant_id, data))

    @post(
        "/trends.csv",
        operation_id="trendsCsv",
        status_code=200,
        media_type="text/csv",
        opt=_opt(examples.TRENDS_CSV, examples.ASK_TRENDS),
    )
    async def trends_csv(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        data: JSONBody[TrendsQuery],
        wait: Wait = None,
    ) -> Response[bytes]:
        """The same figures as CSV, one row for each."""
        asked = _wait_for(principal, wait)
        answer = await _asked(request, read_waits, asked, lambda: insights.trends(principal.tenant_id, data))
        return _csv(table.trends(data, answer), "trends", answer)

    @post(
        "/funnels.csv",
        operation_id="funnelCsv",
        status_code=200,
        media_type="text/csv",
        opt=_opt(examples.FUNNEL_CSV, examples.ASK_FUNNEL),
    )
    async def funnel_csv(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        data: JSONBody[FunnelQuery],
        wait: Wait = None,
    ) -> Response[bytes]:
        """The same steps as CSV."""
        asked = _wait_for(principal, wait)
        answer = await _asked(request, read_waits, asked, lambda: insights.funnel(principal.tenant_id, data))
        return _csv(table.funnel(answer), "funnel", answer)

    @post(
        "/retention.csv",
        operation_id="retentionCsv",
        status_code=200,
        media_type="text/csv",
        opt=_opt(examples.RETENTION_CSV, examples.ASK_RETENTION),
    )
    async def retention_csv(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        data: JSONBody[RetentionQuery],
        wait: Wait = None,
    ) -> Response[bytes]:
        """The same cohorts as CSV."""
        asked = _wait_for(principal, wait)
        answer = await _asked(request, read_waits, asked, lambda: insights.retention(principal.tenant_id, data))
        return _csv(table.retention(answer), "retention", answer)


class EventStoreRoutes(Controller):
    path = "/v1/insights"
    tags = ("Insights",)

    @get("/events", operation_id="searchEvents", opt=_opt(examples.EVENTS))
    async def search(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        start: From = None,
        end: To = None,
        event: Name = None,
        distinct_id: Whose = None,
        where: Where = None,
        zone: Zone = None,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        wait: Wait = None,
    ) -> EventPage:
        """Stored events, newest first."""
        query = _query(insights, start, end, event, distinct_id, where, zone)

        async def read() -> EventPage:
            return _page(await insights.search(principal.tenant_id, query, cursor, limit))

        return await _asked(request, read_waits, _wait_for(principal, wait), read)

    @get("/people/{person_id:uuid}/events", operation_id="personEvents", opt=_opt(examples.EVENTS))
    async def of_person(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        person_id: FromPath[UUID],
        start: From = None,
        end: To = None,
        event: Name = None,
        where: Where = None,
        zone: Zone = None,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        wait: Wait = None,
    ) -> EventPage:
        """A person's events under all of its ids, newest first."""
        query = _query(insights, start, end, event, None, where, zone)

        async def read() -> EventPage:
            return _page(await insights.of_person(principal.tenant_id, person_id, query, cursor, limit))

        return await _asked(request, read_waits, _wait_for(principal, wait), read)

    @get("/events.csv", operation_id="exportEvents", media_type="text/csv", opt=_opt(examples.EVENTS_CSV))
    async def export(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        start: From = None,
        end: To = None,
        event: Name = None,
        distinct_id: Whose = None,
        where: Where = None,
        zone: Zone = None,
        wait: Wait = None,
    ) -> Stream:
        """The same events as CSV, up to 100,000; a last line starting with # says so when there are more."""
        query = _query(insights, start, end, event, distinct_id, where, zone)
        state, pieces = await state_and(
            read_waits,
            request,
            _wait_for(principal, wait),
            lambda: _begun(insights.export(principal.tenant_id, query)),
        )
        return Stream(pieces, media_type="text/csv", headers={**_named("events"), **headers_of(state)})

    @get("/explain", operation_id="whereIsMyEvent", opt=_opt(examples.WHEREABOUTS))
    async def explain(
        self,
        request: Asker,
        insights: Insights,
        read_waits: Waits,
        principal: Who,
        event_id: EventId,
        wait: Wait = None,
    ) -> Whereabouts:
        """Where did my event go? Counted, parked, waiting or unknown, and what the event store has of it."""
        asked = _wait_for(principal, wait)
        return await read_after(read_waits, request, asked, lambda: insights.explain(principal.tenant_id, event_id))

    @get("/tail", operation_id="tailEvents", media_type="text/event-stream", opt=_opt(examples.TAIL))
    async def tail(self, insights: Insights, principal: Who, event: Name = None, distinct_id: Whose = None) -> Stream:
        """What is accepted, as it comes (server-sent events): seen, parked, dropped, missed. Ends after an hour."""
        told = insights.watch(principal.tenant_id, Wanted(event, distinct_id))
        quiet = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Stream(await _begun(_sse(told)), media_type="text/event-stream", headers=quiet)


async def _asked(request: Asker, waits: ReadWaits, asked: WaitFor, read: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer, after the read has waited if it is to, unless the client leaves first."""
    if asked.seconds is None:
        return await disconnects.answer(request, read())
    return await read_after(waits, request, asked, read)


def _wait_for(principal: Principal, wait: float | None) -> WaitFor:
    return WaitFor(principal.tenant_id, wait, "exported")


def _page(found: Page[EventRow]) -> EventPage:
    return EventPage(found.items, found.next)


async def _begun(pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """With the first piece at hand: what fails before it is answered with its proper status."""
    first = await anext(pieces)

    async def all_of() -> AsyncIterator[bytes]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return all_of()


async def _sse(told: AsyncGenerator[Told, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(told):
        async for one in told:
            if one.kind == "still":
                yield b": still here\n\n"
            else:
                yield b"event: %s\ndata: %s\n\n" % (one.kind.encode(), msgspec.json.encode(one.value))


def _query(
    insights: InsightsService,
    start: date | None,
    end: date | None,
    event: str | None,
    distinct_id: str | None,
    where: str | None,
    zone: str | None,
) -> SearchQuery:
    today = insights.now().date()
    try:
        last = end or (today if start is None else max(today, start)) + timedelta(days=1)
        first = start or last - timedelta(days=7)
        ids = None if distinct_id is None else (distinct_id,)
        return SearchQuery(first, last, event, ids, _filters(where), zone)
    except (ValueError, OverflowError) as error:
        raise Invalid(f"The request is not valid: {error}.") from None


def _filters(where: str | None) -> tuple[Filter, ...]:
    if where is None:
        return ()
    kind = Annotated[list[Filter], msgspec.Meta(max_length=MOST_FILTERS)]
    try:
        return tuple(msgspec.json.decode(where.encode("utf-8", "replace"), type=kind))
    except UNREADABLE:
        told = faults_of(where.encode("utf-8", "replace"), kind)
        faults = [Fault(f"where{one.field}", one.reason) for one in told]
        raise Invalid("`where` is no JSON array of filters.", faults=faults) from None


def _csv(body: bytes, name: str, answer: Completeness) -> Response[bytes]:
    headers = {**_named(name), **headers_of(None if answer.complete is None else answer)}
    return Response(body, media_type="text/csv", headers=headers)


def _named(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}.csv"'}


handlers = [QuestionRoutes, EventStoreRoutes]
