"""Impressions and clicks over HTTP: public, answered in milliseconds, 202 only when they are durable.

The tenant comes from the banner, and so does the campaign where none was sent. A placement must be the same tenant's;
an unknown campaign keeps the event without one, since it may have been deleted after the banner was shown. Deleted
banners and placements still count. The variant comes from the decision's token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec

from handbill.banners import docs, wire
from handbill.banners.callers import UserTokenRequired
from handbill.banners.catalogue import Catalogue, Found, Kind
from handbill.banners.marks import BOT
from handbill.banners.reporters import Reporters
from handbill.banners.tokens import Token, Tokens, storable
from handbill.banners.wire import Accepted, BatchAccepted, BatchData, ClickIn, ImpressionIn, Rejected, Timing
from handbill.events.model import HORIZON_DAYS, Click, Dropped, Event, Impression, Reason
from handbill.events.service import EventsService
from handbill.kit.agents import device_of, from_header, is_bot
from handbill.kit.clock import Clock
from handbill.kit.errors import Forbidden, HandbillError, Invalid, NotFound, Unsupported
from handbill.kit.fast import FastDoc, FastHandler, FastReply, FastRequest, FastRoute
from handbill.tenants.service import Directory

T = TypeVar("T", ImpressionIn, ClickIn)

_HORIZON_MS = HORIZON_DAYS * 86_400_000
BODY_LIMIT = 1 << 20
TYPES = (b"application/json", b"text/plain", b"application/csp-report", b"")
"""Beacons may send only plain types; what they carry is JSON all the same."""


_IMPRESSION = FastReply(202, msgspec.json.encode(Accepted("Impression recorded.")))
_CLICK = FastReply(202, msgspec.json.encode(Accepted("Click recorded.")))


class Tracking:
    def __init__(
        self,
        catalogue: Catalogue,
        events: EventsService,
        directory: Directory,
        tokens: Tokens,
        reporters: Reporters,
        clock: Clock,
    ) -> None:
        self._catalogue = catalogue
        self._events = events
        self._directory = directory
        self._tokens = tokens
        self._reporters = reporters
        self._clock = clock

    def routes(self) -> list[FastRoute]:
        return [
            _route("impression", self.impression, docs.IMPRESSION),
            _route("click", self.click, docs.CLICK),
            _route("impression/batch", self.impressions, docs.IMPRESSIONS),
            _route("click/batch", self.clicks, docs.CLICKS),
        ]

    async def impression(self, request: FastRequest) -> FastReply:
        await self._one(request, ImpressionIn, _impression)
        return _IMPRESSION

    async def click(self, request: FastRequest) -> FastReply:
        await self._one(request, ClickIn, _click)
        return _CLICK

    async def impressions(self, request: FastRequest) -> FastReply:
        return await self._many(request, ImpressionIn, _impression, "impressions")

    async def clicks(self, request: FastRequest) -> FastReply:
        return await self._many(request, ClickIn, _click, "clicks")

    async def _one(self, request: FastRequest, kind: type[T], make: Make[T]) -> None:
        check_type(request)
        await self._reporters.admit(request, _KINDS[kind])
        sent = wire.one(kind, request.body)
        await self._events.accept([await self._event(request, sent, make, 0)])

    async def _many(self, request: FastRequest, kind: type[T], make: Make[T], what: str) -> FastReply:
        check_type(request)
        found = wire.many(kind, request.body)
        await self._reporters.admit(request, _KINDS[kind], len(found))
        events: list[Event] = []
        rejected: list[Rejected] = []
        for place, sent in found:
            try:
                if isinstance(sent, Invalid):
                    raise sent
                events.append(await self._event(request, sent, make, place))
            except (Invalid, NotFound, Forbidden, UserTokenRequired) as error:
                rejected.append(Rejected(place, error.code, error.detail, list(error.faults)))
        return await accept_batch(self._events, events, rejected, what)

    async def _event(self, request: FastRequest, sent: T, make: Make[T], index: int) -> Event:
        known = self._catalogue.known
        found = known("banner", sent.bannerPublicId) or await self._found("banner", sent.bannerPublicId)
        placement = known("placement", sent.placementPublicId)
        if placement is None or placement.tenant_id != found.tenant_id:
            placement = await self._found("placement", sent.placementPublicId, found.tenant_id)
        campaign = await self._campaign(found, sent.campaignPublicId)
        token = self._token(found, sent)
        time = wire.timing(sent.occurredAt, self._clock.now_ms(), index, event_id=sent.correlationId)
        if time.at < time.received - _HORIZON_MS:
            raise too_old()
        await self._reporters.check_user(request, found.tenant_id, sent.userId, token)
        if asks_not_to_be_tracked(request) and await self._respected(found.tenant_id):
            kind = _KINDS[type(sent)]
            reason = str(Reason.DO_NOT_TRACK)
            return Dropped(found.tenant_id, sent.correlationId, time.at, time.received, kind, reason)
        return make(sent, Place(found.tenant_id, found.id, placement.id, campaign), time, token, request)

    async def _campaign(self, banner: Found, sent: UUID | None) -> int | None:
        """The one that was sent, if it is the same tenant's; without any, the banner's own."""
        if sent is None:
            shown = self._catalogue.known_banner(banner) or await self._catalogue.banner(banner)
            return shown.campaign_id if shown is not None else None
        named = self._catalogue.known("campaign", sent) or await self._catalogue.find("campaign", sent)
        return named.id if named is not None and named.tenant_id == banner.tenant_id else None

    def _token(self, banner: Found, sent: ImpressionIn | ClickIn) -> Token | None:
        """The decision behind the event, expired or not: which variant was shown stays true."""
        if sent.token is None:
            return None
        token = self._tokens.read(sent.token)
        if token is None or (token.tenant_id, token.banner_id) != (banner.tenant_id, banner.id):
            raise Forbidden("The token is not this banner's; nothing was counted.", code="BAD_DECISION_TOKEN")
        if sent.userId is not None and not self._tokens.is_for(token, sent.userId):
            raise Forbidden("The token is another user's; nothing was counted.", code="BAD_DECISION_TOKEN")
        return token

    async def _found(self, kind: Kind, public_id: UUID, tenant_id: int | None = None) -> Found:
        found = await self._catalogue.find(kind, public_id)
        if found is None or (tenant_id is not None and found.tenant_id != tenant_id):
            raise NotFound(f"There is no {kind} {public_id}; nothing was counted.", code=f"{kind.upper()}_NOT_FOUND")
        return found

    async def _respected(self, tenant_id: int) -> bool:
        profile = await self._directory.profile(tenant_id)
        return profile.settings.privacy.respect_dnt


def asks_not_to_be_tracked(request: FastRequest) -> bool:
    return request.headers.get(b"dnt") == b"1" or request.headers.get(b"sec-gpc") == b"1"


def _route(name: str, handler: FastHandler, doc: FastDoc) -> FastRoute:
    return FastRoute("POST", f"/api/banners/events/{name}", handler, cors=True, body_limit=BODY_LIMIT, doc=doc)


class Place(msgspec.Struct, frozen=True, gc=False):
    """What an event is counted for."""

    tenant_id: int
    banner_id: int
    placement_id: int
    campaign_id: int | None


Make = Callable[[T, Place, Timing, Token | None, FastRequest], Event]


def check_type(request: FastRequest) -> None:
    given = request.headers.get(b"content-type", b"")
    if given not in TYPES and given.partition(b";")[0].strip().lower() not in TYPES:
        raise Unsupported("Send JSON, as application/json or, from a beacon, as text/plain; nothing was kept.")


def too_old() -> Invalid:
    return Invalid(
        f"It happened more than {HORIZON_DAYS} days ago and cannot be told from a copy; it was not counted.",
        code="TOO_OLD",
    )


async def accept_batch(
    events: EventsService,
    accepted: Sequence[Event],
    rejected: list[Rejected],
    what: str,
    extra: Sequence[Sequence[object]] = (),
) -> FastReply:
    """Keep what is good and name what is not. A batch with nothing good in it is refused whole."""
    if not accepted and all(item.code == UserTokenRequired.code for item in rejected):
        raise UserTokenRequired(rejected[0].detail)
    if not accepted:
        first: HandbillError = Invalid(
            f"None of the {len(rejected)} {what} could be kept; the first: {rejected[0].detail}",
            code=rejected[0].code,
            faults=[fault for item in rejected for fault in item.faults],
        )
        raise first
    await events.accept(accepted, extra)
    data = BatchData(len(accepted), rejected)
    return FastReply(202, msgspec.json.encode(BatchAccepted(f"{len(accepted)} {what} recorded.", data)))


def marks_of(request: FastRequest) -> tuple[str, ...]:
    return (BOT,) if is_bot(from_header(request.headers.get(b"user-agent", b""))) else ()


def _variant(sent: ImpressionIn | ClickIn, token: Token | None) -> str | None:
    return sent.variant if token is None else token.variant


def device_and_country(
    request: FastRequest, token: Token | None, device: str | None = None, country: str | None = None
) -> tuple[str | None, str | None]:
    """The device type and the country: as sent, else as the decision knew them, else as the request tells."""
    if token is not None:
        device = device or token.device_type
        country = country or token.country
    device = device or device_of(from_header(request.headers.get(b"user-agent", b"")))
    return device, country.upper() if country else None


def _context(
    sent: ImpressionIn | ClickIn, token: Token | None, request: FastRequest
) -> tuple[str | None, str | None, str | None]:
    """Session, device type and country."""
    session = sent.sessionId or (storable(token.session_id) if token is not None else None)
    return session, *device_and_country(request, token, sent.deviceType, sent.countryCode)


def _impression(sent: ImpressionIn, of: Place, time: Timing, token: Token | None, request: FastRequest) -> Event:
    session, device, country = _context(sent, token, request)
    return Impression(
        of.tenant_id, sent.correlationId, time.at, time.received, of.banner_id, of.placement_id, of.campaign_id,
        sent.userId, session, device, country, sent.pageUrl, marks_of(request), sent.referrerUrl,
        _variant(sent, token), time.micros, time.sequence,
    )  # fmt: skip


def _click(sent: ClickIn, of: Place, time: Timing, token: Token | None, request: FastRequest) -> Event:
    session, device, country = _context(sent, token, request)
    return Click(
        of.tenant_id, sent.correlationId, time.at, time.received, of.banner_id, of.placement_id, of.campaign_id,
        sent.userId, session, device, country, sent.pageUrl, marks_of(request), sent.destinationUrl,
        _variant(sent, token), time.micros, time.sequence,
    )  # fmt: skip


_KINDS = {ImpressionIn: "impression", ClickIn: "click"}
