"""Many banners at once over HTTP: a JSON list, or CSV; all or none, and what is wrong by its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.http import Api, Reply
from tests.kit.processes import process

GOOD = '\ufefftitle,x_times,y_hours,z_duration_sec,is_active\r\nSale,2,24,3,true\r\n"Two\nlines",1,1,1,\r\n'


@pytest.fixture
async def api(handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int) -> AsyncIterator[Api]:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    key = (await tenants.create_key(tenant, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")).key
    await tenants.stop()
    async with (
        process("api", env=handbill_env) as running,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client,
    ):
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{handbill_env['HANDBILL_API__PORT']}", client)


async def test_banners_are_made_from_csv_and_from_a_list(api: Api) -> None:
    async def send(body: str, kind: str = "text/csv; charset=utf-8") -> Reply:
        return await api("POST", "/admin/banners/bulk", data=body.encode(), headers={"Content-Type": kind})

    made = await send(GOOD)
    assert made.status == 201, made.body
    assert [banner["title"] for banner in made.json()["created"]] == ["Sale", "Two\nlines"]
    listed = await api("POST", "/admin/banners/bulk", json=[{"x_times": 1, "y_hours": 1, "z_duration_sec": 1}])
    assert listed.status == 201, listed.body

    def faults(reply: Reply) -> dict[str, str]:
        return {fault["field"]: fault["reason"] for fault in reply.problem(400, "INVALID")["faults"]}

    assert faults(await send("titel,x_times\nSale,2\n")) == {"titel": "is not a known column; did you mean `title`?"}
    bad = faults(await send('title,x_times,y_hours,z_duration_sec\n"a\nb",2,24,3\nSale,0,x,3\n'))
    assert set(bad) == {"line 4, x_times", "line 4, y_hours"}
    columns = "x_times,y_hours,z_duration_sec,cta_link,start_date,end_date"
    bad = faults(await send(f"{columns}\n1,1,1,,,\n1,1,1,gone,,\n1,1,1,,2026-02-02T00:00:00Z,2026-02-01T00:00:00Z\n"))
    assert bad == {
        "line 3, cta_link": "must be an http or https address, or a path that begins with /",
        "line 4, end_date": "must be later than start_date",
    }
    assert set(faults(await send(f"{columns}\n1,1,1,gone,,\n"))) == {"line 2, cta_link"}
    assert faults(await send("x_times,x_times,y_hours,z_duration_sec\n1,2,1,1\n")) == {"x_times": "is there twice"}

    async def send_list(*banners: dict[str, Any]) -> Reply:
        return await api("POST", "/admin/banners/bulk", json=banners)

    bad = faults(await send_list({"x_times": 1, "y_hours": 1, "z": 1}))
    assert set(bad) == {"[0].z", "[0].z_duration_sec"}
    good = {"x_times": 1, "y_hours": 1, "z_duration_sec": 1}
    assert set(faults(await send_list(good, {**good, "cta_link": "gone"}))) == {"[1].cta_link"}
    assert set(faults(await send_list({**good, "cta_link": "gone"}))) == {"[0].cta_link"}
    (await send("a", "application/xml")).problem(415, "UNSUPPORTED_MEDIA_TYPE")
    count: Any = (await api("GET", "/admin/banners")).json()
    assert len(count["rows"] if "rows" in count else count["items"]) == 3

    content = (await api("GET", "/schema/openapi.json")).json()["paths"]["/admin/banners/bulk"]["post"]["requestBody"]
    assert set(content["content"]) == {"application/json", "text/csv"}
