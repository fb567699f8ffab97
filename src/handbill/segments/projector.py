"""Writes what decisions know of people: values for every id of a person, the mark, and one value at once when asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from handbill.active_hours.service import profiles
from handbill.infra.postgres import Tx
from handbill.infra.redis import Redis
from handbill.segments.projection import ACTIVE_HOURS, EMPTY, ProjectionKeys, marked, packed, properties_in, segments_in
from handbill.segments.store import S

_CHUNK = 500
FILLED_S = 300
"""How long a value lives that only a question brought back; the walk over everybody writes the lasting one."""

_STAND = """
-- Sets the mark only if Redis has not been wiped, and nobody began anew, since the walk began.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
return 1
"""


class Projector:
    def __init__(self, redis: Redis, keys: ProjectionKeys) -> None:
        self._redis = redis
        self._keys = keys
        self._stand = redis.script(_STAND)

    async def project(self, tx: Tx, tenant_id: int, people: Sequence[UUID], needs: Iterable[str]) -> int:
        """Every id of these people gets its person's value, or none where there is nothing to say."""
        values = await self._values(tx, tenant_id, people, needs)
        commands: list[list[str | bytes]] = []
        for row in await tx.fetch(S.ids_of, tenant_id, list(people)):
            value, key = values.get(row[0]), self._keys.value(tenant_id, row[1])
            commands.append(["DEL", key] if value is None else ["SET", key, value])
        for start in range(0, len(commands), _CHUNK):
            await self._redis.many(commands[start : start + _CHUNK])
        return len(commands)

    async def fill(self, tx: Tx, tenant_id: int, distinct_id: str, needs: Iterable[str]) -> bool:
        """One absent value. What the keeper wrote meanwhile is newer and stays. True: there is such a person."""
        key = self._keys.value(tenant_id, distinct_id)
        person = await tx.fetchval(S.person_behind, tenant_id, distinct_id)
        value = (await self._values(tx, tenant_id, [person], needs)).get(person) if person is not None else None
        await self._redis.call("SET", key, EMPTY if value is None else value, "NX", "EX", FILLED_S)
        return person is not None

    async def drop(self, tenant_id: int, ids: Iterable[str]) -> int:
        keys = [self._keys.value(tenant_id, each) for each in ids]
        for start in range(0, len(keys), _CHUNK):
            await self._redis.many([("DEL", key) for key in keys[start : start + _CHUNK]])
        return len(keys)

    # --- the mark
    async def unmarked(self, tenants: Sequence[int]) -> list[int]:
        """Tenants whose mark is gone: Redis was wiped, or they have none yet."""
        if not tenants:
            return []
        found = await self._redis.many([("EXISTS", self._keys.mark(tenant)) for tenant in tenants])
        return [tenant for tenant, there in zip(tenants, found, strict=True) if not there]

    async def begin(self, tenant_id: int, token: str) -> None:
        await self._redis.call("SET", self._keys.building(tenant_id), token)

    async def end(self, tenant_id: int, token: str, needs: Iterable[str]) -> bool:
        """False: Redis was wiped during the walk; begin again."""
        keys = [self._keys.mark(tenant_id), self._keys.building(tenant_id)]
        return bool(await self._stand(keys, [token, marked(needs)]))

    async def _values(
        self, tx: Tx, tenant_id: int, people: Sequence[UUID], needs: Iterable[str]
    ) -> dict[UUID, bytes | None]:
        wanted = list(needs)
        rows = await tx.fetch(S.projected, tenant_id, list(people), properties_in(wanted), segments_in(wanted))
        hours = await profiles(tx, tenant_id, people) if ACTIVE_HOURS in wanted else {}
        return {row[0]: packed(msgspec.json.decode(row[1] or "{}"), row[2] or (), hours.get(row[0])) for row in rows}
