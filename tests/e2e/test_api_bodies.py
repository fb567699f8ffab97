"""Bodies that no honest client sends, to every operation that takes JSON: an answer, and never a failure of ours."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from handbill.adstats import examples
from handbill.fake_graph.model import AdAccount, Config
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.bounds import JSON_DEPTH
from tests.kit.captured import new_sender
from tests.kit.engines import Engines
from tests.kit.graph import graph
from tests.kit.processes import process

AT_ONCE = 8


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


VALUES: dict[str, bytes] = {
    "3,000 levels": nested(3_000),
    "as many levels as can be decoded": b"[" * 700 + b"]" * 700,
    "as many levels as are read": b"[" * (JSON_DEPTH - 2) + b"]" * (JSON_DEPTH - 2),
    "not UTF-8": b'"\xff\xfe"',
    "half a character": b'"\\ud800"',
    "a zero character": b'"a\\u0000b"',
    "a text": b'"a"',
    "1e400": b"1e400",
    "a huge number": b"9" * 5_000,
    "a time beyond the last one": b'"9999-12-31T23:59:59-05:00"',
    "the last time": b'"9999-12-31T23:59:59.999999Z"',
    "the first time": b'"0001-01-01T00:00:00Z"',
    "a time before the first one": b'"0001-01-01T00:00:00+05:00"',
}
WHOLE: dict[str, bytes] = {
    "100,000 open lists": b"[" * 100_000,
    "100,000 lists": b"[" * 100_000 + b"]" * 100_000,
    "nothing": b"",
    "a list of objects": b"[" + b"{}," * 200 + b"{}]",
    "bytes": b"\xff\xfe\x00",
    **VALUES,
}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, Any, list[str]]]:
    """(method, path, example body, names of members it may have) of everything that takes JSON."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                url = re.sub(r"\{[^}]*\}", lambda _: str(uuid.uuid4()), path)
                yield method.upper(), url, content.get("example"), list(properties(document, content["schema"]))


def properties(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """The names of all members that the schema of a body knows."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    yield from schema.get("properties", {})
    for part in (*schema.get("oneOf", ()), *schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from properties(document, part)


def bodies(example: Any, names: list[str]) -> Iterator[tuple[str, bytes]]:
    yield from WHOLE.items()
    if not isinstance(example, dict):
        return
    for name in {**dict.fromkeys(names), **example}:
        mark = uuid.uuid4().hex
        whole = json.dumps({**example, name: mark}).encode()
        for what, value in VALUES.items():
            yield f"{name}: {what}", whole.replace(b'"' + mark.encode() + b'"', value)


async def test_no_body_breaks_an_operation(
    handbill_env: dict[str, str],
    engines: Engines,
    database: Database,
    redis: Redis,
    clickhouse: ClickHouse,
    tenant: int,
) -> None:
    await migrate_clickhouse(clickhouse)
    sender = await new_sender(database, redis, tenant)
    base = f"http://127.0.0.1:{handbill_env['HANDBILL_API__PORT']}"
    headers = {"Authorization": f"Bearer {sender.secret_key}", "X-Write-Key": sender.write_key}
    env = handbill_env | {"HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url}
    account = AdAccount(examples.NEW_CONNECTION["external_id"], examples.NEW_CONNECTION["access_token"])
    failed: list[tuple[str, str, str, int]] = []
    statuses: Counter[int] = Counter()
    async with (
        graph(Config(ad_accounts=(account,))) as fake,
        process(
            "api", env=env | {"HANDBILL_MESSAGING__GRAPH_URL": fake.url, "HANDBILL_ADSTATS__META_URL": fake.url}
        ) as running,
        aiohttp.ClientSession(base, headers=headers) as client,
    ):
        await running.log(event="api-ready")
        async with client.get("/schema/openapi.json") as reply:
            document = await reply.json()
        todo = [
            (method, path, what, body)
            for method, path, example, names in operations(document)
            for what, body in bodies(example, names)
        ]

        async def work() -> None:
            while todo:
                method, path, what, body = todo.pop()
                content = {"Content-Type": "application/json"}
                async with client.request(method, path, data=body, headers=content) as reply:
                    await reply.read()
                    statuses[reply.status] += 1
                    if reply.status >= 500:
                        failed.append((method, path, what, reply.status))

        sent = len(todo)
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        assert failed == []
        assert sent > 1_000
        assert statuses[400] > sent / 2
        await check_code(client)
        await check_decisions(base, sender.write_key)
        assert not running.seen(event="request-failed"), running.tail()


async def check_decisions(base: str, write_key: str) -> None:
    """Nothing that was accepted stops the tenant's own decisions."""
    async with (
        aiohttp.ClientSession(base, headers={"X-Write-Key": write_key}) as client,
        client.get("/banners?user_id=ada") as reply,
    ):
        assert reply.status == 200, await reply.text()


async def check_code(client: aiohttp.ClientSession) -> None:
    """What is nested too deeply has a code of its own, in the form of every other error."""
    for path in ("/admin/banners", "/admin/segments", "/admin/banners/bulk"):
        async with client.post(path, data=nested(3_000), headers={"Content-Type": "application/json"}) as reply:
            assert (reply.status, reply.content_type) == (400, "application/problem+json")
            assert (await reply.json())["code"] == "JSON_TOO_DEEP"


@pytest.mark.parametrize("example", [{"a": 1, "b": {}}])
def test_each_property_takes_each_value_once(example: dict[str, Any]) -> None:
    made = list(bodies(example, ["b", "c"]))
    assert len(made) == len(WHOLE) + 3 * len(VALUES)
    assert (b'{"a": ' + nested(3_000) + b', "b": {}}') in [body for _, body in made]
