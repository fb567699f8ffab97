"""What anybody may ask for: how a banner looks, and where its click leads."""

from __future__ import annotations

from uuid import UUID

import msgspec

from handbill.banners.catalogue import Catalogue, Found
from handbill.banners.model import Banner
from handbill.banners.reporters import lacks_proof
from handbill.banners.throttle import Throttle
from handbill.banners.tokens import Token, Tokens, storable
from handbill.banners.variants import by_key, face
from handbill.banners.wire import PublicBanner
from handbill.events.model import Click, Dropped, Event, Reason
from handbill.events.service import EventsService
from handbill.kit.clock import Clock
from handbill.kit.errors import Broken, Busy, EngineRefused, NotFound, Throttled
from handbill.kit.telemetry import metrics
from handbill.tenants.service import Directory

KEEP_S = 60
"""So long may a client or a CDN keep how a banner looks, unless its schedule ends it sooner."""
CLICK_ID_MAX = 150
"""Characters of a click's name that tell it from others of the same link."""


class Public:
    def __init__(
        self,
        catalogue: Catalogue,
        events: EventsService,
        directory: Directory,
        tokens: Tokens,
        throttle: Throttle,
        clock: Clock,
    ) -> None:
        self._catalogue = catalogue
        self._events = events
        self._directory = directory
        self._tokens = tokens
        self._throttle = throttle
        self._clock = clock

    async def banner(self, public_id: UUID, variant: str | None, address: str) -> tuple[PublicBanner, int]:
        """How a banner looks that is shown now, and for how many seconds that may be kept.

        Raises NotFound for any other, after asking PostgreSQL once: it may have been made or switched on just now.
        Raises Throttled when `address` asks for too many that are not shown.
        """
        shown = self._catalogue.shown(public_id)
        if shown is None and not self._catalogue.is_compared(public_id):
            await self._take_lookup(address)
            shown = await self._catalogue.compare(public_id)
        if shown is None or await self._is_suspended(shown.banner.tenant_id):
            raise NotFound(f"No banner {public_id} is shown now.", code="BANNER_NOT_FOUND")
        banner = shown.banner
        chosen = by_key(banner.variants, variant)
        if variant is not None and chosen is None:
            raise NotFound(f"The banner has no variant {variant[:40]}.", code="BANNER_NOT_FOUND")
        looks = PublicBanner(
            banner_id=banner.public_id,
            variant=variant,
            z_duration_sec=banner.z_duration_sec,
            version=banner.version,
            **face(banner, chosen),
        )
        if shown.until_ms is None:
            return looks, KEEP_S
        return looks, max(0, min(KEEP_S, (shown.until_ms - self._clock.now_ms()) // 1000))

    async def _take_lookup(self, address: str) -> None:
        try:
            await self._throttle.take(f"lookup:{address}", 1)
        except Throttled as error:
            raise Throttled(
                "Too many requests from this address for banners that are not shown; nothing was looked up.",
                retry_after=error.retry_after,
            ) from None

    async def _is_suspended(self, tenant_id: int) -> bool:
        return (await self._directory.profile(tenant_id)).tenant.status == "suspended"

    async def follow(
        self,
        sent: str,
        click_id: str | None,
        address: str,
        marks: tuple[str, ...],
        *,
        untracked: bool = False,
        anonymous: bool = False,
        counts: bool = True,
    ) -> str:
        """Count the click and say where it leads: to the banner's own address, never to one from the request.

        One click per token and click id; of a link that is too old, a drop. An anonymous click is nobody's. Somebody
        who clicked gets there even when the click cannot be counted now; that is metered. Raises NotFound for a link
        that was never given out, or whose banner has no destination.
        """
        token = self._tokens.read(sent)
        if token is None:
            raise NotFound("This link was never given out.", code="LINK_NOT_FOUND")
        banner = await self._catalogue.banner(Found(token.tenant_id, token.banner_id))
        target = face(banner, by_key(banner.variants, token.variant))["cta_link"] if banner is not None else None
        if banner is None or target is None:
            raise NotFound("The banner leads nowhere any more.", code="LINK_NOT_FOUND")
        if not counts:
            return target
        try:
            await self._throttle.take(address, 1)
            click = self._click(token, banner, click_id, target, marks)
            if anonymous:
                click = msgspec.structs.replace(click, user=None, session=None)
            await self._events.accept([await self._kept(click, token, untracked=untracked)])
        except (Busy, Throttled, Broken) as error:
            metrics.REDIRECT_UNCOUNTED.labels(error.code).inc()
        except EngineRefused:
            metrics.REDIRECT_UNCOUNTED.labels("ENGINE_REFUSED").inc()
        return target

    async def _kept(self, click: Click, token: Token, *, untracked: bool) -> Event:
        """A drop with its reason where the tenant respects that the browser asks not to be tracked, where it requires
        proof of whose click it is and there is none, and where the link is too old."""
        if untracked and (await self._directory.profile(click.tenant)).settings.privacy.respect_dnt:
            return _dropped(click, Reason.DO_NOT_TRACK)
        if await lacks_proof(self._directory, token):
            return _dropped(click, Reason.UNPROVED_USER)
        return _dropped(click, Reason.LINK_TOO_OLD) if click.at >= token.expires_ms else click

    def _click(self, token: Token, banner: Banner, click_id: str | None, target: str, marks: tuple[str, ...]) -> Click:
        """The click as its decision knew the user: the link may be followed in another browser."""
        now_ms = self._clock.now_ms()
        # A token of an earlier release knows neither the user nor the campaign.
        campaign = token.campaign_id if token.user_id is not None else banner.campaign_id
        given = storable(click_id[:CLICK_ID_MAX]) if click_id else None
        return Click(
            tenant=token.tenant_id,
            id=f"{token.name}:{given}" if given else token.name,
            at=now_ms,
            received=now_ms,
            banner=banner.id,
            placement=token.placement_id,
            campaign=campaign,
            user=storable(token.user_id),
            session=storable(token.session_id),
            device=token.device_type,
            country=token.country,
            marks=marks,
            destination=target,
            variant=token.variant,
        )


def _dropped(click: Click, reason: Reason) -> Dropped:
    return Dropped(click.tenant, click.id, click.at, click.received, "click", str(reason))
