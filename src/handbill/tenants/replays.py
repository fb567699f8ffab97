"""Idempotency keys: the same request twice is carried out once and answered twice.

The claim is written before the work and the answer after it. A process that dies between the two leaves a claim without
an answer: nobody can know whether the work was done, so the next request is told exactly that, and nothing is repeated.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Literal

import msgspec

from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.errors import Broken, Conflict, Fault, Invalid
from handbill.tenants import store
from handbill.tenants.model import Replay
from handbill.tenants.seals import sealer_for

KEPT = timedelta(hours=24)
IN_FLIGHT = timedelta(seconds=60)


class Claim(msgspec.Struct, frozen=True):
    """Either the work is ours to do, or the answer is already known."""

    outcome: Literal["ours", "replayed"]
    replay: Replay | None = None


class _Kept(msgspec.Struct, frozen=True):
    """What is sealed of an answer."""

    body: bytes
    headers: list[tuple[str, str]]


def request_hash(method: str, target: str, actor: str, body: bytes) -> bytes:
    """What makes two requests the same one."""
    head = msgspec.json.encode([method, target, actor])
    return hashlib.sha256(len(head).to_bytes(4, "big") + head + body).digest()


def check_key(key: str) -> str:
    if not 1 <= len(key) <= 200 or not key.isascii() or not key.isprintable():
        raise Invalid(
            "The idempotency key must be 1 to 200 printable ASCII characters.",
            code="BAD_IDEMPOTENCY_KEY",
            faults=[Fault("Idempotency-Key", "must be 1 to 200 printable ASCII characters")],
        )
    return key


class Replays:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, tenant_id: int, key: str, digest: bytes, credential: str) -> Claim:
        """Takes the key for this request, or tells what became of the request that took it first."""
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            if await store.claim_replay(tx, tenant_id, key, digest, now, now + KEPT):
                return Claim("ours")
            found = await store.read_replay(tx, tenant_id, key)
        if found is None:  # swept between the two statements: the first answer is a day old and gone
            return await self.claim(tenant_id, key, digest, credential)
        if found.request_hash != digest:
            raise _mismatch()
        if found.status is None or found.reply is None:
            raise _unanswered(young=now - found.created_at < IN_FLIGHT)
        try:
            opened = sealer_for(credential, key).open(found.reply, f"reply {tenant_id}")
        except Broken:
            raise _mismatch() from None
        kept = msgspec.msgpack.decode(opened, type=_Kept)
        replay = Replay(found.status, found.content_type or "application/json", kept.body, kept.headers)
        return Claim("replayed", replay)

    async def close(self, tenant_id: int, key: str, replay: Replay, credential: str) -> None:
        """Keeps the answer, sealed so that only whoever asked can read it again: it may hold a fresh key."""
        kept = msgspec.msgpack.encode(_Kept(replay.body, replay.headers))
        sealed = sealer_for(credential, key).seal(kept, f"reply {tenant_id}")
        async with self._database.tenant(tenant_id) as tx:
            await store.close_replay(tx, tenant_id, key, replay.status, replay.content_type, sealed)

    async def release(self, tenant_id: int, key: str) -> None:
        """Nothing was done (busy, throttled): the same key may be used again."""
        async with self._database.tenant(tenant_id) as tx:
            await store.release_replay(tx, tenant_id, key)


def _mismatch() -> Conflict:
    return Conflict(
        "This idempotency key was used for another request; nothing was done. Choose a new key.",
        code="IDEMPOTENCY_MISMATCH",
    )


def _unanswered(*, young: bool) -> Conflict:
    if young:
        return Conflict(
            "The first request with this idempotency key is still being answered; nothing was done. Try again shortly.",
            code="IDEMPOTENCY_IN_FLIGHT",
            retry_after=1,
        )
    return Conflict(
        "The first request with this idempotency key ended without a recorded answer; nothing was done now. "
        "Look whether it took effect, then use a new key.",
        code="IDEMPOTENCY_UNFINISHED",
    )
