"""Limits per tenant: what one tenant may start in one queue. The token itself is taken by the script that starts a job.

A row for (queue, tenant) wins over a row for the tenant in every queue, and that over the queue's default.
"""

from __future__ import annotations

from collections.abc import Sequence

from handbill.infra.redis import Redis
from handbill.jobs import scripts
from handbill.jobs.defaults import Limit, defaults_of
from handbill.jobs.keys import QueueKeys
from handbill.kit.errors import Fault, Invalid


class Limits:
    """Reads and writes the rows; `peek` tells what could start without taking anything."""

    def __init__(self, redis: Redis, *, prefix: str = "bull") -> None:
        self._redis = redis
        self._prefix = prefix
        self._peek = redis.script(scripts.own("peek"))

    async def set(self, tenant_id: int, limit: Limit, *, queue: str | None = None) -> None:
        """For one queue, or for every queue. Takes effect with the next job that would start."""
        faults = []
        if limit.rate < 0:
            faults.append(Fault("rate", "not below 0"))
        if limit.burst < 1:
            faults.append(Fault("burst", "at least 1"))
        if limit.weight < 1:
            faults.append(Fault("weight", "at least 1"))
        if faults:
            raise Invalid("the limit was not set", code="LIMIT_INVALID", faults=faults)
        await self._redis.call("HSET", self._key(queue), str(tenant_id), _write(limit))

    async def clear(self, tenant_id: int, *, queue: str | None = None) -> None:
        """Back to the next wider row, or the queue's default."""
        await self._redis.call("HDEL", self._key(queue), str(tenant_id))

    async def get(self, tenant_id: int, queue: str) -> Limit:
        """The limit that counts for this tenant in this queue."""
        field = str(tenant_id)
        own, everywhere = await self._redis.many([("HGET", self._key(queue), field), ("HGET", self._key(None), field)])
        raw = own or everywhere
        return _read(raw) if raw else defaults_of(queue).limit

    async def peek(self, queue: str, tenants: Sequence[int | None], horizon_ms: int) -> list[int]:
        """How many jobs each could start now and within the horizon. No limit, or no tenant: a million."""
        if not tenants:
            return []
        keys, standard = QueueKeys(self._prefix, queue), defaults_of(queue).limit
        names = ["" if tenant is None else str(tenant) for tenant in tenants]
        reply = await self._peek(
            keys=[keys.tats, keys.limits, keys.everywhere], args=[horizon_ms, standard.rate, standard.burst, *names]
        )
        return [int(count) for count in reply]

    def _key(self, queue: str | None) -> str:
        keys = QueueKeys(self._prefix, queue or "")
        return keys.everywhere if queue is None else keys.limits


def _write(limit: Limit) -> str:
    return f"{limit.rate:g}:{limit.burst}:{limit.weight:g}"


def _read(raw: bytes) -> Limit:
    rate, burst, weight = raw.decode().split(":")
    return Limit(rate=float(rate), burst=int(burst), weight=float(weight))
