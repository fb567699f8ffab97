"""Infinite times that older versions stored are replaced, in the rows of every tenant."""

from __future__ import annotations

import asyncpg

from handbill.infra.migrations import migrate, shipped
from tests.kit.engines import Engines
from tests.kit.schema import empty_database

MIGRATION = "0018_finite_times"
SEED = """
insert into tenants.tenants (public_id, slug, name, created_at, updated_at)
select gen_random_uuid(), slug, slug, now(), now() from unnest(array['a', 'b']) slug;

insert into banners.banners (tenant_id, public_id, name, x_times, y_hours, z_duration_sec, publish_at, expires_at)
select tenant_id, gen_random_uuid(), 'b', 1, 1, 1, t.starts, t.ends from tenants.tenants,
    (values ('-infinity'::timestamptz, 'infinity'::timestamptz), ('infinity', null), (null, '-infinity'),
            ('2026-01-01 00:00:00+00', '2026-02-01 00:00:00+00')) t (starts, ends);

insert into banners.campaigns (tenant_id, public_id, name, starts_at, ends_at)
select tenant_id, gen_random_uuid(), 'c', publish_at, expires_at from banners.banners;

insert into tenants.api_keys (tenant_id, key_id, kind, name, key_hash, hint, created_at, expires_at)
select tenant_id, gen_random_uuid(), 'secret', 'k', slug::bytea, 'h', now(), 'infinity' from tenants.tenants;
"""
WINDOWS = """
select tenant_id, starts::text, ends::text from (
    select tenant_id, publish_at, expires_at from banners.banners
    union all select tenant_id, starts_at, ends_at from banners.campaigns
) w (tenant_id, starts, ends)
"""


async def test_infinite_times_are_replaced_for_every_tenant(engines: Engines) -> None:
    files = shipped()
    number = [file.label for file in files].index(MIGRATION)
    async with empty_database(engines.postgres_url) as url:
        await migrate(url, files=files[:number])
        connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"})
        try:
            await connection.execute(SEED)
            await migrate(url, files=files[: number + 1])
            windows = await connection.fetch(WINDOWS)
            wanted = {
                (None, None), ("9999-12-31 23:59:59+00", None), (None, "1970-01-01 00:00:00+00"),
                ("2026-01-01 00:00:00+00", "2026-02-01 00:00:00+00"),
            }  # fmt: skip
            for tenant_id in (1, 2):
                found = [(row["starts"], row["ends"]) for row in windows if row["tenant_id"] == tenant_id]
                assert len(found) == 2 * len(wanted)
                assert set(found) == wanted
            ends = await connection.fetch("select expires_at::text from tenants.api_keys")
            assert [row[0] for row in ends] == ["9999-12-31 23:59:59+00"] * 2
        finally:
            await connection.close()
