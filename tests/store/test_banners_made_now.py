"""A banner that an API process has not loaded yet, since it was made a moment ago, perhaps by another process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from handbill.banners.model import NewBanner
from handbill.caps.service import moves_of
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.loop import loop


async def test_the_limits_of_a_banner_made_a_moment_ago_hold_for_its_first_view(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the copy in memory has it. Whoever asks meanwhile shares one load."""
    async with loop(database, redis) as app:
        made = await app.banners.editor.create_banner(
            tenant, NewBanner(x_times=1, y_hours=24, z_duration_sec=3), actor="t"
        )
        found = await app.catalogue.find("banner", made.banner_id)
        assert found is not None
        assert app.catalogue.known_banner(found) is None
        loads = 0
        load = app.catalogue._load

        async def counted(*arguments: Any) -> None:
            nonlocal loads
            loads += 1
            await load(*arguments)

        monkeypatch.setattr(app.catalogue, "_load", counted)
        banners = await asyncio.gather(*(app.catalogue.banner(found) for _ in range(10)))
        assert {banner.public_id for banner in banners if banner is not None} == {made.banner_id}
        assert loads == 1
        moves = moves_of(b"k" * 16, app.clock.now_ms(), found.id)
        assert app.caps.move_commands(tenant, "ada", moves), "the view moves the cap in the round trip that accepts it"
