"""The demo tenant of a first start: something to try the API with, its keys kept in the home."""

from __future__ import annotations

import secrets
from pathlib import Path
from uuid import UUID

import msgspec

from handbill.banners.model import NewBanner, NewPlacement
from handbill.infra.embedded.home import write_private
from handbill.kit.errors import NotFound
from handbill.settings import Settings
from handbill.tenants.model import NewKey, NewTenant
from handbill.tenants.service import TenantService
from handbill.wiring.house import House, build

ACTOR = "up"
SLUG = "demo"


class Demo(msgspec.Struct, frozen=True):
    tenant: str
    write_key: str
    secret_key: str
    placement_id: UUID
    banner_id: UUID


def file_of(home: Path) -> Path:
    return home / "secrets" / "demo.json"


def kept(home: Path) -> Demo | None:
    try:
        return msgspec.json.decode(file_of(home).read_bytes(), type=Demo)
    except (FileNotFoundError, msgspec.DecodeError):  # made anew, also where an older release knew less
        return None


async def ensure(settings: Settings, home: Path) -> Demo | None:
    """The keys of the demo tenant. Made on an installation without tenants; none on one that has only its own."""
    if (known := kept(home)) is not None:
        return known
    house = build(settings)
    await house.start("tool")
    try:
        if not await _tenant(house.tenants):
            return None
        demo = await _furnish(house)
    finally:
        await house.stop()
    write_private(file_of(home), msgspec.json.encode(demo).decode() + "\n")
    return demo


async def _furnish(house: House) -> Demo:
    """Keys, a placement, and a banner that may be seen twice a day for three seconds."""
    number = (await house.tenants.find_tenant(SLUG)).tenant_id
    write = await house.tenants.create_key(number, NewKey(kind="write", name="demo"), actor=ACTOR)
    secret = await house.tenants.create_key(number, NewKey(kind="secret", name="demo", scopes=["*"]), actor=ACTOR)
    slug = f"home-{secrets.token_hex(3)}"  # a start that was killed half way may have left one behind
    placement = await house.banners.editor.create_placement(number, NewPlacement(name="Home", slug=slug), actor=ACTOR)
    new = NewBanner(
        x_times=2,
        y_hours=24,
        z_duration_sec=3,
        name="Lantern week",
        title="Lantern week: 20 % off every pot",
        description="Until Sunday, while the lights are on.",
        image_url="/demo/lanterns.svg",
        cta_link="/demo#pots",
        placement_ids=[placement.placement_id],
    )
    banner = await house.banners.editor.create_banner(number, new, actor=ACTOR)
    return Demo(SLUG, write.key, secret.key, placement.placement_id, banner.banner_id)


async def _tenant(tenants: TenantService) -> bool:
    """Whether there is a demo tenant, after making one where there is no tenant at all.

    A start that was killed between the tenant and its keys finds the tenant here and makes the keys.
    """
    try:
        await tenants.find_tenant(SLUG)
    except NotFound:
        if await tenants.list_tenants():
            return False
        await tenants.create_tenant(NewTenant(name="Demo", slug=SLUG), actor=ACTOR)
    return True
