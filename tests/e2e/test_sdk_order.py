"""Other people's Python clients, unmodified: two calls in a row are stored in that order, also when sent again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.conftest import MakeTenant
from tests.kit.captured import capturing, new_sender
from tests.kit.engines import Engines
from tests.kit.processes import process
from tests.kit.recorder import recorder
from tests.kit.sdk_order import PYTHON_CLIENTS, exported, folded, funnel, properties, right

PEOPLE = 100


@pytest.mark.parametrize("lossy", [False, True], ids=["sound network", "lossy network"])
async def test_two_calls_in_a_row_keep_their_order(
    handbill_env: dict[str, str],
    engines: Engines,
    database: Database,
    redis: Redis,
    make_tenant: MakeTenant,
    monkeypatch: pytest.MonkeyPatch,
    lossy: bool,
) -> None:
    """In the lossy network each client's first request arrives after its repetition, and that one's answer is lost."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    env = {**handbill_env, "HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url}
    senders = [await new_sender(database, redis, await make_tenant()) for _ in PYTHON_CLIENTS]
    async with capturing(env) as api, AsyncExitStack() as stack:
        connection = await asyncpg.connect(engines.postgres_url)
        stack.push_async_callback(connection.close)
        nets = [await stack.enter_async_context(recorder(api.base)) for _ in PYTHON_CLIENTS]
        for net in nets:
            net.delay = net.lose = int(lossy)
        sending = (
            asyncio.to_thread(client.send, net.url, sender.write_key, client.people(PEOPLE))
            for client, net, sender in zip(PYTHON_CLIENTS, nets, senders, strict=True)
        )
        await asyncio.gather(*sending)
        counts: dict[str, dict[str, int]] = {}
        async with process("worker", env=env):
            for client, net, sender in zip(PYTHON_CLIENTS, nets, senders, strict=True):
                ids = [message.get("uuid") or message["messageId"] for message in net.messages()]
                copies = len(ids) - len(set(ids))
                assert (copies > 0) == lossy
                await folded(connection, sender.tenant, len(set(ids)), copies)
                found = await properties(connection, sender.tenant)
                counts[client.name] = right(found, client.people(PEOPLE), sets_once=client.sets_once)
            await exported(connection, [sender.tenant for sender in senders])
        for client, sender in zip(PYTHON_CLIENTS, senders, strict=True):
            looked, bought = await funnel(api.base, sender.secret_key)
            counts[client.name] |= {"looked": looked, "bought": bought}
    wrong = {name: each for name, each in counts.items() if set(each.values()) != {PEOPLE}}
    assert not wrong
