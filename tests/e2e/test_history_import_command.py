"""Bringing one's history: by command and by HTTP, killed in the middle, beside an API and a worker that run."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.http import Api
from tests.kit.past import drop_own_months
from tests.kit.processes import handbill, process
from tests.kit.waiting import eventually

COUNT = "select count(), uniqExact(event_key) from events where tenant_id = {t:UInt32}"


@pytest.fixture
async def env(handbill_env: dict[str, str], engines: Engines, clickhouse: ClickHouse) -> dict[str, str]:
    await migrate_clickhouse(clickhouse)
    return {**handbill_env, "HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url, "HANDBILL_API__KILL_TIMEOUT_S": "2"}


@pytest.fixture
async def api(env: dict[str, str]) -> AsyncIterator[Api]:
    async with (
        process("api", env=env) as running,
        process("worker", env=env) as worker,
        aiohttp.ClientSession() as client,
    ):
        await running.log(event="api-ready")
        await worker.log(event="worker-ready")
        yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)


def record(number: int) -> dict[str, Any]:
    """Ten years of events of a hundred people; every third one without an id."""
    day, second = divmod(number * 97, 86_400)
    stamp = f"20{10 + day % 10:02}-{day % 12 + 1:02}-{day % 28 + 1:02}T{second // 3600:02}:{second % 60:02}:00Z"
    own = {} if number % 3 == 0 else {"event_id": f"e{number}"}
    return {"event": "seen", "distinct_id": f"u{number % 100}", "timestamp": stamp, "properties": {"n": number}, **own}


async def stored(clickhouse: ClickHouse, tenant: int, number: int) -> None:
    async def there() -> bool:
        ((rows, keys),) = await clickhouse.query(COUNT, {"t": tenant})
        assert rows == keys
        return bool(rows == number)

    await eventually(there, timeout=120, what=f"{number} events are stored")


async def test_a_killed_import_is_begun_again_and_everything_counts_once(
    api: Api, env: dict[str, str], clickhouse: ClickHouse, database: Database, redis: Redis, tenant: int, tmp_path: Path
) -> None:
    dice, number = random.Random(1), 6_000
    records = [record(n) for n in range(number)]
    file = tmp_path / "events.jsonl.gz"
    lines = [json.dumps(each) for each in records]
    lines[100:100] = ["no event"]
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    mark = tmp_path / "events.jsonl.gz.handbill-import"
    command = ("events", "import", str(file), "--tenant", str(tenant))
    async with process(*command, env=env) as running:
        await eventually(lambda: mark.exists() or running.child.returncode is not None, what="a portion was sent")
        running.kill()
        await running.exit()
    report = tmp_path / "refused.jsonl"
    code, output = await handbill(*command, "--report", str(report), "--json", env=env)
    assert code == 0, output
    await stored(clickhouse, tenant, number)
    assert not mark.exists()

    code, output = await handbill(*command, "--report", str(report), env=env)
    assert code == 0, output
    assert f"0 events sent, 1 lines refused, {number} were there already" in output
    assert "line 101: is no JSON" in output
    assert [json.loads(line)["line"] for line in report.read_text().splitlines()] == [101]

    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    write = (await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="test")).key
    read = (await tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=["*"]), actor="test")).key
    await tenants.stop()
    again = [{**each, "timestamp": None} if n == 1 else each for n, each in enumerate(dice.sample(records, 300))]
    fresh = {**record(1), "event_id": "fresh"}
    reply = await api(
        "POST", "/v1/events", json={"events": [*again, fresh], "historical_migration": True, "api_key": write}
    )
    assert (reply.status, reply.json()) == (
        202,
        {"accepted": 300, "dropped": [{"index": 1, "reason": "INVALID_TIMESTAMP"}]},
    )
    await stored(clickhouse, tenant, number + 1)

    asked = {
        "from": "2012-01-01",
        "to": "2013-01-01",
        "interval": "month",
        "series": [{"event": "seen", "measure": "people"}],
    }
    answer = await api("POST", "/v1/insights/trends", key=read, json=asked)
    wanted = [{each["distinct_id"] for each in [*records, fresh] if each["timestamp"].startswith(f"2012-{month:02}")}
              for month in range(1, 13)]  # fmt: skip
    assert [line["figures"] for line in answer.json()["lines"]] == [[float(len(people)) for people in wanted]]
    await drop_own_months(clickhouse, tenant)


async def test_a_csv_with_a_mapping_and_what_is_wrong_with_one(
    api: Api, env: dict[str, str], clickhouse: ClickHouse, tenant: int, tmp_path: Path
) -> None:
    file = tmp_path / "orders.csv"
    file.write_text("Order;Customer;Placed;Total\no-1;ada;2020-01-02;59.90\no-2;bob;2020-01-03;7\no-3;;2020-01-03;7\n")
    code, output = await handbill("events", "import", str(file), "--tenant", str(tenant), env=env)
    assert code == 2
    assert "event: is in no column and has no value" in output
    mapping = tmp_path / "mapping.json"
    mapping.write_text(
        json.dumps({"columns": {"Order": "event_id", "Customer": "distinct_id"}, "values": {"event": "paid"}})
    )
    code, output = await handbill(
        "events", "import", str(file), "--tenant", str(tenant), "--mapping", str(mapping),
        "--column", "Placed=timestamp", "--column", "Total=properties.total", "--json", env=env,
    )  # fmt: skip
    assert code == 0, output
    result = json.loads(output.strip().splitlines()[-1])
    assert result == {"sent": 2, "refused": 1, "duplicates": 0, "reasons": {"MISSING_DISTINCT_ID": 1}}
    await stored(clickhouse, tenant, 2)
    rows = await clickhouse.query(
        "select event_id, event, distinct_id, JSONExtractFloat(properties, 'total') from events"
        " where tenant_id = {t:UInt32} order by event_id", {"t": tenant},
    )  # fmt: skip
    assert rows == [("o-1", "paid", "ada", 59.9), ("o-2", "paid", "bob", 7.0)]
