"""Saving targeting whose patterns are too costly together is refused by its field, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from handbill.banners.model import BannerPatch, NewBanner
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Invalid
from tests.kit.loop import loop

NEW: dict[str, Any] = {"x_times": 1, "y_hours": 1, "z_duration_sec": 1}


def large(number: int) -> dict[str, Any]:
    return {"url": {"regex": f".*a.{{250}}{number}"}}


async def test_what_exceeds_the_limit_of_a_tenant_is_refused_by_its_field(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        editor = house.banners.editor
        with pytest.raises(Invalid) as together:
            await editor.create_banners(
                tenant, [NewBanner(**NEW, targeting=large(number)) for number in range(20)], actor="t"
            )
        assert [fault.field for fault in together.value.faults] == ["targeting"]
        made = []
        with pytest.raises(Invalid) as refused:
            for number in range(20):
                made.append(await editor.create_banner(tenant, NewBanner(**NEW, targeting=large(number)), actor="t"))
        assert [fault.field for fault in refused.value.faults] == ["targeting"]
        assert "too costly together" in refused.value.faults[0].reason
        assert 1 <= len(made) < 20
        plain = await editor.create_banner(tenant, NewBanner(**NEW, targeting={"country": "NL"}), actor="t")
        with pytest.raises(Invalid):
            patch = BannerPatch(targeting=large(99))
            await editor.change_banner(tenant, plain.banner_id, patch, version=None, actor="t")
        assert (await editor.read_banner(tenant, plain.banner_id)).targeting == {"country": "NL"}
        same = BannerPatch(name="renamed", targeting=large(0))
        await editor.change_banner(tenant, made[0].banner_id, same, version=None, actor="t")
        await editor.archive_banner(tenant, made[0].banner_id, archived=True, actor="t")
        other = await editor.create_banner(tenant, NewBanner(**NEW, targeting=large(100)), actor="t")
        with pytest.raises(Invalid):
            await editor.clone_banner(tenant, other.banner_id, actor="t")
        with pytest.raises(Invalid):
            await editor.archive_banner(tenant, made[0].banner_id, archived=False, actor="t")
        await editor.delete_banner(tenant, made[1].banner_id, version=None, actor="t")
        await editor.archive_banner(tenant, made[0].banner_id, archived=False, actor="t")


async def test_the_limit_is_of_each_tenant(database: Database, redis: Redis, make_tenant: Any) -> None:
    async with loop(database, redis) as house:
        for tenant in (await make_tenant(), await make_tenant()):
            made = await house.banners.editor.create_banner(tenant, NewBanner(**NEW, targeting=large(1)), actor="t")
            assert made.targeting == large(1)
