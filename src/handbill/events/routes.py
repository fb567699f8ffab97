"""Routes about events: what was parked, why events were dropped, and where one went."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter, SkipValidation

from handbill.events.service import Drop, EventsService, Explanation, ParkedRow, Replayed
from handbill.kit.errors import Fault, Invalid
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page, decode, page
from handbill.tenants.model import Principal

Events = NamedDependency[SkipValidation[EventsService]]
Who = NamedDependency[SkipValidation[Principal]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
Reason = Annotated[str | None, QueryParameter(max_length=64, description="Only those parked for this reason.")]
EventId = Annotated[str, QueryParameter(min_length=1, max_length=200, description="The id the event was sent with.")]

_AT = "2026-07-01T09:30:00Z"
_ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_PARKED: dict[str, Any] = {
    "id": _ID, "kind": "impression", "event_id": "imp_1", "lane": "2", "reason": "REJECTED",
    "detail": "sqlstate 22021", "bytes": 120, "parked_at": _AT, "replayed_at": None,
}  # fmt: skip
_EXPLAINED: dict[str, Any] = {
    "event_id": "imp_1", "kind": "impression", "outcome": "counted", "said": "Counted as impression.",
    "counted_at": _AT, "row": None, "parked": [],
}  # fmt: skip


class EventRoutes(Controller):
    path = "/admin/events"
    tags = ("Events",)

    @get(
        "/explain",
        operation_id="explainEvent",
        opt={"scope": "events:read", "example": _EXPLAINED},
    )
    async def explain(self, events: Events, principal: Who, event_id: EventId) -> Explanation:
        """Where did my event go? Counted, parked, waiting or never accepted, in one call."""
        return await events.explain(principal.tenant_id, event_id)

    @get(
        "/drops",
        operation_id="listDrops",
        opt={
            "scope": "events:read",
            "example": [{"day": "2026-07-01", "kind": "view", "reason": "DUPLICATE", "events": 3}],
        },
    )
    async def drops(
        self,
        events: Events,
        principal: Who,
        start: Annotated[date, QueryParameter(name="from", description="The first day, UTC.")],
        end: Annotated[date, QueryParameter(name="to", description="The day after the last one.")],
    ) -> list[Drop]:
        """How many events were not counted, by day, kind and reason."""
        if start >= end or (end - start).days > 400:
            raise Invalid("The range is empty or too long.", faults=[Fault("to", "must be 1 to 400 days after from")])
        return await events.drops(principal.tenant_id, start, end)

    @get(
        "/parked",
        operation_id="listParked",
        opt={"scope": "events:read", "example": {"items": [_PARKED], "next": None}},
    )
    async def parked(
        self,
        events: Events,
        principal: Who,
        reason: Reason = None,
        replayed: FromQuery[bool] = False,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
    ) -> Page[ParkedRow]:
        """Events that could not be counted, oldest first; those sent in again are left out unless asked for."""
        rows = await events.parked(
            principal.tenant_id, reason=reason, replayed=replayed, after=_after(cursor), limit=limit + 1
        )
        return page(rows, limit, lambda row: (str(row.id),))

    @post(
        "/parked/replay",
        operation_id="replayParked",
        status_code=200,
        opt={"scope": "events:write", "example": {"matched": 3, "sent": 3, "unreadable": 0, "dry_run": False}},
    )
    async def replay(
        self, events: Events, principal: Who, reason: Reason = None, dry_run: FromQuery[bool] = False
    ) -> Replayed:
        """Send parked events through the whole pipeline again. A dry run only counts them."""
        return await events.replay(principal.tenant_id, reason=reason, dry_run=dry_run)


def _after(cursor: str | None) -> UUID | None:
    if cursor is None:
        return None
    try:
        return UUID(str(decode(cursor, (str,))[0]))
    except ValueError:
        raise Invalid("The cursor is not one of ours; start again without it.", code="BAD_CURSOR") from None


handlers = [EventRoutes]
