"""The catalogue's routes: banners, placements, campaigns. Stats have a file of their own."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter, SkipValidation

from handbill.banners import examples, public_routes
from handbill.banners.bulk import banners_from
from handbill.banners.model import (
    BannerFilter,
    BannerPatch,
    BannerView,
    CampaignPatch,
    CampaignStatus,
    CampaignView,
    Deciding,
    DecidingPatch,
    NewBanner,
    NewCampaign,
    NewPlacement,
    PlacementPatch,
    PlacementView,
    ScheduleStatus,
)
from handbill.banners.service import BannersService
from handbill.banners.stats_routes import StatsRoutes
from handbill.kit.etags import etag, wanted_version
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.tenants.model import Principal

Banners = NamedDependency[SkipValidation[BannersService]]
Id = FromPath[UUID]
Who = NamedDependency[SkipValidation[Principal]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
Search = Annotated[str | None, QueryParameter(max_length=200, description="Part of the name, in any case.")]
IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of your last read, if it matters.")
]


class Bulk(msgspec.Struct, frozen=True):
    """The banners that were made, in the order they were sent."""

    created: list[BannerView]
    """The banners in the order in which they were sent."""


class BannerRoutes(Controller):
    path = "/admin/banners"
    tags = ("Banners",)

    @get(operation_id="listBanners", opt={"scope": "banners:read", "example": examples.page(examples.BANNER)})
    async def listed(
        self,
        banners: Banners,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        status: FromQuery[ScheduleStatus | None] = None,
        is_active: FromQuery[bool | None] = None,
        campaign_id: FromQuery[UUID | None] = None,
        placement_id: FromQuery[UUID | None] = None,
        archived: FromQuery[bool] = False,
        search: Search = None,
    ) -> Page[BannerView]:
        """The tenant's banners, oldest first, narrowed by any of the filters."""
        chosen = BannerFilter(status, is_active, campaign_id, placement_id, archived, search)
        return await banners.editor.list_banners(principal.tenant_id, cursor, limit, chosen)

    @post(
        operation_id="createBanner",
        opt={"scope": "banners:write", "example": examples.BANNER, "body_example": examples.NEW_BANNER},
    )
    async def create(self, banners: Banners, principal: Who, data: JSONBody[NewBanner]) -> Response[BannerView]:
        """Create a banner: shown x times in y hours for z seconds, inside its window, while its switch is on."""
        made = await banners.editor.create_banner(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @post(
        "/bulk",
        operation_id="createBanners",
        opt={
            "scope": "banners:write",
            "example": {"created": [examples.BANNER]},
            "body_example": [examples.NEW_BANNER],
            "raw_body": ("application/json", "text/csv"),
            "body": list[NewBanner],
            "csv_example": "title,x_times,y_hours,z_duration_sec\nSummer sale,2,24,3\n",
        },
    )
    async def bulk(self, banners: Banners, principal: Who, request: Request[Any, Any, Any]) -> Bulk:
        """Create up to 1,000 banners at once, all or none: a JSON list, or CSV whose first line names the fields."""
        news, prefixes = banners_from(await request.body(), request.headers.get("content-type", ""))
        made = await banners.editor.create_banners(principal.tenant_id, news, actor=principal.actor, prefixes=prefixes)
        return Bulk(made)

    @get("/{banner_id:uuid}", operation_id="getBanner", opt={"scope": "banners:read", "example": examples.BANNER})
    async def read(self, banners: Banners, principal: Who, banner_id: Id) -> Response[BannerView]:
        """One banner."""
        banner = await banners.editor.read_banner(principal.tenant_id, banner_id)
        return Response(banner, headers={"ETag": etag(banner.version)})

    @patch(
        "/{banner_id:uuid}",
        operation_id="changeBanner",
        opt={"scope": "banners:write", "example": examples.BANNER, "body_example": {"is_active": False}},
    )
    async def change(
        self,
        banners: Banners,
        principal: Who,
        banner_id: Id,
        data: JSONBody[BannerPatch],
        if_match: IfMatch = None,
    ) -> Response[BannerView]:
        """Change what is sent and nothing else. It takes effect in every process within two seconds."""
        banner = await banners.editor.change_banner(
            principal.tenant_id, banner_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(banner, headers={"ETag": etag(banner.version)})

    @post(
        "/{banner_id:uuid}/clone",
        operation_id="cloneBanner",
        opt={"scope": "banners:write", "example": examples.BANNER},
    )
    async def clone(self, banners: Banners, principal: Who, banner_id: Id) -> BannerView:
        """A copy with a new id, switched off until somebody switches it on."""
        return await banners.editor.clone_banner(principal.tenant_id, banner_id, actor=principal.actor)

    @post(
        "/{banner_id:uuid}/archive",
        operation_id="archiveBanner",
        status_code=200,
        opt={"scope": "banners:write", "example": {**examples.BANNER, "archived": True}},
    )
    async def archive(self, banners: Banners, principal: Who, banner_id: Id) -> BannerView:
        """Out of the list and never shown, until it is restored."""
        return await banners.editor.archive_banner(principal.tenant_id, banner_id, archived=True, actor=principal.actor)

    @post(
        "/{banner_id:uuid}/restore",
        operation_id="restoreBanner",
        status_code=200,
        opt={"scope": "banners:write", "example": examples.BANNER},
    )
    async def restore(self, banners: Banners, principal: Who, banner_id: Id) -> BannerView:
        """Back from the archive."""
        return await banners.editor.archive_banner(
            principal.tenant_id, banner_id, archived=False, actor=principal.actor
        )

    @delete("/{banner_id:uuid}", operation_id="deleteBanner", opt={"scope": "banners:write"})
    async def remove(self, banners: Banners, principal: Who, banner_id: Id, if_match: IfMatch = None) -> None:
        """Delete a banner. It is never shown again; what still comes in for it is counted."""
        await banners.editor.delete_banner(
            principal.tenant_id, banner_id, version=wanted_version(if_match), actor=principal.actor
        )


class PlacementRoutes(Controller):
    path = "/admin/placements"
    tags = ("Placements",)

    @get(operation_id="listPlacements", opt={"scope": "banners:read", "example": examples.page(examples.PLACEMENT)})
    async def listed(
        self,
        banners: Banners,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        search: Search = None,
    ) -> Page[PlacementView]:
        """The places where banners appear."""
        return await banners.editor.list_placements(principal.tenant_id, cursor, limit, search)

    @post(
        operation_id="createPlacement",
        opt={"scope": "banners:write", "example": examples.PLACEMENT, "body_example": examples.NEW_PLACEMENT},
    )
    async def create(self, banners: Banners, principal: Who, data: JSONBody[NewPlacement]) -> Response[PlacementView]:
        """Create a placement. Its slug is unique among the tenant's."""
        made = await banners.editor.create_placement(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @get(
        "/{placement_id:uuid}",
        operation_id="getPlacement",
        opt={"scope": "banners:read", "example": examples.PLACEMENT},
    )
    async def read(self, banners: Banners, principal: Who, placement_id: Id) -> Response[PlacementView]:
        """One placement."""
        place = await banners.editor.read_placement(principal.tenant_id, placement_id)
        return Response(place, headers={"ETag": etag(place.version)})

    @patch(
        "/{placement_id:uuid}",
        operation_id="changePlacement",
        opt={"scope": "banners:write", "example": examples.PLACEMENT, "body_example": {"name": "Home, bottom"}},
    )
    async def change(
        self,
        banners: Banners,
        principal: Who,
        placement_id: Id,
        data: JSONBody[PlacementPatch],
        if_match: IfMatch = None,
    ) -> Response[PlacementView]:
        """Change what is sent and nothing else."""
        place = await banners.editor.change_placement(
            principal.tenant_id, placement_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(place, headers={"ETag": etag(place.version)})

    @delete("/{placement_id:uuid}", operation_id="deletePlacement", opt={"scope": "banners:write"})
    async def remove(self, banners: Banners, principal: Who, placement_id: Id, if_match: IfMatch = None) -> None:
        """Delete a placement; what still comes in for it is counted."""
        await banners.editor.delete_placement(
            principal.tenant_id, placement_id, version=wanted_version(if_match), actor=principal.actor
        )


class CampaignRoutes(Controller):
    path = "/admin/campaigns"
    tags = ("Campaigns",)

    @get(operation_id="listCampaigns", opt={"scope": "banners:read", "example": examples.page(examples.CAMPAIGN)})
    async def listed(
        self,
        banners: Banners,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        status: FromQuery[CampaignStatus | None] = None,
        search: Search = None,
    ) -> Page[CampaignView]:
        """The tenant's banner campaigns, oldest first."""
        return await banners.editor.list_campaigns(principal.tenant_id, cursor, limit, status, search)

    @post(
        operation_id="createCampaign",
        opt={"scope": "banners:write", "example": examples.CAMPAIGN, "body_example": examples.NEW_CAMPAIGN},
    )
    async def create(self, banners: Banners, principal: Who, data: JSONBody[NewCampaign]) -> Response[CampaignView]:
        """Create a campaign: a window and a switch over all of its banners."""
        made = await banners.editor.create_campaign(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @get("/{campaign_id:uuid}", operation_id="getCampaign", opt={"scope": "banners:read", "example": examples.CAMPAIGN})
    async def read(self, banners: Banners, principal: Who, campaign_id: Id) -> Response[CampaignView]:
        """One campaign."""
        campaign = await banners.editor.read_campaign(principal.tenant_id, campaign_id)
        return Response(campaign, headers={"ETag": etag(campaign.version)})

    @patch(
        "/{campaign_id:uuid}",
        operation_id="changeCampaign",
        opt={"scope": "banners:write", "example": examples.CAMPAIGN, "body_example": {"is_active": False}},
    )
    async def change(
        self,
        banners: Banners,
        principal: Who,
        campaign_id: Id,
        data: JSONBody[CampaignPatch],
        if_match: IfMatch = None,
    ) -> Response[CampaignView]:
        """Change what is sent and nothing else."""
        campaign = await banners.editor.change_campaign(
            principal.tenant_id, campaign_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(campaign, headers={"ETag": etag(campaign.version)})

    @delete("/{campaign_id:uuid}", operation_id="deleteCampaign", opt={"scope": "banners:write"})
    async def remove(self, banners: Banners, principal: Who, campaign_id: Id, if_match: IfMatch = None) -> None:
        """Delete a campaign. Its banners are not shown while they belong to it."""
        await banners.editor.delete_campaign(
            principal.tenant_id, campaign_id, version=wanted_version(if_match), actor=principal.actor
        )


class DecidingRoutes(Controller):
    path = "/admin/deciding"
    tags = ("Banners",)

    @get(operation_id="getDeciding", opt={"scope": "banners:read", "example": examples.DECIDING})
    async def read(self, banners: Banners, principal: Who) -> Response[Deciding]:
        """How banners are ranked where a placement does not say otherwise; whether active hours are learnt."""
        found = await banners.editor.read_deciding(principal.tenant_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @patch(
        operation_id="changeDeciding",
        opt={"scope": "banners:write", "example": examples.DECIDING, "body_example": {"ranking": ["priority", "ctr"]}},
    )
    async def change(
        self, banners: Banners, principal: Who, data: JSONBody[DecidingPatch], if_match: IfMatch = None
    ) -> Response[Deciding]:
        """Choose what decides the order, most important first (an empty list is the default again), or switch smart
        scheduling. What is left out stays as it is."""
        found = await banners.editor.change_deciding(
            principal.tenant_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(found, headers={"ETag": etag(found.version)})


handlers = [BannerRoutes, PlacementRoutes, CampaignRoutes, DecidingRoutes, StatsRoutes, *public_routes.handlers]
