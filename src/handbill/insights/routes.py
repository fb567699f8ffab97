"""Insights over HTTP: questions by POST, stored events by GET, the live tail by SSE, each also as CSV."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
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
from handbill.insights.leaving import unless_left
from handbill.insights.model import (
    MOST_FILTERS,
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
from handbill.kit.errors import Fault, Invalid
from handbill.kit.faults import faults_of
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.kit.untrusted_json import UNREADABLE
from handbill.tenants.model import Principal

T = TypeVar("T")
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
EventId = Annotated[str, QueryParameter(min_length=1, max_length=200, description="The id the event was sent with.")]
_READ: dict[str, Any] = {"scope": "insights:read"}


def _opt(example: Any, body: Any = None) -> dict[str, Any]:
    return {**_READ, "example": example, **({"body_example": body} if body is not None else {})}


class QuestionRoutes(Controller):
    path = "/v1/insights"
    tags = ("Insights",)

    @post("/trends", operation_id="trends", status_code=200, opt=_opt(examples.TRENDS, examples.ASK_TRENDS))
    async def trends(self, request: Asker, insights: Insights, principal: Who, data: JSONBody[TrendsQuery]) -> Trends:
        """Counts, people and figures of a property over time, by any property; compared with the days before."""
        return await _answer(request, insights.trends(principal.tenant_id, data))

    @post("/funnels", operation_id="funnel", status_code=200, opt=_opt(examples.FUNNEL, examples.ASK_FUNNEL))
    async def funnel(self, request: Asker, insights: Insights, principal: Who, data: JSONBody[FunnelQuery]) -> Funnel:
        """How many people went from step to step, and how long it took them."""
        return await _answer(request, insights.funnel(principal.tenant_id, data))

    @post("/retention", operation_id="retention", status_code=200, opt=_opt(examples.RETENTION, examples.ASK_RETENTION))
    async def retention(
        self, request: Asker, insights: Insights, principal: Who, data: JSONBody[RetentionQuery]
    ) -> Retention:
        """Of the people who began in a period, how many came back in each later one."""
        return await _answer(request, insights.retention(principal.tenant_id, data))

    @post(
        "/trends.csv",
        operation_id="trendsCsv",
        status_code=200,
        media_type="text/csv",
        opt=_opt(examples.TRENDS_CSV, examples.ASK_TRENDS),
    )
    async def trends_csv(
        self, request: Asker, insights: Insights, principal: Who, data: JSONBody[TrendsQuery]
    ) -> Response[bytes]:
        """The same figures as CSV, one row for each."""
        answer = await _answer(request, insights.trends(principal.tenant_id, data))
        return _csv(table.trends(data, answer), "trends")

    @post(
        "/funnels.csv",
        operation_id="funnelCsv",
        status_code=200,
        media_type="text/csv",
        opt=_opt(examples.FUNNEL_CSV, examples.ASK_FUNNEL),
    )
    async def funnel_csv(
        self, request: Asker, insights: Insights, principal: Who, data: JSONBody[FunnelQuery]
    ) -> Response[bytes]:
        """The same steps as CSV."""
        return _csv(table.funnel(await _answer(request, insights.funnel(principal.tenant_id, data))), "funnel")

    @post(
        "/retention.csv",
        operation_id="retentionCsv",
        status_code=200,
        media_type="text/csv",
        opt=_opt(examples.RETENTION_CSV, examples.ASK_RETENTION),
    )
    async def retention_csv(
        self, request: Asker, insights: Insights, principal: Who, data: JSONBody[RetentionQuery]
    ) -> Response[bytes]:
        """The same cohorts as CSV."""
        return _csv(table.retention(await _answer(request, insights.retention(principal.tenant_id, data))), "retention")


class EventStoreRoutes(Controller):
    path = "/v1/insights"
    tags = ("Insights",)

    @get("/events", operation_id="searchEvents", opt=_opt(examples.EVENTS))
    async def search(
        self,
        request: Asker,
        insights: Insights,
        principal: Who,
        start: From = None,
        end: To = None,
        event: Name = None,
        distinct_id: Whose = None,
        where: Where = None,
        zone: Zone = None,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
    ) -> Page[EventRow]:
        """Stored events, newest first."""
        query = _query(insights, start, end, event, distinct_id, where, zone)
        return await _answer(request, insights.search(principal.tenant_id, query, cursor, limit))

    @get("/people/{person_id:uuid}/events", operation_id="personEvents", opt=_opt(examples.EVENTS))
    async def of_person(
        self,
        request: Asker,
        insights: Insights,
        principal: Who,
        person_id: FromPath[UUID],
        start: From = None,
        end: To = None,
        event: Name = None,
        where: Where = None,
        zone: Zone = None,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
    ) -> Page[EventRow]:
        """A person's events under all of its ids, newest first."""
        query = _query(insights, start, end, event, None, where, zone)
        return await _answer(request, insights.of_person(principal.tenant_id, person_id, query, cursor, limit))

    @get("/events.csv", operation_id="exportEvents", media_type="text/csv", opt=_opt(examples.EVENTS_CSV))
    async def export(
        self,
        insights: Insights,
        principal: Who,
        start: From = None,
        end: To = None,
        event: Name = None,
        distinct_id: Whose = None,
        where: Where = None,
        zone: Zone = None,
    ) -> Stream:
        """The same events as CSV, up to 100,000; a last line starting with # says so when there are more."""
        query = _query(insights, start, end, event, distinct_id, where, zone)
        pieces = await _begun(insights.export(principal.tenant_id, query))
        return Stream(pieces, media_type="text/csv", headers=_named("events"))

    @get("/explain", operation_id="whereIsMyEvent", opt=_opt(examples.WHEREABOUTS))
    async def explain(self, insights: Insights, principal: Who, event_id: EventId) -> Whereabouts:
        """Where did my event go? Counted, parked, waiting or unknown, and what the event store has of it."""
        return await insights.explain(principal.tenant_id, event_id)

    @get("/tail", operation_id="tailEvents", media_type="text/event-stream", opt=_opt(examples.TAIL))
    async def tail(self, insights: Insights, principal: Who, event: Name = None, distinct_id: Whose = None) -> Stream:
        """What is accepted, as it comes (server-sent events): seen, parked, dropped, missed. Ends after an hour."""
        told = insights.watch(principal.tenant_id, Wanted(event, distinct_id))
        quiet = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return Stream(await _begun(_sse(told)), media_type="text/event-stream", headers=quiet)


async def _answer(request: Asker, work: Awaitable[T]) -> T:
    """The answer, unless the client leaves first. A request with an idempotency key has been read to its end by then,
    and nothing more is heard of its client."""
    if "idempotency-key" in request.headers:
        return await work
    return await unless_left(work, _left(request))


async def _left(request: Asker) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


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


def _csv(body: bytes, name: str) -> Response[bytes]:
    return Response(body, media_type="text/csv", headers=_named(name))


def _named(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}.csv"'}


handlers = [QuestionRoutes, EventStoreRoutes]
