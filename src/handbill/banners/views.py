"""Views over HTTP: the other half of "x times in y hours". The accepted view moves the cap in the same round trip.

Counted is a view that was visible for at least z seconds, or that the user dismissed. Anything else is stored and does
not count; what was closed faster than anybody reads is marked accidental.
"""

from __future__ import annotations

from typing import Any

import msgspec

from handbill.banners import docs, wire
from handbill.banners.callers import caller
from handbill.banners.catalogue import Catalogue, Found
from handbill.banners.marks import ACCIDENTAL, UNVERIFIED
from handbill.banners.model import Banner
from handbill.banners.throttle import Throttle
from handbill.banners.tracking import BODY_LIMIT, accept_batch, check_type, marks_of
from handbill.banners.wire import Accepted, Rejected, ViewIn
from handbill.caps.service import CapsService, moves_of
from handbill.events.model import Dropped, Event, Reason, View, key
from handbill.events.service import EventsService
from handbill.kit.clock import Clock
from handbill.kit.errors import Forbidden, HandbillError, Invalid, NotFound
from handbill.kit.fast import FastReply, FastRequest, FastRoute
from handbill.tenants.service import Directory

Command = list[Any]


_RECORDED = msgspec.json.encode(Accepted("View recorded."))


class Views:
    def __init__(
        self,
        catalogue: Catalogue,
        events: EventsService,
        caps: CapsService,
        directory: Directory,
        throttle: Throttle,
        clock: Clock,
        *,
        accidental_close_ms: int = 500,
    ) -> None:
        self._catalogue = catalogue
        self._events = events
        self._caps = caps
        self._directory = directory
        self._throttle = throttle
        self._clock = clock
        self._accidental_ms = accidental_close_ms

    def routes(self) -> list[FastRoute]:
        return [
            FastRoute("POST", "/views", self.view, cors=True, body_limit=BODY_LIMIT, doc=docs.VIEW),
            FastRoute("POST", "/views/batch", self.views, cors=True, body_limit=BODY_LIMIT, doc=docs.VIEWS),
        ]

    async def view(self, request: FastRequest) -> FastReply:
        check_type(request)
        await self._throttle.take(request.client_ip, 1)
        event, commands = await self._event(request, wire.one(ViewIn, request.body))
        await self._events.accept([event], commands)
        return FastReply(202, _RECORDED)

    async def views(self, request: FastRequest) -> FastReply:
        check_type(request)
        found = wire.many(ViewIn, request.body)
        await self._throttle.take(request.client_ip, len(found))
        events: list[Event] = []
        extra: list[Command] = []
        rejected: list[Rejected] = []
        for place, sent in found:
            try:
                if isinstance(sent, Invalid):
                    raise sent
                event, commands = await self._event(request, sent)
            except (Invalid, NotFound, Forbidden) as error:
                rejected.append(_rejected(place, error))
                continue
            events.append(event)
            extra += commands
        return await accept_batch(self._events, events, rejected, "views", extra)

    async def _event(self, request: FastRequest, sent: ViewIn) -> tuple[Event, list[Command]]:
        found = await self._catalogue.find("banner", sent.banner_id)
        banner = await self._catalogue.banner(found) if found is not None else None
        if found is None or banner is None:
            raise NotFound(f"There is no banner {sent.banner_id}; nothing was counted.", code="BANNER_NOT_FOUND")
        who = await caller(self._directory, request, found.tenant_id)
        if who.subject is not None and who.subject != sent.user_id:
            raise Forbidden("user_id is not the subject of the token; nothing was counted.", code="NOT_YOUR_USER")
        marks = marks_of(request) + (() if who.subject is not None else (UNVERIFIED,))
        placement = await self._placement(found, sent)
        received = self._clock.now_ms()
        if await self._untracked(request, found.tenant_id):
            dropped = Dropped(found.tenant_id, sent.event_id, received, received, "view", str(Reason.DO_NOT_TRACK))
            return dropped, []
        counted, marks = self._judged(banner, sent, marks)
        event = View(
            found.tenant_id, sent.event_id, received, received, banner.id, placement, banner.campaign_id, sent.user_id,
            sent.session_id, None, None, None, marks, sent.device_id, sent.view_duration_ms, sent.dismissed, counted,
        )  # fmt: skip
        if not counted:
            return event, []
        moves = moves_of(key("view", event.id), received, banner.id, banner.campaign_id, placement)
        return event, self._caps.move_commands(found.tenant_id, sent.user_id, moves)

    def _judged(self, banner: Banner, sent: ViewIn, marks: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
        if sent.dismissed or sent.view_duration_ms >= banner.z_duration_sec * 1000:
            return True, marks
        if sent.view_duration_ms < self._accidental_ms:
            return False, (*marks, ACCIDENTAL)
        return False, marks

    async def _placement(self, found: Found, sent: ViewIn) -> int | None:
        if sent.placement_id is None:
            return None
        placement = await self._catalogue.find("placement", sent.placement_id)
        if placement is None or placement.tenant_id != found.tenant_id:
            raise NotFound(
                f"There is no placement {sent.placement_id}; nothing was counted.", code="PLACEMENT_NOT_FOUND"
            )
        return placement.id

    async def _untracked(self, request: FastRequest, tenant_id: int) -> bool:
        if request.headers.get(b"dnt") != b"1" and request.headers.get(b"sec-gpc") != b"1":
            return False
        profile = await self._directory.profile(tenant_id)
        return profile.settings.privacy.respect_dnt


def _rejected(place: int, error: HandbillError) -> Rejected:
    return Rejected(place, error.code, error.detail, list(error.faults))
