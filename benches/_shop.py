"""Tenants with something to show, made through the product's own services; shared by the counting benches."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

from handbill import settings
from handbill.banners.model import NewBanner, NewCampaign, NewPlacement
from handbill.tenants.model import NewTenant
from handbill.wiring.house import House, build
from tests.kit.stack import Stack

ACTOR = "bench"


@dataclass(frozen=True)
class Shop:
    """One tenant, and the public ids a tracker would send."""

    tenant: int
    banners: tuple[UUID, ...]
    placement: UUID
    campaign: UUID


@contextlib.asynccontextmanager
async def house(built: Stack) -> AsyncIterator[House]:
    """The bench's own house over the stack's engines: it fills and checks, and is never what is measured."""
    made = build(settings.load(built.env(HANDBILL_REDIS__TIMEOUT_MS="60000")))
    await made.start("tool")
    try:
        yield made
    finally:
        await made.stop()


async def shops(built: House, tenants: int = 8, banners: int = 10) -> list[Shop]:
    """Several tenants: one alone would be told to spill, which is not what most events do."""
    made = []
    for number in range(tenants):
        new = NewTenant(name=f"Shop {number}", slug=f"shop-{number}")
        tenant = (await built.tenants.create_tenant(new, actor=ACTOR)).tenant_id
        editor = built.banners.editor
        placement = await editor.create_placement(tenant, NewPlacement(name="Home", slug="home"), actor=ACTOR)
        campaign = await editor.create_campaign(tenant, NewCampaign(name="Spring"), actor=ACTOR)
        news = [NewBanner(x_times=2, y_hours=24, z_duration_sec=3, title=f"Banner {n}") for n in range(banners)]
        shown = await editor.create_banners(tenant, news, actor=ACTOR)
        ids = tuple(banner.banner_id for banner in shown)
        made.append(Shop(tenant, ids, placement.placement_id, campaign.campaign_id))
    return made
