"""Other people's Python clients, unmodified: two calls in a row are stored in that order, also when sent again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.captured import capturing, new_sender
from tests.kit.engines import Engines
from tests.kit.processes import process
from tests.kit.recorder import recorder
from tests.kit.sdk_order import PYTHON_CLIENTS, folded, properties, right

PEOPLE = 100


@pytest.mark.parametrize("lossy", [False, True], ids=["sound network", "lossy network"])
async def test_of_two_calls_in_a_row_the_later_one_stands(
    handbill_env: dict[str, str],
    engines: Engines,
    database: Database,
    redis: Redis,
    tenant: int,
    monkeypatch: pytest.MonkeyPatch,
    lossy: bool,
) -> None:
    """In the lossy network each client's first request arrives after its repetition, and that one's answer is lost."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    sender = await new_sender(database, redis, tenant)
    async with capturing(handbill_env) as api, AsyncExitStack() as stack:
        nets = [await stack.enter_async_context(recorder(api.base)) for _ in PYTHON_CLIENTS]
        for net in nets:
            net.delay = net.lose = int(lossy)
        sending = (
            asyncio.to_thread(client.send, net.url, sender.write_key, client.people(PEOPLE))
            for client, net in zip(PYTHON_CLIENTS, nets, strict=True)
        )
        await asyncio.gather(*sending)
    ids = [message.get("uuid") or message["messageId"] for net in nets for message in net.messages()]
    copies = len(ids) - len(set(ids))
    assert (copies > 0) == lossy
    connection = await asyncpg.connect(engines.postgres_url)
    async with process("worker", env=handbill_env):
        await folded(connection, tenant, len(set(ids)), copies)
    found = await properties(connection, tenant)
    await connection.close()
    counts = {each.name: right(found, each.people(PEOPLE), sets_once=each.sets_once) for each in PYTHON_CLIENTS}
    wrong = {name: each for name, each in counts.items() if set(each.values()) != {PEOPLE}}
    assert not wrong
