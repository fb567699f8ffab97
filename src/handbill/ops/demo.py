"""The demo tenant of a first start: something to try the API with. A private file of the data directory has its keys.

It is made once: by the first start on the embedded PostgreSQL when there is no other tenant, or where the setting
`demo` is `on`. A tenant that happens to be called the same is never touched.
"""

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


class DemoTenant(msgspec.Struct, frozen=True):
    """The demo tenant, and whether this start made it: its secret is printed only then."""

    demo: Demo
    is_new: bool


def file_of(home: Path) -> Path:
    return home / "secrets" / "demo.json"


def _begun_file(home: Path) -> Path:
    """Exists from before the tenant is made until its keys are in their file: a start may be killed in between."""
    return home / "secrets" / "demo.begun"


def read(home: Path) -> Demo | None:
    try:
        return msgspec.json.decode(file_of(home).read_bytes(), type=Demo)
    except (FileNotFoundError, msgspec.DecodeError):  # made again, also where an older release wrote less
        return None


async def ensure(settings: Settings, home: Path, *, embedded: bool) -> DemoTenant | None:
    """The demo tenant, made if the setting asks for it; `embedded` says whose PostgreSQL this is."""
    if settings.demo == "off":
        return None
    if (known := read(home)) is not None:
        return DemoTenant(known, is_new=False)
    if settings.demo == "auto" and not embedded:
        return None
    house = build(settings)
    await house.start("tool")
    try:
        if not await _tenant(house.tenants, home, alone=settings.demo == "auto"):
            return None
        demo = await _furnish(house)
    finally:
        await house.stop()
    write_private(file_of(home), msgspec.json.encode(demo).decode() + "\n")
    _begun_file(home).unlink(missing_ok=True)
    return DemoTenant(demo, is_new=True)


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


async def _tenant(tenants: TenantService, home: Path, *, alone: bool) -> bool:
    """Whether the demo tenant is there for us to fill, after making it; `alone`: only where there is no other tenant.

    A start that was killed between the tenant and its keys has left a note, and the next one makes the keys.
    """
    try:
        await tenants.find_tenant(SLUG)
    except NotFound:
        if alone and await tenants.list_tenants():
            return False
        write_private(_begun_file(home), "")
        await tenants.create_tenant(NewTenant(name="Demo", slug=SLUG), actor=ACTOR)
        return True
    return _begun_file(home).exists() or file_of(home).exists()
