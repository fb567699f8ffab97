"""Routes about events: what was parked and its ways back, why events were dropped, and where one went."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter, SkipValidation

from handbill.events import config_routes
from handbill.events.service import (
    Chosen,
    Drop,
    EventsService,
    Explanation,
    OnFailure,
    ParkedRequest,
    ParkedRow,
    ReplayOptions,
)
from handbill.kit.errors import Fault, Invalid
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page, decode, page
from handbill.kit.read_waits import LONGEST_WAIT_S, ReadWaits, WaitFor, read_after
from handbill.tenants.model import Principal

Events = NamedDependency[SkipValidation[EventsService]]
Who = NamedDependency[SkipValidation[Principal]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
Reason = Annotated[str | None, QueryParameter(max_length=64, description="Only those parked for this reason.")]
Wait = Annotated[
    float | None,
    QueryParameter(
        ge=0, le=LONGEST_WAIT_S,
        description="Seconds to wait until everything accepted before is in the answer, at most 5. See `complete`.",
    ),
]  # fmt: skip
Waits = NamedDependency[SkipValidation[ReadWaits]]
Asker = Request[Any, Any, Any]
EventId = Annotated[str, QueryParameter(min_length=1, max_length=200, description="The id the event was sent with.")]

_AT = "2026-07-01T09:30:00Z"
_ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_PARKED: dict[str, Any] = {
    "id": _ID, "kind": "impression", "event_id": "imp_1", "lane": "2", "reason": "REJECTED",
    "detail": "sqlstate 22021", "bytes": 120, "parked_at": _AT, "replayed_at": None,
}  # fmt: skip
_EXPLAINED: dict[str, Any] = {
    "event_id": "imp_1", "kind": "impression", "outcome": "counted", "said": "Counted as impression.",
    "counted_at": _AT, "parked": [],
}  # fmt: skip


_REPLAY: dict[str, Any] = {
    "parked_request_id": _ID, "action": "replay", "status": "done", "requested_by": f"user {_ID}", "created_at": _AT,
    "reason": "REJECTED", "dry_run": False, "total": 3, "started_at": _AT, "finished_at": _AT, "error": None,
    "report": {
        "matched": 3, "sent": 3, "unreadable": 0, "too_old": 0, "failed": 0, "unshipped": 0, "shipped": 0,
        "stopped": False,
    },
}  # fmt: skip
_QUEUED: dict[str, Any] = {**_REPLAY, "status": "queued", "total": None, "started_at": None, "finished_at": None}
_REPLAY_QUEUED: dict[str, Any] = {**_QUEUED, "report": {**_REPLAY["report"], "matched": 0, "sent": 0}}
_DROP_QUEUED: dict[str, Any] = {**_QUEUED, "action": "drop", "report": {"dropped": 0}}


class ParkedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which parked events: of one reason, with these ids, or both."""

    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    """Only those that were parked for this reason."""
    ids: Annotated[list[UUID], msgspec.Meta(max_length=1_000)] = []
    """Only those with one of these ids, at most 1,000."""


class EventRoutes(Controller):
    path = "/admin/events"
    tags = ("Events",)

    @get(
        "/explain",
        operation_id="explainEvent",
        opt={"scope": "events:read", "example": _EXPLAINED},
    )
    async def explain(
        self,
        request: Asker,
        events: Events,
        read_waits: Waits,
        principal: Who,
        event_id: EventId,
        wait: Wait = None,
    ) -> Explanation:
        """Where did my event go? Counted or not and why, parked, waiting or never accepted, in one call."""
        asked = WaitFor(principal.tenant_id, wait, "exported")
        return await read_after(read_waits, request, asked, lambda: events.explain(principal.tenant_id, event_id))

    @get(
        "/drops",
        operation_id="listDrops",
        opt={
            "scope": "events:read",
            "example": [{"day": "2026-07-01", "kind": "view", "reason": "DUPLICATE", "events": 3, "kept": False}],
        },
    )
    async def drops(
        self,
        events: Events,
        principal: Who,
        start: Annotated[date, QueryParameter(name="from", description="The first day, UTC.")],
        end: Annotated[date, QueryParameter(name="to", description="The day after the last one.")],
    ) -> list[Drop]:
        """How many events were not counted, or were counted with something left out, by day, kind and reason."""
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
        status_code=202,
        opt={"scope": "events:write", "example": _REPLAY_QUEUED},
    )
    async def replay(
        self,
        events: Events,
        principal: Who,
        reason: Reason = None,
        on_failure: Annotated[
            OnFailure, QueryParameter(description="Those still bad: `park` them again and go on, or `stop` there.")
        ] = OnFailure.PARK,
        dry_run: FromQuery[bool] = False,
        force: Annotated[
            bool, QueryParameter(description="Also those parked more than 35 days ago, at the risk of counting a copy.")
        ] = False,
    ) -> Response[ParkedRequest]:
        """Send parked events through the whole pipeline again. A dry run only counts them.

        The worker does it: read how far it is at `Location`.
        """
        chosen, options = Chosen(principal.tenant_id, reason), ReplayOptions(on_failure, dry_run, force)
        request = await events.parked_requests.replay(principal.tenant_id, chosen, options, actor=principal.actor)
        return _accepted(request)

    @post(
        "/parked/drop",
        operation_id="dropParked",
        status_code=202,
        opt={
            "scope": "events:write",
            "example": _DROP_QUEUED,
            "body_example": {"reason": "REJECTED"},
        },
    )
    async def drop(self, events: Events, principal: Who, data: JSONBody[ParkedChoice]) -> Response[ParkedRequest]:
        """Give up parked events for good, by reason or by id. The audit log keeps who did it and how many they were.

        The worker does it: read how far it is at `Location`. What is parked after its start stays.
        """
        chosen = Chosen(principal.tenant_id, data.reason, tuple(data.ids))
        return _accepted(await events.parked_requests.drop(principal.tenant_id, chosen, actor=principal.actor))

    @get(
        "/parked/requests/{parked_request_id:uuid}",
        operation_id="getParkedRequest",
        opt={"scope": "events:read", "example": _REPLAY},
    )
    async def parked_request(self, events: Events, principal: Who, parked_request_id: FromPath[UUID]) -> ParkedRequest:
        """One replay or drop of parked events: how far it is, and its report. It is kept for 30 days after its end."""
        return await events.parked_requests.get(principal.tenant_id, parked_request_id)


def _accepted(request: ParkedRequest) -> Response[ParkedRequest]:
    return Response(request, headers={"Location": f"/admin/events/parked/requests/{request.parked_request_id}"})


def _after(cursor: str | None) -> UUID | None:
    if cursor is None:
        return None
    try:
        return UUID(str(decode(cursor, (str,))[0]))
    except ValueError:
        raise Invalid("The cursor is not one of ours; start again without it.", code="BAD_CURSOR") from None


handlers = [EventRoutes, *config_routes.handlers]
