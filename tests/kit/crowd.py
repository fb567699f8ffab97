"""People put straight into their tables, for tests about what follows from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import from_ms
from handbill.people.model import person_id

_PEOPLE = Sql(
    "insert into people.persons as k (tenant_id, person_id, named_by, properties, created_at, updated_at)"
    " select $1, p, n, j::jsonb, c, c from unnest($2::uuid[], $3::text[], $4::text[], $5::timestamptz[]) u (p, n, j, c)"
    " on conflict (tenant_id, person_id) do update set properties = excluded.properties",
    "crowd_people",
)
_IDS = Sql(
    "insert into people.distinct_ids (tenant_id, distinct_id, person_id, first_seen_at)"
    " select $1, d, p, now() from unnest($2::text[], $3::uuid[]) u (d, p)"
    " on conflict (tenant_id, distinct_id) do update set person_id = excluded.person_id",
    "crowd_ids",
)


async def settle(
    database: Database,
    tenant: int,
    people: Mapping[str, Mapping[str, Any]],
    *,
    created: int = 0,
    ids: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, UUID]:
    """People by name, with these properties; each has its name as an id, and those of `ids`."""
    found = {name: person_id(tenant, name) for name in people}
    texts = [json.dumps(properties) for properties in people.values()]
    owned = [(name, name) for name in people]
    owned += [(each, name) for name, more in (ids or {}).items() for each in more]
    async with database.worker() as tx:
        await tx.execute(_PEOPLE, tenant, list(found.values()), list(found), texts, [from_ms(created)] * len(found))
        await tx.execute(_IDS, tenant, [each for each, _ in owned], [person_id(tenant, name) for _, name in owned])
    return found
