"""How far counting is behind, as each tenant is told: by the lanes that may hold its events."""

from __future__ import annotations

from msgspec.structs import replace

from handbill.events.model import Impression, encode
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.loop import loop, own_lanes
from tests.kit.waiting import eventually


async def test_events_in_an_overflow_lane_are_lag_of_its_tenants_only(
    database: Database, redis: Redis, tenant: int
) -> None:
    lanes = replace(own_lanes(1), overflow=2)
    other = next(
        one for one in range(tenant + 1, tenant + 100) if lanes.overflow_for(one) != lanes.overflow_for(tenant)
    )
    async with loop(database, redis, lanes=lanes) as app:
        now = app.clock.now_ms()

        async def lag() -> tuple[float, float, float]:
            await app.edge.look()
            return app.edge.lag_seconds_of(tenant), app.edge.lag_seconds_of(other), app.edge.lag_seconds

        assert await lag() == (0.0, 0.0, 0.0)
        await app.journal.append(
            lanes.overflow_for(tenant), [encode(Impression(tenant, "e", now, now, 1))], tenant_ids=(tenant,)
        )
        own, others, longest = await lag()
        assert own == longest > 0 == others
        assert (await app.events.explain(tenant, "unseen")).outcome == "waiting"
        assert (await app.events.explain(other, "unseen")).outcome == "unknown"
        await app.consumer()
        await app.drained()

        async def is_over() -> bool:
            return await lag() == (0.0, 0.0, 0.0)

        await eventually(is_over, what="nothing waits any more")
