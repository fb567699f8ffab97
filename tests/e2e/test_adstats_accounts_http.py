"""Connecting an ad account at the stand-in: over HTTP and by the command line, with everything that can be refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from handbill.fake_graph.app import FakeGraph
from handbill.fake_graph.model import AdAccount, Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.http import Api
from tests.kit.processes import HANDBILL, environment, handbill, process

PATH = "/admin/ad-connections"
TOKEN = "EAABsecretofthisaccount"


async def command(env: dict[str, str], *args: str, token: str = "") -> tuple[int, str]:
    """Run `handbill adstats ARGS --json` with the token as its standard input: exit code, and what was printed."""
    child = await asyncio.create_subprocess_exec(
        *HANDBILL, "adstats", *args, "--json", env=environment(env), stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await child.communicate(f"{token}\n".encode())
    return child.returncode or 0, (out or error).decode()


def account(**fields: str) -> dict[str, str]:
    return {"provider": "META", "external_id": "1000", "name": "Shop", "access_token": TOKEN, **fields}


async def test_accounts_are_read_refused_corrected_and_made_again(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int
) -> None:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    key = (await tenants.create_key(tenant, NewKey("secret", "all", scopes=["*"]), actor="test")).key
    await tenants.stop()
    graph = FakeGraph(Config(ad_accounts=(AdAccount("1000", TOKEN, "USD", "America/New_York"),)))
    await graph.start()
    env = {**handbill_env, "HANDBILL_ADSTATS__META_URL": graph.url}
    try:
        async with process("api", env=env) as running, aiohttp.ClientSession() as client:
            await running.log(event="api-ready")
            api = Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)
            made = await connected(api, key)
            await by_command_line(env, str(tenant), made)
            await graph.stop()
            await unreachable(api, key, made)
            assert TOKEN not in running.output
    finally:
        await graph.stop()


async def connected(api: Api, key: str) -> str:
    """Over HTTP; the id of the connection that is left."""
    (await api("POST", PATH, key=key, json=account(access_token="wrong"))).problem(409, "AD_TOKEN_DEAD")
    (await api("POST", PATH, key=key, json=account(external_id="3000"))).problem(409, "AD_ACCOUNT_UNREADABLE")
    assert (await api("GET", PATH, key=key)).json()["items"] == []
    reply = await api("POST", PATH, key=key, json=account(currency="EUR", time_zone="Europe/Paris"))
    assert reply.status == 201, reply.body
    made: dict[str, Any] = reply.json()
    assert (made["currency"], made["time_zone"]) == ("USD", "America/New_York")
    assert made["verified_at"]
    own = f"{PATH}/{made['connection_id']}"
    (await api("PATCH", own, key=key, json={"currency": "EUR"})).problem(409, "AD_ACCOUNT_DIFFERS")
    (await api("PATCH", own, key=key, json={"currency": "euro"})).problem(400, "INVALID")
    (await api("PATCH", own, key=key, json={"time_zone": "Mars/Olympus"})).problem(400, "INVALID")
    assert (await api("PATCH", own, key=key, json={"currency": "USD"})).json()["verified_at"] >= made["verified_at"]
    (await api("POST", PATH, key=key, json=account())).problem(409, "AD_ACCOUNT_TAKEN")
    assert (await api("POST", f"{own}/fetch", key=key)).json()["created"] == 9
    assert (await api("DELETE", own, key=key)).status == 204
    again = (await api("POST", PATH, key=key, json=account())).json()
    assert (again["connection_id"], again["is_active"]) == (made["connection_id"], True)
    assert (await api("POST", f"{own}/fetch", key=key)).json() == {
        "created": 0, "changed": 0, "unchanged": 9, "refused": [],
    }  # fmt: skip
    return str(made["connection_id"])


async def by_command_line(env: dict[str, str], tenant: str, made: str) -> None:
    named = ("--account", "1000", "--name", "Shop")
    taken, wrong, mock, bare = await asyncio.gather(
        command(env, "connect", tenant, *named, token=TOKEN),
        command(env, "connect", tenant, "--account", "3000", "--name", "Shop", token=TOKEN),
        command(env, "connect", tenant, *named, "--provider", "MOCK", "--currency", "SEK"),
        command(env, "connect", tenant, "--account", "7", "--name", "Shop", "--provider", "MOCK"),
    )
    assert [one[0] for one in (taken, wrong, mock, bare)] == [1, 1, 0, 2], (taken, wrong, mock, bare)
    codes = [json.loads(one[1])["error"]["code"] for one in (taken, wrong, bare)]
    assert codes == ["AD_ACCOUNT_TAKEN", "AD_ACCOUNT_UNREADABLE", "INVALID"]
    mocked = json.loads(mock[1])
    assert (mocked["currency"], mocked["time_zone"]) == ("SEK", "UTC")
    corrected = await command(
        env, "correct", tenant, mocked["connection_id"], "--currency", "NOK", "--zone", "Asia/Tokyo"
    )
    assert json.loads(corrected[1])["time_zone"] == "Asia/Tokyo", corrected
    differs = await command(env, "correct", tenant, made, "--currency", "NOK")
    assert json.loads(differs[1])["error"]["code"] == "AD_ACCOUNT_DIFFERS"
    assert (await command(env, "disconnect", tenant, made))[0] == 0
    back = json.loads((await command(env, "connect", tenant, *named, token=TOKEN))[1])
    assert (back["connection_id"], back["currency"]) == (made, "USD")
    code, listed = await handbill("adstats", "accounts", tenant, env=env)
    assert code == 0
    assert all(text in listed for text in (made, mocked["connection_id"], "NOK", "Asia/Tokyo", "USD"))


async def unreachable(api: Api, key: str, made: str) -> None:
    other = account(external_id="1001")
    (await api("POST", PATH, key=key, json=other)).problem(503, "AD_PLATFORM")
    reply = await api("POST", PATH, key=key, json={**other, "currency": "EUR", "time_zone": "Asia/Tokyo"})
    assert reply.status == 201, reply.body
    unverified = reply.json()
    assert (unverified["currency"], unverified["time_zone"], unverified["verified_at"]) == ("EUR", "Asia/Tokyo", None)
    changed = (await api("PATCH", f"{PATH}/{made}", key=key, json={"currency": "CHF"})).json()
    assert (changed["currency"], changed["verified_at"]) == ("CHF", None)
