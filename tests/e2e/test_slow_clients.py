"""Clients that hold connections open, against a real API process: others are answered, and nothing stays held."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.bounds import CONNECTION_BUFFER_BYTES, HEAD_BYTES
from tests.kit.captured import Sender, capturing, new_sender
from tests.kit.http import Api
from tests.kit.processes import free_port
from tests.kit.raw_clients import RawClient
from tests.kit.waiting import eventually

ATTACKER = "127.0.0.2"
BODIES = 200
HEADS = 50
ANNOUNCED = 5_000_000
HALF_A_HEAD = b"POST /v1/events HTTP/1.1\r\nHost: x\r\nX-Slow: "


class Target:
    """A running API process, how much it holds, and a tenant that sends to it."""

    def __init__(self, api: Api, metrics_port: int, sender: Sender) -> None:
        self.api = api
        self.sender = sender
        self.port = int(api.base.rpartition(":")[2])
        self.clients: list[RawClient] = []
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"

    async def connect(self, address: str = "127.0.0.1") -> RawClient:
        """A connection from `address`, closed when the test ends."""
        client = await RawClient.connect(self.port, address)
        self.clients.append(client)
        return client

    async def holds(self, expected: int) -> None:
        """Waits until the process holds exactly so many bytes of bodies."""

        async def held() -> bool:
            async with self.api.client.get(self._metrics) as reply:
                page = await reply.text()
            found = re.search(r"^handbill_api_body_bytes_held (\S+)$", page, re.MULTILINE)
            assert found is not None
            assert float(found[1]) == expected
            return True

        await eventually(held, what=f"{expected} bytes of bodies are held")


@asynccontextmanager
async def attacked(
    env: dict[str, str], database: Database, redis: Redis, tenant: int, **settings: str
) -> AsyncIterator[Target]:
    metrics_port = free_port()
    whole = {"HANDBILL_API__METRICS_PORT": str(metrics_port), **settings}
    sender = await new_sender(database, redis, tenant)
    async with capturing(env, **whole) as api:
        target = Target(api, metrics_port, sender)
        try:
            yield target
        finally:
            await close(*target.clients)
        await target.holds(0)


def batch(size: int) -> bytes:
    """A batch of about `size` bytes."""
    count = -(-size // 4_000)
    return json.dumps(
        {"events": [{"event": "seen", "distinct_id": "ada", "properties": {"text": "x" * 4_000}}] * count}
    ).encode()


async def open_bodies(target: Target) -> list[RawClient]:
    """Connections that each announce a large body and send one byte of it."""
    clients = await asyncio.gather(*(target.connect(ATTACKER) for _ in range(BODIES)))
    for client in clients:
        await client.announce(ANNOUNCED)
        await client.send(b"{")
    return clients


async def open_heads(target: Target) -> list[RawClient]:
    """Connections that each send half a head."""
    clients = await asyncio.gather(*(target.connect(ATTACKER) for _ in range(HEADS)))
    for client in clients:
        await client.send(HALF_A_HEAD)
    return clients


async def close(*clients: RawClient) -> None:
    await asyncio.gather(*(client.close() for client in clients))


async def test_slow_bodies_of_one_address_stop_neither_a_large_batch_nor_an_honest_slow_client(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    """The deadline is far away here: nothing is freed while the others send."""
    settings = {"HANDBILL_API__BODY_TIMEOUT_S": "600", "HANDBILL_API__BODIES_PER_ADDRESS": str(BODIES)}
    async with attacked(handbill_env, database, redis, tenant, **settings) as target:
        await open_heads(target)
        await open_bodies(target)
        await target.holds(BODIES)

        large, key = batch(1_300_000), {"X-Api-Key": target.sender.write_key}
        reply = await target.api("POST", "/v1/events", data=io.BytesIO(large), headers=key)
        assert (reply.status, reply.json()["dropped"]) == (202, [])
        await target.holds(BODIES)

        slow, whole, sent = await target.connect(), batch(200_000), 0
        await slow.announce(len(whole), X_Api_Key=target.sender.write_key)
        for start in range(0, len(whole) - 20_000, 20_000):
            await slow.send(whole[start : start + 20_000])
            sent = start + 20_000
            await target.holds(BODIES + sent)
        await slow.send(whole[sent:])
        answer = await slow.answer()
        assert answer is not None
        assert answer.status == 202

        one_more = await target.connect(ATTACKER)
        await one_more.announce(len(whole))
        await one_more.send(whole)
        answer = await one_more.answer()
        assert answer is not None
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "TOO_MANY_BODIES", "1")


async def test_slow_bodies_and_half_heads_end_at_their_deadline(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    settings = {"HANDBILL_API__BODY_TIMEOUT_S": "1", "HANDBILL_API__HEADER_TIMEOUT_S": "1"}
    async with attacked(handbill_env, database, redis, tenant, **settings) as target:
        heads, bodies = await open_heads(target), await open_bodies(target)
        silent = await asyncio.gather(*(target.connect(ATTACKER) for _ in range(HEADS)))
        found = await asyncio.gather(*(client.closed() for client in bodies))
        ends = Counter(data.split(b"\r\n", 1)[0] for data in found)
        assert set(ends) <= {b"HTTP/1.1 408 Request Timeout", b""}, ends
        assert ends[b"HTTP/1.1 408 Request Timeout"] > 0
        assert all(b"BODY_TOO_SLOW" in data for data in found if data)
        await asyncio.gather(*(client.closed() for client in (*heads, *silent)))
        await target.holds(0)
        assert not target.api.process.seen(event="request-failed"), target.api.process.tail()


async def test_heads_are_limited_whether_they_end_or_not(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    async with attacked(handbill_env, database, redis, tenant, HANDBILL_API__HEADER_TIMEOUT_S="600") as target:
        whole = await target.connect()
        await whole.announce(2, X_Large="x" * HEAD_BYTES)
        await whole.send(b"{}")
        answer = await whole.answer()
        assert answer is not None
        assert (answer.status, answer.code) == (431, "HEAD_TOO_LARGE")
        half = await target.connect()
        await half.send(HALF_A_HEAD + b"x" * (2 * CONNECTION_BUFFER_BYTES))
        answered = await half.closed()
        assert answered == b"" or answered.startswith(b"HTTP/1.1 431 ")


async def test_idle_connections_of_one_address_keep_nobody_else_waiting(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    """Five times as many connections as the process takes; none of them would be closed by its timeout here."""
    settings = {
        "HANDBILL_API__HEADER_TIMEOUT_S": "600",
        "HANDBILL_API__BODY_TIMEOUT_S": "600",
        "HANDBILL_API__MAX_CONNECTIONS": "64",
    }
    async with attacked(handbill_env, database, redis, tenant, **settings) as target:
        before = await target.connect()
        await before.announce(2)
        flood = await asyncio.gather(*(target.connect(ATTACKER) for _ in range(5 * 64)))
        for client in flood[::2]:
            await client.send(HALF_A_HEAD)
        new = await target.connect("127.0.0.3")
        await new.announce(2)
        for honest in (new, before):
            await honest.send(b"{}")
            answer = await honest.answer()
            assert answer is not None
            assert answer.status == 401
        assert target.api.process.seen(event="api.connections_cut")


async def test_all_bodies_of_a_process_have_a_limit_and_give_everything_back(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    mebibyte, count = 1_048_576, 10
    settings = {"HANDBILL_API__BODY_TIMEOUT_S": "600", "HANDBILL_API__BODIES_HELD_BYTES": str(mebibyte)}
    async with attacked(handbill_env, database, redis, tenant, **settings) as target:
        key = target.sender.write_key
        whole, part = batch(200_000), 100_000
        holders = [await target.connect(f"127.0.1.{number}") for number in range(1, count + 1)]
        for holder in holders:
            await holder.announce(len(whole), X_Api_Key=key)
            await holder.send(whole[:part])
        await target.holds(count * part)

        one_more = await target.connect("127.0.2.1")
        await one_more.announce(len(whole), X_Api_Key=key)
        await one_more.send(whole)
        answer = await one_more.answer()
        assert answer is not None
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "BODIES_BUSY", "1")
        await target.holds(count * part)

        small = await target.api("POST", "/v1/events", data=batch(1), headers={"X-Api-Key": key})
        assert small.status == 202, "large bodies do not stop small ones"

        await close(*holders[5:])
        await target.holds(5 * part)
        for holder in holders[:5]:
            await holder.send(whole[part:])
        answers = [await holder.answer() for holder in holders[:5]]
        assert [answer.status for answer in answers if answer is not None] == [202] * 5
        await target.holds(0)
        await one_more.announce(len(whole), X_Api_Key=key)
        await one_more.send(whole)
        answer = await one_more.answer()
        assert answer is not None
        assert answer.status == 202
