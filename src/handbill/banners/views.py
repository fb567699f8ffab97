"""Views over HTTP: the other half of "x times in y hours". The accepted view moves the cap in the same round trip.

Counted is a view that was visible for at least z seconds, or that the user dismissed. Anything else is stored and does
not count; what was closed faster than anybody reads is marked accidental.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec

from handbill.banners import docs, wire
from handbill.banners.callers import UserTokenRequired, caller, require_user_token
from handbill.banners.catalogue import Catalogue, Found
from handbill.banners.limits import lease_ms, lease_of
from handbill.banners.marks import ACCIDENTAL, UNVERIFIED
from handbill.banners.model import Banner
from handbill.banners.reporters import Reporters
from handbill.banners.tokens import Token, Tokens
from handbill.banners.tracking import BODY_LIMIT, accept_batch, check_type, device_and_country, marks_of
from handbill.banners.wire import Accepted, Rejected, ViewIn
from handbill.caps.service import CapMove, CapsService, moves_of
from handbill.events.model import Dropped, Event, Reason, View, key
from handbill.events.service import EventsService
from handbill.kit.clock import Clock
from handbill.kit.errors import Fault, Forbidden, HandbillError, Invalid, NotFound
from handbill.kit.fast import FastReply, FastRequest, FastRoute
from handbill.tenants.service import Directory

Command = list[Any]

_GRACE_MS = 250
"""Two processes' clocks may differ by a little, and a refused view is one that was seen and not counted."""


_RECORDED = msgspec.json.encode(Accepted("View recorded."))


class Judged(msgspec.Struct, frozen=True):
    """An accepted view and what it does to the caps: no moves where it does not count.

    `decided_ms` is the time of its decision where an unexpired token proves it.
    """

    event: Event
    moves: tuple[CapMove, ...] = ()
    decided_ms: int | None = None
    lease: int = 0
    is_late: bool = False


class Views:
    def __init__(
        self,
        catalogue: Catalogue,
        events: EventsService,
        caps: CapsService,
        directory: Directory,
        reporters: Reporters,
        clock: Clock,
        *,
        tokens: Tokens | None = None,
        accidental_close_ms: int = 500,
    ) -> None:
        self._catalogue = catalogue
        self._events = events
        self._caps = caps
        self._directory = directory
        self._reporters = reporters
        self._tokens = tokens or Tokens(secrets.token_bytes(32))
        self._clock = clock
        self._accidental_ms = accidental_close_ms

    def routes(self) -> list[FastRoute]:
        return [
            FastRoute("POST", "/views", self.view, cors=True, body_limit=BODY_LIMIT, doc=docs.VIEW),
            FastRoute("POST", "/views/batch", self.views, cors=True, body_limit=BODY_LIMIT, doc=docs.VIEWS),
        ]

    async def view(self, request: FastRequest) -> FastReply:
        check_type(request)
        await self._reporters.admit(request, "view")
        judged = await self._judge(request, wire.one(ViewIn, request.body), 0)
        await self._events.accept([judged.event], await self._commands(judged))
        return FastReply(202, _RECORDED)

    async def views(self, request: FastRequest) -> FastReply:
        check_type(request)
        found = wire.many(ViewIn, request.body)
        await self._reporters.admit(request, "view", len(found))
        judged: list[Judged] = []
        rejected: list[Rejected] = []
        for place, sent in found:
            try:
                if isinstance(sent, Invalid):
                    raise sent
                judged.append(await self._judge(request, sent, place))
            except (Invalid, NotFound, Forbidden, UserTokenRequired) as error:
                rejected.append(_rejected(place, error))
        # Together, so that one statement looks up all that must be looked up.
        commands = await asyncio.gather(*map(self._commands, judged))
        extra = [command for some in commands for command in some]
        return await accept_batch(self._events, [each.event for each in judged], rejected, "views", extra)

    async def _commands(self, judged: Judged) -> list[Command]:
        """What the view changes in the caps: nothing when it does not count, or is a copy of one that was counted."""
        event, moves = judged.event, judged.moves
        if type(event) is not View or not moves:
            return []
        if self._caps.may_be_forgotten_copy(event.tenant, moves, judged.decided_ms, event.received):
            counted_before = await self._events.is_counted(event.tenant, key("view", event.id))
            if counted_before:  # not known in time: most likely it is a new one, and the pipeline will tell
                return []
        if judged.is_late:
            self._caps.reported_late()
        return self._caps.move_commands(
            event.tenant,
            event.user or "",
            moves,
            device_id=event.device_id,
            session_id=event.session,
            lease=judged.lease,
        )

    async def _judge(self, request: FastRequest, sent: ViewIn, index: int) -> Judged:
        found = await self._catalogue.find("banner", sent.banner_id)
        banner = await self._catalogue.banner(found) if found is not None else None
        if found is None or banner is None:
            raise NotFound(f"There is no banner {sent.banner_id}; nothing was counted.", code="BANNER_NOT_FOUND")
        who = await caller(self._directory, request, found.tenant_id, needs_proof=False)
        if who.subject is not None and who.subject != sent.user_id:
            raise Forbidden("user_id is not the subject of the token; nothing was counted.", code="NOT_YOUR_USER")
        received = self._clock.now_ms()
        read = self._token(found, sent, received)
        # One that has expired proves nothing any more: the view waited in a client's queue.
        token = read if read is not None and received < read.expires_ms else None
        await require_user_token(self._directory, who, proved=token is not None and token.proved)
        proved = token is not None and (token.proved or who.is_proved)
        marks = marks_of(request) + (() if proved else (UNVERIFIED,))
        placement = await self._placement(found, sent)
        if placement is None and token is not None:
            placement = token.placement_id
        if await self._untracked(request, found.tenant_id):
            dropped = Dropped(found.tenant_id, sent.event_id, received, received, "view", str(Reason.DO_NOT_TRACK))
            return Judged(dropped)
        counted, marks = self._counts(banner, sent, marks)
        device, country = device_and_country(request, read)
        time = wire.timing(None, received, index, event_id=sent.event_id)
        event = View(
            found.tenant_id, sent.event_id, time.at, received, banner.id, placement, banner.campaign_id, sent.user_id,
            sent.session_id, device, country, None, marks, sent.device_id, sent.view_duration_ms, sent.dismissed,
            counted, read.variant if read is not None else None, sent.viewable, banner.z_duration_sec * 1000,
            time.micros, time.sequence,
        )  # fmt: skip
        if not counted:
            return Judged(event)
        # Its own lease, and nobody else's, however long ago it ended.
        lease = read.lease if read is not None else None
        return Judged(
            event,
            moves_of(key("view", event.id), received, banner.id, banner.campaign_id, placement),
            token.decided_ms if token is not None else None,
            lease_of(banner, lease),
            is_late=bool(read is not None and lease and received >= read.decided_ms + lease_ms(banner)),
        )

    def _token(self, found: Found, sent: ViewIn, now_ms: int) -> Token | None:
        """The decision behind the view, expired or not."""
        if sent.token is None:
            return None
        token = self._tokens.read(sent.token)
        if token is None or (token.tenant_id, token.banner_id) != (found.tenant_id, found.id):
            raise Forbidden("The token is not this banner's; nothing was counted.", code="BAD_DECISION_TOKEN")
        if token.user != self._tokens.user(found.tenant_id, sent.user_id):
            raise Forbidden("The token is another user's; nothing was counted.", code="BAD_DECISION_TOKEN")
        since = now_ms - token.decided_ms + _GRACE_MS
        if sent.view_duration_ms > since:
            raise Invalid(
                "The view lasted longer than the time since its decision; nothing was counted.",
                code="DURATION_TOO_LONG",
                faults=[Fault("view_duration_ms", f"is more than the {since} ms that have passed")],
            )
        return token

    def _counts(self, banner: Banner, sent: ViewIn, marks: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
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
