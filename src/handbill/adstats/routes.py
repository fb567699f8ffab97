"""The ad stats' routes: what runs, and the asking for syncs. Reading has a file of its own."""

from __future__ import annotations

from datetime import date
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter, SkipValidation
from msgspec import Meta

from handbill.adstats import examples
from handbill.adstats.model import (
    BackfillView,
    Connection,
    ConnectionPatch,
    Entity,
    EntityPatch,
    Imported,
    Level,
    Listed,
    NewConnection,
    NewEntity,
    NewSellpage,
    Sellpage,
    SellpagePatch,
    Status,
    SyncAnswer,
    SyncState,
)
from handbill.adstats.service import AdstatsService
from handbill.adstats.stats_routes import AdStatsRoutes
from handbill.kit.errors import Forbidden
from handbill.kit.etags import etag, wanted_version
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.tenants.model import Principal

Adstats = NamedDependency[SkipValidation[AdstatsService]]
Id = FromPath[UUID]
Who = NamedDependency[SkipValidation[Principal]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of your last read, if it matters.")
]


class SyncRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which day; without one, today as the seller's ad accounts reckon it."""

    date: Annotated[date, Meta(description="The day to read; null: today, as the ad accounts have it.")] | None = None


class BackfillRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Both days belong to the range."""

    date_from: date
    date_to: date


class Entities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entities: Annotated[list[Listed], Meta(min_length=1, max_length=5_000)]
    """Ad campaigns, ad sets and ads by the platform's ids, at most 5,000."""


class ManagerRoutes(Controller):
    path = "/api/ads-manager"
    tags = ("Ad stats",)

    @post(
        "/sync",
        operation_id="syncAdStats",
        status_code=202,
        opt={"scope": "adstats:write", "example": examples.SYNC, "body_example": {"date": "2026-02-19"}},
    )
    async def sync(self, adstats: Adstats, principal: Who, data: JSONBody[SyncRequest | None] = None) -> SyncAnswer:
        """Read all levels of one day of your own ad accounts now. A job that waits or runs already is not doubled.

        For a signed-in user of the seller, operator or owner; a program asks for a backfill instead.
        """
        if principal.kind != "session" or principal.role not in ("operator", "owner"):
            raise Forbidden("Only a signed-in operator or owner may ask for a sync; nothing was started.")
        day = data.date if data is not None else None
        return await adstats.dispatch.sync(principal.tenant_id, day, actor=principal.actor)


class ConnectionRoutes(Controller):
    path = "/admin/ad-connections"
    tags = ("Ad accounts",)

    @get(operation_id="listAdConnections", opt={"scope": "adstats:read", "example": examples.page(examples.CONNECTION)})
    async def listed(
        self, adstats: Adstats, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Connection]:
        """The seller's ad accounts. Of a token only its state is shown."""
        return await adstats.connections.list_page(principal.tenant_id, cursor, limit)

    @post(
        operation_id="createAdConnection",
        opt={"scope": "adstats:write", "example": examples.CONNECTION, "body_example": examples.NEW_CONNECTION},
    )
    async def create(self, adstats: Adstats, principal: Who, data: JSONBody[NewConnection]) -> Response[Connection]:
        """Connect an ad account. Its currency, zone and access are asked of the platform; the token is not shown again.

        An account that cannot be read is refused (`AD_ACCOUNT_UNREADABLE`, `AD_TOKEN_DEAD`). While the platform cannot
        be reached the account is connected unverified (`verified_at` is null), and the next sync asks. A deleted
        connection comes back under its id, with its entities and days.
        """
        made = await adstats.connections.create(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @get(
        "/{connection_id:uuid}",
        operation_id="getAdConnection",
        opt={"scope": "adstats:read", "example": examples.CONNECTION},
    )
    async def read(self, adstats: Adstats, principal: Who, connection_id: Id) -> Response[Connection]:
        """One ad account."""
        found = await adstats.connections.read(principal.tenant_id, connection_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @patch(
        "/{connection_id:uuid}",
        operation_id="changeAdConnection",
        opt={"scope": "adstats:write", "example": examples.CONNECTION, "body_example": {"access_token": "EAAB..."}},
    )
    async def change(
        self, adstats: Adstats, principal: Who, connection_id: Id, data: JSONBody[ConnectionPatch],
        if_match: IfMatch = None,
    ) -> Response[Connection]:  # fmt: skip
        """Change what is sent and nothing else. A new token brings a dead connection back.

        A corrected currency or zone must be the one that the platform says, if it can be asked. All days get the
        corrected currency, days that have not begun in the corrected zone are deleted, and the look-back is read again.
        """
        found = await adstats.connections.change(
            principal.tenant_id, connection_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(found, headers={"ETag": etag(found.version)})

    @delete("/{connection_id:uuid}", operation_id="disconnectAdAccount", opt={"scope": "adstats:write"})
    async def remove(self, adstats: Adstats, principal: Who, connection_id: Id, if_match: IfMatch = None) -> None:
        """Read the account no more and forget its token. What was read stays."""
        await adstats.connections.delete(
            principal.tenant_id, connection_id, version=wanted_version(if_match), actor=principal.actor
        )

    @post(
        "/{connection_id:uuid}/import",
        operation_id="importAdEntities",
        status_code=200,
        opt={"scope": "adstats:write", "example": examples.IMPORTED, "body_example": examples.IMPORT},
    )
    async def take(self, adstats: Adstats, principal: Who, connection_id: Id, data: JSONBody[Entities]) -> Imported:
        """Make or change up to 5,000 campaigns, ad sets and ads by the platform's ids. Repeating it changes nothing."""
        return await adstats.importer.take(principal.tenant_id, connection_id, data.entities, actor=principal.actor)

    @post(
        "/{connection_id:uuid}/fetch",
        operation_id="fetchAdEntities",
        status_code=200,
        opt={"scope": "adstats:write", "example": examples.IMPORTED},
    )
    async def fetch(self, adstats: Adstats, principal: Who, connection_id: Id) -> Imported:
        """Ask the platform itself for what runs on the account, and take all of it."""
        return await adstats.importer.fetch(principal.tenant_id, connection_id, actor=principal.actor)

    @get("/state", operation_id="adSyncState", opt={"scope": "adstats:read", "example": examples.STATES})
    async def states(
        self, adstats: Adstats, principal: Who, connection_id: FromQuery[UUID | None] = None
    ) -> list[SyncState]:
        """How fresh each account's figures are, level by level, and what went wrong last."""
        return await adstats.connections.sync_states(principal.tenant_id, connection_id)


class EntityRoutes(Controller):
    path = "/admin/ad-entities"
    tags = ("Ad accounts",)

    @get(operation_id="listAdEntities", opt={"scope": "adstats:read", "example": examples.page(examples.ENTITY)})
    async def listed(
        self,
        adstats: Adstats,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        level: FromQuery[Level | None] = None,
        connection_id: FromQuery[UUID | None] = None,
        parent_id: FromQuery[UUID | None] = None,
        status: FromQuery[Status | None] = None,
    ) -> Page[Entity]:
        """Campaigns, ad sets and ads, narrowed by any of the filters."""
        return await adstats.editor.list_entities(
            principal.tenant_id, cursor, limit, level, connection_id, parent_id, status
        )

    @post(
        operation_id="createAdEntity",
        opt={"scope": "adstats:write", "example": examples.ENTITY, "body_example": examples.NEW_ENTITY},
    )
    async def create(self, adstats: Adstats, principal: Who, data: JSONBody[NewEntity]) -> Response[Entity]:
        """Create a campaign on a connection, an ad set in a campaign, or an ad in an ad set."""
        made = await adstats.editor.create_entity(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @get("/{entity_id:uuid}", operation_id="getAdEntity", opt={"scope": "adstats:read", "example": examples.ENTITY})
    async def read(self, adstats: Adstats, principal: Who, entity_id: Id) -> Response[Entity]:
        """One campaign, ad set or ad."""
        found = await adstats.editor.entity(principal.tenant_id, entity_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @patch(
        "/{entity_id:uuid}",
        operation_id="changeAdEntity",
        opt={"scope": "adstats:write", "example": examples.ENTITY, "body_example": {"status": "PAUSED"}},
    )
    async def change(
        self, adstats: Adstats, principal: Who, entity_id: Id, data: JSONBody[EntityPatch], if_match: IfMatch = None
    ) -> Response[Entity]:
        """Change what is sent and nothing else. A campaign moved to another sellpage takes its days along."""
        found = await adstats.editor.change_entity(
            principal.tenant_id, entity_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(found, headers={"ETag": etag(found.version)})

    @delete("/{entity_id:uuid}", operation_id="deleteAdEntity", opt={"scope": "adstats:write"})
    async def remove(self, adstats: Adstats, principal: Who, entity_id: Id, if_match: IfMatch = None) -> None:
        """Mark it deleted. Its figures stay, and its last days are still read."""
        await adstats.editor.change_entity(
            principal.tenant_id, entity_id, EntityPatch(status="DELETED"), version=wanted_version(if_match),
            actor=principal.actor,
        )  # fmt: skip


class SellpageRoutes(Controller):
    path = "/admin/sellpages"
    tags = ("Ad accounts",)

    @get(operation_id="listSellpages", opt={"scope": "adstats:read", "example": examples.page(examples.SELLPAGE)})
    async def listed(
        self, adstats: Adstats, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Sellpage]:
        """The pages that campaigns lead to."""
        return await adstats.editor.list_sellpages(principal.tenant_id, cursor, limit)

    @post(
        operation_id="createSellpage",
        opt={"scope": "adstats:write", "example": examples.SELLPAGE, "body_example": examples.NEW_SELLPAGE},
    )
    async def create(self, adstats: Adstats, principal: Who, data: JSONBody[NewSellpage]) -> Response[Sellpage]:
        """Create a sellpage."""
        made = await adstats.editor.create_sellpage(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @get("/{sellpage_id:uuid}", operation_id="getSellpage", opt={"scope": "adstats:read", "example": examples.SELLPAGE})
    async def read(self, adstats: Adstats, principal: Who, sellpage_id: Id) -> Response[Sellpage]:
        """One sellpage."""
        found = await adstats.editor.sellpage(principal.tenant_id, sellpage_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @patch(
        "/{sellpage_id:uuid}",
        operation_id="changeSellpage",
        opt={"scope": "adstats:write", "example": examples.SELLPAGE, "body_example": {"name": "Winter shoes"}},
    )
    async def change(
        self, adstats: Adstats, principal: Who, sellpage_id: Id, data: JSONBody[SellpagePatch],
        if_match: IfMatch = None,
    ) -> Response[Sellpage]:  # fmt: skip
        """Change what is sent and nothing else."""
        found = await adstats.editor.change_sellpage(
            principal.tenant_id, sellpage_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(found, headers={"ETag": etag(found.version)})

    @delete("/{sellpage_id:uuid}", operation_id="deleteSellpage", opt={"scope": "adstats:write"})
    async def remove(self, adstats: Adstats, principal: Who, sellpage_id: Id, if_match: IfMatch = None) -> None:
        """Delete a sellpage that no campaign leads to. Its past days keep their rows."""
        await adstats.editor.delete_sellpage(
            principal.tenant_id, sellpage_id, version=wanted_version(if_match), actor=principal.actor
        )


class BackfillRoutes(Controller):
    path = "/admin/ad-backfills"
    tags = ("Ad stats",)

    @get(operation_id="listAdBackfills", opt={"scope": "adstats:read", "example": examples.page(examples.BACKFILL)})
    async def listed(
        self, adstats: Adstats, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[BackfillView]:
        """Backfills and how far they are, newest first."""
        return await adstats.dispatch.backfills(principal.tenant_id, cursor, limit)

    @post(
        operation_id="createAdBackfill",
        status_code=202,
        opt={
            "scope": "adstats:write",
            "example": examples.BACKFILL,
            "body_example": {"date_from": "2026-01-01", "date_to": "2026-02-19"},
        },
    )
    async def create(self, adstats: Adstats, principal: Who, data: JSONBody[BackfillRequest]) -> BackfillView:
        """Read a range of days again, newest first, a month and level at a time."""
        return await adstats.dispatch.backfill(principal.tenant_id, data.date_from, data.date_to, actor=principal.actor)

    @get(
        "/{backfill_id:uuid}", operation_id="getAdBackfill", opt={"scope": "adstats:read", "example": examples.BACKFILL}
    )
    async def read(self, adstats: Adstats, principal: Who, backfill_id: Id) -> BackfillView:
        """One backfill and how far it is."""
        return await adstats.dispatch.progress(principal.tenant_id, backfill_id)


handlers = [ManagerRoutes, ConnectionRoutes, EntityRoutes, SellpageRoutes, BackfillRoutes, AdStatsRoutes]
