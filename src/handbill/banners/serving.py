"""`GET /banners`: which banners this user may see now. Any failure behind it is an empty list, never an error page.

One read of the user's caps decides all candidates. When Redis is away PostgreSQL is asked, at most fifty at a time;
when that is away too the list is empty, with 200: the app renders without banners. Each step down is metered.
"""

from __future__ import annotations

import msgspec

from handbill.banners import docs
from handbill.banners.callers import caller, query_of
from handbill.banners.catalogue import Catalogue, Snapshot
from handbill.banners.limits import limits_of, scope_of
from handbill.banners.model import Banner
from handbill.banners.wire import Shown
from handbill.caps.service import CapsService, UserCaps
from handbill.kit.clock import Clock, from_ms
from handbill.kit.errors import Busy, Fault, Forbidden, Invalid, NotFound
from handbill.kit.fast import FastReply, FastRequest, FastRoute
from handbill.kit.telemetry import metrics
from handbill.tenants.service import Directory

_ID_MAX = 200
_NO_STORE = ((b"cache-control", b"no-store"),)


class Serving:
    def __init__(self, catalogue: Catalogue, caps: CapsService, directory: Directory, clock: Clock) -> None:
        self._catalogue = catalogue
        self._caps = caps
        self._directory = directory
        self._clock = clock

    def routes(self) -> list[FastRoute]:
        return [FastRoute("GET", "/banners", self.banners, cors=True, doc=docs.BANNERS)]

    async def banners(self, request: FastRequest) -> FastReply:
        who = await caller(self._directory, request)
        query = query_of(request)
        user = _user(who.subject, query.get("user_id"))
        snapshot = self._catalogue.tenant(who.tenant_id)
        now_ms = self._clock.now_ms()
        candidates = snapshot.shown(from_ms(now_ms))
        placement = query.get("placement")
        if placement is not None:
            number = _placement(snapshot, placement)
            candidates = [banner for banner in candidates if not banner.placement_ids or number in banner.placement_ids]
        chosen = await self.eligible(who.tenant_id, user, candidates, now_ms)
        shown = Shown([banner.public_id for banner in chosen], user)
        return FastReply(200, msgspec.json.encode(shown), headers=_NO_STORE)

    async def eligible(self, tenant_id: int, user: str, candidates: list[Banner], now_ms: int) -> list[Banner]:
        """Those whose caps have room, in the order they came."""
        if not candidates:
            return []
        try:
            caps = (await self._caps.read(tenant_id, [user]))[0]
            if any(_unsure(caps, banner, now_ms) for banner in candidates):
                caps = await self._caps.asked(tenant_id, user, caps)
        except Busy:
            metrics.DECIDE_FALLBACK.labels("empty").inc()
            return []
        return [banner for banner in candidates if caps.eligible(scope_of(banner), limits_of(banner), now_ms)]


def _unsure(caps: UserCaps, banner: Banner, now_ms: int) -> bool:
    if banner.limits_raised_at is None and caps.sure:
        return False
    return caps.verdict(scope_of(banner), limits_of(banner), now_ms).unsure


def _user(subject: str | None, sent: str | None) -> str:
    if subject is not None:
        if sent is not None and sent != subject:
            raise Forbidden("user_id is not the subject of the token.", code="NOT_YOUR_USER")
        return subject
    if not sent or len(sent) > _ID_MAX:
        raise Invalid(
            "Say for whom: a user's token, or user_id beside the write key.",
            faults=[Fault("user_id", f"must have 1 to {_ID_MAX} characters")],
        )
    return sent


def _placement(snapshot: Snapshot, named: str) -> int:
    """By slug or public id."""
    for placement in snapshot.placements.values():
        if placement.slug == named or str(placement.public_id) == named:
            return placement.id
    raise NotFound("There is no such placement.", code="PLACEMENT_NOT_FOUND")
