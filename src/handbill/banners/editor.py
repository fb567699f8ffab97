"""Changes of the catalogue: each one transaction with its audit row and the new version number, then told to all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar
from uuid import UUID

from msgspec import UNSET, structs

from handbill.banners import pattern_limit, store
from handbill.banners.asking import Asking
from handbill.banners.catalogue import Catalogue
from handbill.banners.checks import (
    banner_faults,
    cap_faults,
    caps_raised,
    limits_raised,
    noted,
    ranking_faults,
    refuse,
    sent_fields,
    window_of,
)
from handbill.banners.model import (
    Banner,
    BannerFilter,
    BannerPatch,
    BannerView,
    Campaign,
    CampaignPatch,
    CampaignView,
    Deciding,
    DecidingPatch,
    NewBanner,
    NewCampaign,
    NewPlacement,
    Placement,
    PlacementPatch,
    PlacementView,
    schedule_status,
)
from handbill.banners.shapes import banner_view, campaign_status, campaign_view, placement_view
from handbill.banners.windows import window_faults
from handbill.infra.postgres import Database, Tx, UniqueViolation
from handbill.kit import etags
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page, decode, page
from handbill.tenants.service import Audit

T = TypeVar("T")


class Editor:
    def __init__(
        self, database: Database, catalogue: Catalogue, audit: Audit, clock: Clock, ids: Ids, asking: Asking
    ) -> None:
        self._asking = asking
        self._database = database
        self._catalogue = catalogue
        self._audit = audit
        self._clock = clock
        self._ids = ids

    # --- placements

    async def create_placement(self, tenant: int, new: NewPlacement, *, actor: str) -> PlacementView:
        now = self._clock.now()
        refuse(cap_faults(new.caps) + ranking_faults(new.ranking))
        place = Placement(
            0, tenant, self._ids.new(), new.name, new.slug, new.description, 1, now, now, None, new.ranking, new.caps
        )
        try:
            async with self._database.tenant(tenant) as tx:
                made = placement_view(await store.create_placement(tx, place))
                await self._note(tx, tenant, actor, "placement.create", made.placement_id, None, made)
        except UniqueViolation:
            raise _slug_taken(new.slug) from None
        await self._catalogue.changed(tenant)
        return made

    async def read_placement(self, tenant: int, public_id: UUID) -> PlacementView:
        async with self._database.tenant(tenant) as tx:
            return placement_view(_found(await store.find_placement(tx, tenant, public_id), "PLACEMENT"))

    async def list_placements(
        self, tenant: int, cursor: str | None, limit: int, search: str | None
    ) -> Page[PlacementView]:
        async with self._database.tenant(tenant) as tx:
            rows = await store.list_placements(tx, tenant, _after(cursor), limit + 1, search)
        found = page(rows, limit, lambda row: (row.id,))
        return Page([placement_view(row) for row in found.items], found.next)

    async def change_placement(
        self, tenant: int, public_id: UUID, patch: PlacementPatch, *, version: int | None, actor: str
    ) -> PlacementView:
        try:
            async with self._database.tenant(tenant) as tx:
                before = _found(await store.find_placement(tx, tenant, public_id, lock=True), "PLACEMENT")
                etags.check(version, before.version)
                wanted: Placement = structs.replace(before, **sent_fields(patch))
                refuse(cap_faults(wanted.caps) + ranking_faults(wanted.ranking))
                if caps_raised(before.caps, wanted.caps):
                    wanted = structs.replace(wanted, limits_raised_at=self._clock.now())
                after = placement_view(await store.update_placement(tx, wanted, self._clock.now()))
                await self._note(tx, tenant, actor, "placement.change", public_id, placement_view(before), after)
        except UniqueViolation:
            raise _slug_taken(str(patch.slug)) from None
        await self._catalogue.changed(tenant)
        return after

    async def delete_placement(self, tenant: int, public_id: UUID, *, version: int | None, actor: str) -> None:
        async with self._database.tenant(tenant) as tx:
            place = _found(await store.find_placement(tx, tenant, public_id, lock=True), "PLACEMENT")
            etags.check(version, place.version)
            await store.delete_placement(tx, place, self._clock.now())
            await self._note(tx, tenant, actor, "placement.delete", public_id, placement_view(place), None)
        await self._catalogue.changed(tenant)

    # --- campaigns

    async def create_campaign(self, tenant: int, new: NewCampaign, *, actor: str) -> CampaignView:
        refuse(window_faults(new.starts_at, new.ends_at, ("starts_at", "ends_at")) + cap_faults(new.caps))
        now = self._clock.now()
        campaign = Campaign(
            0, tenant, self._ids.new(), new.name, campaign_status(new.starts_at, new.ends_at, now), new.is_active,
            new.starts_at, new.ends_at, 1, now, now, None, new.caps,
        )  # fmt: skip
        async with self._database.tenant(tenant) as tx:
            made = campaign_view(await store.create_campaign(tx, campaign))
            await self._note(tx, tenant, actor, "campaign.create", made.campaign_id, None, made)
        await self._catalogue.changed(tenant)
        return made

    async def read_campaign(self, tenant: int, public_id: UUID) -> CampaignView:
        async with self._database.tenant(tenant) as tx:
            return campaign_view(_found(await store.find_campaign(tx, tenant, public_id), "CAMPAIGN"))

    async def list_campaigns(
        self, tenant: int, cursor: str | None, limit: int, status: str | None, search: str | None
    ) -> Page[CampaignView]:
        async with self._database.tenant(tenant) as tx:
            rows = await store.list_campaigns(tx, tenant, _after(cursor), limit + 1, status, search)
        found = page(rows, limit, lambda row: (row.id,))
        return Page([campaign_view(row) for row in found.items], found.next)

    async def change_campaign(
        self, tenant: int, public_id: UUID, patch: CampaignPatch, *, version: int | None, actor: str
    ) -> CampaignView:
        now = self._clock.now()
        async with self._database.tenant(tenant) as tx:
            before = _found(await store.find_campaign(tx, tenant, public_id, lock=True), "CAMPAIGN")
            etags.check(version, before.version)
            wanted: Campaign = structs.replace(before, **sent_fields(patch))
            refuse(window_faults(wanted.starts_at, wanted.ends_at, ("starts_at", "ends_at")) + cap_faults(wanted.caps))
            if caps_raised(before.caps, wanted.caps):
                wanted = structs.replace(wanted, limits_raised_at=now)
            wanted = structs.replace(wanted, status=campaign_status(wanted.starts_at, wanted.ends_at, now))
            after = campaign_view(await store.update_campaign(tx, wanted, now))
            await self._note(tx, tenant, actor, "campaign.change", public_id, campaign_view(before), after)
        await self._catalogue.changed(tenant)
        return after

    async def delete_campaign(self, tenant: int, public_id: UUID, *, version: int | None, actor: str) -> None:
        async with self._database.tenant(tenant) as tx:
            campaign = _found(await store.find_campaign(tx, tenant, public_id, lock=True), "CAMPAIGN")
            etags.check(version, campaign.version)
            await store.delete_campaign(tx, campaign, self._clock.now())
            await self._note(tx, tenant, actor, "campaign.delete", public_id, campaign_view(campaign), None)
        await self._catalogue.changed(tenant)

    # --- banners

    async def create_banner(self, tenant: int, new: NewBanner, *, actor: str) -> BannerView:
        return (await self.create_banners(tenant, [new], actor=actor))[0]

    async def create_banners(
        self, tenant: int, news: Sequence[NewBanner], *, actor: str, prefixes: Sequence[str] = ()
    ) -> list[BannerView]:
        """All of them or none: one transaction. A fault is named by its banner's prefix, or by its place of several."""
        made: list[BannerView] = []
        faults: list[Fault] = []
        rules = [new.targeting for new in news]
        async with self._database.tenant(tenant) as tx:
            await self._asking.begin(tx, tenant, *rules)
            for place, new in enumerate(news):
                try:
                    banner = await store.create_banner(tx, await self._drawn(tx, tenant, new))
                except Invalid as error:
                    if len(news) == 1 and not prefixes:
                        raise
                    at = prefixes[place] if prefixes else f"[{place}]."
                    faults += [Fault(at + fault.field, fault.reason) for fault in error.faults]
                    continue
                view = await self._view(tx, banner)
                await self._note(tx, tenant, actor, "banner.create", view.banner_id, None, view)
                made.append(view)
            refuse(faults)
            await pattern_limit.check(tx, tenant, max(rules, key=pattern_limit.cost_us, default=None))
            await self._asking.tell(tx, tenant, *rules)
        await self._catalogue.changed(tenant)
        return made

    async def read_banner(self, tenant: int, public_id: UUID) -> BannerView:
        async with self._database.tenant(tenant) as tx:
            return await self._view(tx, _found(await store.find_banner(tx, tenant, public_id), "BANNER"))

    async def list_banners(self, tenant: int, cursor: str | None, limit: int, chosen: BannerFilter) -> Page[BannerView]:
        async with self._database.tenant(tenant) as tx:
            campaign = await self._campaign_number(tx, tenant, chosen.campaign_id)
            places = await self._placement_numbers(tx, tenant, [chosen.placement_id] if chosen.placement_id else [])
            rows = await store.list_banners(
                tx, tenant, _after(cursor), limit + 1, chosen, campaign, places[0] if places else None
            )
            found = page(rows, limit, lambda row: (row.id,))
            return Page([await self._view(tx, row) for row in found.items], found.next)

    async def change_banner(
        self, tenant: int, public_id: UUID, patch: BannerPatch, *, version: int | None, actor: str
    ) -> BannerView:
        now = self._clock.now()
        async with self._database.tenant(tenant) as tx:
            before = _found(await store.find_banner(tx, tenant, public_id, lock=True), "BANNER")
            etags.check(version, before.version)
            await self._asking.begin(tx, tenant, before.targeting, patch.targeting)
            wanted = await self._patched(tx, tenant, before, patch, now)
            after = await self._view(tx, await store.update_banner(tx, wanted, now))
            await self._note(tx, tenant, actor, "banner.change", public_id, await self._view(tx, before), after)
            await pattern_limit.check(tx, tenant, wanted.targeting, before.targeting)
            await self._asking.tell(tx, tenant, before.targeting, wanted.targeting)
        await self._catalogue.changed(tenant)
        return after

    async def archive_banner(self, tenant: int, public_id: UUID, *, archived: bool, actor: str) -> BannerView:
        """Out of the list and never shown, but not deleted: it can come back."""
        now = self._clock.now()
        async with self._database.tenant(tenant) as tx:
            before = _found(await store.find_banner(tx, tenant, public_id, lock=True), "BANNER")
            await self._asking.begin(tx, tenant, before.targeting)
            if not archived:
                await self._asking.check(tx, before)
            # While it lay in the archive nobody kept its views in Redis: back from there, PostgreSQL is asked.
            wanted = structs.replace(before, archived_at=now if archived else None, limits_raised_at=now)
            after = await self._view(tx, await store.update_banner(tx, wanted, now))
            action = "banner.archive" if archived else "banner.restore"
            await self._note(tx, tenant, actor, action, public_id, await self._view(tx, before), after)
            if not archived:
                await pattern_limit.check(tx, tenant, before.targeting)
            await self._asking.tell(tx, tenant, before.targeting)
        await self._catalogue.changed(tenant)
        return after

    async def clone_banner(self, tenant: int, public_id: UUID, *, actor: str) -> BannerView:
        """A copy with a new id, switched off, so that nothing is shown before somebody has looked at it."""
        now = self._clock.now()
        async with self._database.tenant(tenant) as tx:
            banner = _found(await store.find_banner(tx, tenant, public_id), "BANNER")
            await self._asking.begin(tx, tenant, banner.targeting)
            copy = structs.replace(
                banner,
                public_id=self._ids.new(),
                name=f"{banner.name[:190]} (copy)",
                is_active=False,
                archived_at=None,
                limits_raised_at=None,
                created_at=now,
            )
            made = await self._view(tx, await store.create_banner(tx, copy))
            await self._note(tx, tenant, actor, "banner.clone", made.banner_id, await self._view(tx, banner), made)
            await pattern_limit.check(tx, tenant, banner.targeting)
            await self._asking.tell(tx, tenant, banner.targeting)
        await self._catalogue.changed(tenant)
        return made

    async def delete_banner(self, tenant: int, public_id: UUID, *, version: int | None, actor: str) -> None:
        """Soft: it is never shown again, and what still comes in for it is counted."""
        async with self._database.tenant(tenant) as tx:
            banner = _found(await store.find_banner(tx, tenant, public_id, lock=True), "BANNER")
            etags.check(version, banner.version)
            await self._asking.begin(tx, tenant, banner.targeting)
            await store.delete_banner(tx, banner, self._clock.now())
            await self._note(tx, tenant, actor, "banner.delete", public_id, await self._view(tx, banner), None)
            await self._asking.tell(tx, tenant, banner.targeting)
        await self._catalogue.changed(tenant)

    # --- deciding

    async def read_deciding(self, tenant: int) -> Deciding:
        async with self._database.tenant(tenant) as tx:
            return await store.read_deciding(tx, tenant)

    async def change_deciding(self, tenant: int, patch: DecidingPatch, *, version: int | None, actor: str) -> Deciding:
        given = sent_fields(patch)
        refuse(ranking_faults(patch.ranking if patch.ranking is not UNSET else ()))
        async with self._database.tenant(tenant) as tx:
            if "smart_scheduling" in given:
                await self._asking.hold(tx, tenant)
            before = await store.read_deciding(tx, tenant)
            etags.check(version, before.version)
            wanted: Deciding = structs.replace(before, **given)
            after = await store.write_deciding(tx, tenant, wanted, self._clock.now())
            if after.smart_scheduling != before.smart_scheduling:
                await self._asking.want(tx, tenant)
            await self._note(tx, tenant, actor, "deciding.change", "deciding", before, after)
        await self._catalogue.changed(tenant)
        return after

    # --- parts

    async def _drawn(self, tx: Tx, tenant: int, new: NewBanner) -> Banner:
        now = self._clock.now()
        window = window_of(new)
        publish_at, expires_at = window.start or None, window.end or None
        faults = window.faults(publish_at, expires_at)
        campaign_id, placement_ids = None, list[int]()
        with noted(faults):
            campaign_id = await self._campaign_number(tx, tenant, new.campaign_id)
        with noted(faults):
            placement_ids = await self._placement_numbers(tx, tenant, new.placement_ids)
        public_id = self._ids.new()
        banner = Banner(
            0, tenant, public_id, campaign_id,
            new.name or new.title or f"Banner {str(public_id)[-8:]}", new.title, new.description, new.image_url,
            new.cta_link, new.asset_url, new.x_times, new.y_hours, new.z_duration_sec, new.is_active, publish_at,
            expires_at, schedule_status(publish_at, expires_at, now), placement_ids, 1, now, now, None, None, None,
            new.targeting, new.priority, new.weight, new.revenue, new.variants, new.holdout_percent, new.caps,
            new.cap_mode, new.cap_by,
        )  # fmt: skip
        banner = structs.replace(banner, name=banner.name[:200])
        refuse(faults + banner_faults(banner))
        await self._asking.check(tx, banner)
        return banner

    async def _patched(self, tx: Tx, tenant: int, before: Banner, patch: BannerPatch, now: datetime) -> Banner:
        window, faults = window_of(patch), list[Fault]()
        given = sent_fields(patch)
        for name in ("start_date", "end_date", "publish_at", "expires_at"):
            given.pop(name, None)
        if window.start is not UNSET:
            given["publish_at"] = window.start
        if window.end is not UNSET:
            given["expires_at"] = window.end
        if patch.campaign_id is not UNSET:
            with noted(faults):
                given["campaign_id"] = await self._campaign_number(tx, tenant, patch.campaign_id)
        if patch.placement_ids is not UNSET:
            with noted(faults):
                given["placement_ids"] = await self._placement_numbers(tx, tenant, patch.placement_ids)
        wanted: Banner = structs.replace(before, **given)
        refuse(faults + window.faults(wanted.publish_at, wanted.expires_at) + banner_faults(wanted))
        await self._asking.check(tx, wanted)
        if limits_raised(before, wanted):
            wanted = structs.replace(wanted, limits_raised_at=now)
        return structs.replace(wanted, schedule_status=schedule_status(wanted.publish_at, wanted.expires_at, now))

    async def _campaign_number(self, tx: Tx, tenant: int, public_id: UUID | None) -> int | None:
        if public_id is None:
            return None
        campaign = await store.find_campaign(tx, tenant, public_id)
        if campaign is None:
            refuse([Fault("campaign_id", "names no campaign of yours")])
        assert campaign is not None
        return campaign.id

    async def _placement_numbers(self, tx: Tx, tenant: int, publics: Sequence[UUID]) -> list[int]:
        if not publics:
            return []
        known = await store.ids_of_placements(tx, tenant, publics)
        refuse([Fault("placement_ids", f"{one} names no placement of yours") for one in publics if one not in known])
        return sorted(set(known.values()))

    async def _view(self, tx: Tx, banner: Banner) -> BannerView:
        places = await store.public_placements(tx, banner.tenant_id, banner.placement_ids)
        campaigns = await store.public_campaigns(tx, banner.tenant_id, [banner.campaign_id or 0])
        return banner_view(banner, places, campaigns)

    async def _note(
        self, tx: Tx, tenant: int, actor: str, action: str, public_id: UUID | str, before: object, after: object
    ) -> None:
        await store.changed(tx, tenant)
        await self._audit.write(
            tx, tenant, actor=actor, action=action, object=str(public_id), before=before, after=after,  # type: ignore[arg-type]
        )  # fmt: skip


def _after(cursor: str | None) -> int:
    return 0 if cursor is None else int(decode(cursor, (int,))[0])


def _found(thing: T | None, what: str) -> T:
    if thing is None:
        raise NotFound(f"There is no such {what.lower()}.", code=f"{what}_NOT_FOUND")
    return thing


def _slug_taken(slug: str) -> Conflict:
    return Conflict(f"Another placement has the slug {slug}; nothing was changed.", code="SLUG_TAKEN")
