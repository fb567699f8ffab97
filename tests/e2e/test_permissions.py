"""Every operation of the OpenAPI document, as everybody: the verdict is the table's, and no tenant reaches another's.

The scope that an operation states in the document is the table's too. Ids of another tenant are real ones: they come
from objects that were made there by the operations themselves, from the document's own examples.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import aiohttp
import pytest

from handbill.adstats import examples
from handbill.fake_graph.model import AdAccount, Config, Number
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey, NewUser, Role
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.graph import graph
from tests.kit.http import Api, Reply
from tests.kit.permissions import PUBLIC, SIGNED_IN, USERS_ONLY, WRITE_KEY, key_allows, needed, role_allows
from tests.kit.processes import free_port, process
from tests.kit.waiting import eventually

PASSWORD = "correct horse battery"
_SCOPE = re.compile(r"Scope: `([^`]+)`\.")
_PARAMETER = re.compile(r"\{([a-z_]+)\}")
REQUIRED = {
    "from": "2026-06-01",
    "to": "2026-06-08",
    "day": "2026-06-01",
    "distinct_id": "zoe",
    "event": "see",
    "event_id": "no-such-event",
    "channel": "whatsapp",
    "address": "+5511987654321",
}
"""Queries that some operations cannot do without."""
TAKES_SECRET_KEYS = ("/banners", "/v1/decide")
"""Where a server may send its secret key instead of a write key. `/views` names the banner first: 404 without one."""
ROLES: tuple[Role, ...] = ("owner", "operator", "viewer")


OWN_NUMBERS = [str(300_000_000_000_000 + uuid4().int % 10**14) for _ in range(4)]
"""A number belongs to one connection of the installation, and tests of other files take the usual one."""
_unused_numbers = iter(OWN_NUMBERS)


class Operation(NamedTuple):
    method: str
    path: str
    document: dict[str, Any]

    @property
    def need(self) -> str:
        return needed(self.method, self.path)

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)

    @property
    def query(self) -> list[str]:
        return [found["name"] for found in self.document.get("parameters", []) if found["in"] == "query"]

    @property
    def body(self) -> Any:
        content = self.document.get("requestBody", {}).get("content", {})
        return content.get("application/json", {}).get("example")

    def url(self, values: dict[str, str]) -> str:
        return _PARAMETER.sub(lambda found: values.get(found[1]) or str(uuid4()), self.path)


class Caller(NamedTuple):
    name: str
    credential: str | None
    scopes: frozenset[str] = frozenset()
    role: Role | None = None

    def may(self, need: str, *, users_only: bool = False) -> bool:
        if need == PUBLIC:
            return True
        if users_only and self.role is None:
            return False
        if need == SIGNED_IN:
            return self.role is not None or self.name.startswith("key ")
        if self.role is not None:
            return role_allows(self.role, need)
        return self.name.startswith("key ") and key_allows(self.scopes, need)


@pytest.fixture
async def api(handbill_env: dict[str, str], engines: Engines, clickhouse: ClickHouse) -> AsyncIterator[Api]:
    await migrate_clickhouse(clickhouse)
    env = {
        **handbill_env,
        "HANDBILL_CLICKHOUSE__URL": engines.clickhouse_url,
        "HANDBILL_WORKER__PORT": str(free_port()),
    }
    account = AdAccount(examples.NEW_CONNECTION["external_id"], examples.NEW_CONNECTION["access_token"])
    numbers = tuple(Number(number) for number in OWN_NUMBERS)
    async with graph(Config(numbers=numbers, ad_accounts=(account,))) as fake:
        env |= {"HANDBILL_MESSAGING__GRAPH_URL": fake.url, "HANDBILL_ADSTATS__META_URL": fake.url}
        async with (
            process("api", env=env) as running,
            process("worker", env=env) as worker,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=16)) as client,
        ):
            await running.log(event="api-ready")
            await worker.log(event="worker-ready")
            yield Api(running, f"http://127.0.0.1:{env['HANDBILL_API__PORT']}", client)


@pytest.fixture
async def tenants(database: Database, redis: Redis) -> AsyncIterator[TenantService]:
    found = TenantService(database, redis, seal_key=b"s" * 32, login_step_s=0)
    yield found
    await found.stop()


async def operations(api: Api) -> list[Operation]:
    document = (await api("GET", "/schema/openapi.json")).json()
    return [
        Operation(method.upper(), path, operation)
        for path, item in sorted(document["paths"].items())
        for method, operation in item.items()
    ]


async def callers(tenants: TenantService, tenant: int, scopes: list[str]) -> list[Caller]:
    """Nobody, somebody unknown, a publishable key, each role, and a key for every scope and wildcard there is."""
    found = [
        Caller("nobody", None),
        Caller("unknown key", "hbs_" + "x" * 32),
        Caller("unknown session", "hbt_" + "x" * 32),
    ]
    write = await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="test")
    found.append(Caller("write key", write.key))
    for role in ROLES:
        email = f"{uuid4()}@example.com"
        await tenants.accounts.create_user(tenant, NewUser(email, PASSWORD, role=role), actor="test")
        session = await tenants.accounts.login(email, PASSWORD, address="192.0.2.1")
        found.append(Caller(role, session.token, role=role))
    for held in [[], ["*"], ["*:read"], ["*:write"], *([scope] for scope in scopes)]:
        made = await tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=held), actor="test")
        found.append(Caller(f"key {held}", made.key, frozenset(held)))
    return found


async def test_the_verdict_on_every_operation_for_everybody(api: Api, tenants: TenantService, tenant: int) -> None:
    all_operations = await operations(api)
    scopes = sorted({one.need for one in all_operations if ":" in one.need})
    assert len(all_operations) > 200
    assert len(scopes) > 25
    for one in all_operations:
        stated = _SCOPE.search(one.document.get("description", ""))
        assert (stated[1] if stated else None) == (one.need if ":" in one.need else None), (one.method, one.path)
    everybody = await callers(tenants, tenant, scopes)
    few = [caller for caller in everybody if caller.name in {"nobody", "unknown key", "write key", "key ['*']"}]
    asked = [
        (one, caller)
        for one in all_operations
        if one.path != "/auth/logout" or one.method != "POST"
        for caller in (few if one.need in (PUBLIC, WRITE_KEY) else everybody)
    ]
    wrong: list[str] = []

    async def ask(one: Operation, caller: Caller) -> None:
        reply = await send(api, one, caller)
        if problem := judge(one, caller, reply):
            wrong.append(f"{one.method} {one.path} as {caller.name}: {problem} {reply.body[:200]!r}")

    queue = iter(asked)
    await asyncio.gather(*(drain(queue, ask) for _ in range(12)))
    assert not wrong, "\n".join(wrong[:30])
    assert len(asked) > 5_000
    for caller in everybody:
        status = (await api("POST", "/auth/logout", key=caller.credential)).status
        assert status == (204 if caller.may(SIGNED_IN) else 401), caller.name


async def drain(queue: Iterator[Any], ask: Any) -> None:
    for one in queue:
        await ask(*one)


async def send(
    api: Api,
    one: Operation,
    caller: Caller,
    values: dict[str, str] | None = None,
    body: Any = None,
    params: dict[str, str] | None = None,
) -> Reply:
    headers = {} if caller.credential is None else {"Authorization": f"Bearer {caller.credential}"}
    if caller.name == "write key" and one.need == WRITE_KEY:
        headers = write_key_headers(one.path, caller.credential or "")
    options: dict[str, Any] = {} if one.method in ("GET", "DELETE") else {"json": {} if body is None else body}
    options["params"] = {name: REQUIRED[name] for name in one.query if name in REQUIRED} | (params or {})
    url = api.base + one.url(values or {})
    if caller.name == "write key" and one.need == WRITE_KEY and one.path.strip("/") in ("batch", "capture"):
        options["params"] = {"api_key": caller.credential or ""}
    async with api.client.request(one.method, url, headers=headers, allow_redirects=False, **options) as reply:
        streams = reply.content_type == "text/event-stream"
        return Reply(reply.status, b"" if streams else await reply.read(), reply.headers.copy())


def write_key_headers(path: str, key: str) -> dict[str, str]:
    """Where a client of this route puts the key: Segment's clients as a user name, the others in a header."""
    if path.startswith(("/v1/", "/beacon/")) and path not in ("/v1/decide", "/v1/events"):
        return {"Authorization": aiohttp.encode_basic_auth(key, "")}
    return {"X-Write-Key": key}


def judge(one: Operation, caller: Caller, reply: Reply) -> str | None:
    """What is wrong with the reply, if anything."""
    if reply.status >= 500 and one.path != "/ready":
        return f"answered {reply.status}"
    refused = reply.status in (401, 403)
    if one.need == WRITE_KEY:
        if caller.name == "write key" or (caller.name == "key ['*']" and one.path in TAKES_SECRET_KEYS):
            return "the key was refused" if refused else None
        early = 400 if one.path == "/i/v1/analytics/events" else 401  # it asks for headers of its clients first
        return None if reply.status in (401, early) else f"answered {reply.status}, not 401"
    if caller.may(one.need, users_only=f"{one.method} {one.path}" in USERS_ONLY):
        return f"was refused with {reply.status}" if refused else None
    expected = 403 if caller.role or caller.name.startswith("key ") else 401
    return None if reply.status == expected else f"answered {reply.status}, not {expected}"


NOT_MADE = {
    "letter_id": "test_jobs_faces makes dead letters of two tenants",
    "message_id": "test_single_messages_outcomes has a message of another tenant",
    "job_id": "test_jobs_faces has jobs of two tenants in one queue",
    "token": "a signed link, no id",
    "name": "a file of the demo shop or of the page of the API",
    "queue": "queues belong to nobody",
}
"""Parameters for which no object of the other tenant is made here, and why."""

_FREE_TEXT = frozenset({"external_id", "waba_id", "event_id", "request_id"})
"""Ids that callers choose, or that belong to a platform: they name nothing of ours."""

_LASTING = "/admin/messaging/campaigns"
"""Its example expired long ago."""


class Estate:
    """What a tenant owns: every id in every answer it got, by the name of the id and the resource that answered."""

    def __init__(self) -> None:
        self.ids: dict[str, dict[str, str]] = {}

    def collect(self, resource: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name.endswith("_id") and name not in _FREE_TEXT and isinstance(inner, str) and len(inner) > 8:
                    self.ids.setdefault(name, {})[inner] = resource
                self.collect(resource, inner)
        elif isinstance(value, list):
            for inner in value:
                self.collect(resource, inner)

    def of(self, resource: str) -> dict[str, str]:
        """One id of each name: the resource's own where it has one."""
        found: dict[str, str] = {}
        for name, ids in self.ids.items():
            own = [one for one, made_by in ids.items() if made_by == resource]
            found[name] = (own or [one for one, made_by in ids.items() if made_by != "ad-connections"] or list(ids))[0]
        return found

    def all_of(self, name: str) -> list[str]:
        return list(self.ids.get(name, {}))


def resource_of(one: Operation) -> str:
    return one.path.split("/")[2] if one.path.startswith("/admin/") else ""


async def build_estate(api: Api, all_operations: list[Operation], owner: Caller, write: str) -> Estate:
    """One of everything, from the examples in the document; what needs an earlier object gets its id."""
    estate = Estate()
    estate.ids["number"] = {next(_unused_numbers): "connections"}
    login = {"event": "$identify", "distinct_id": "zoe", "properties": {"$anon_distinct_id": "phone", "$set": {"a": 1}}}
    sent = {"api_key": write, "batch": [{"event": "see", "distinct_id": "phone", "properties": {}}, login]}
    assert (await api("POST", "/batch/", json=sent)).status == 200
    file = await api("POST", "/admin/imports?name=a.csv", key=owner.credential, data=b"phone\n+5511987654321\n")
    estate.collect("imports", file.json())

    async def joined() -> bool:
        reply = await api("GET", "/admin/people/find?distinct_id=phone", key=owner.credential)
        if reply.status != 200 or not reply.json()["edges"]:
            return False
        estate.collect("people", reply.json())
        return True

    await eventually(joined, what="the other tenant has a person of two ids")
    makes = [one for one in all_operations if one.method == "POST" and one.need.endswith(":write")]
    lists = [one for one in all_operations if one.method == "GET" and one.need.endswith(":read") and not one.parameters]
    for one in [*makes, *makes, *lists]:  # twice: the second time they find what the others made
        body = placed(one.body, estate.of(resource_of(one)))
        if one.path == _LASTING and body is not None:
            body.pop("expires_at", None)
        reply = await send(api, one, owner, estate.of(resource_of(one)), body)
        if reply.status in (200, 201, 202) and reply.headers["content-type"].startswith("application/json"):
            estate.collect(resource_of(one), reply.json())
    del estate.ids["number"]
    return estate


def placed(body: Any, ids: dict[str, str]) -> Any:
    """The example with these ids in the place of made-up ones."""
    if isinstance(body, list):
        return [placed(inner, ids) for inner in body]
    if not isinstance(body, dict):
        return body
    return {
        name: ids[name] if name in ids else [ids[name[:-1]]] if name[:-1] in ids else placed(inner, ids)
        for name, inner in body.items()
    }


def comparable(reply: Reply, ids: Iterable[str]) -> tuple[int, str]:
    """A reply without what may differ: the ids that were sent, the request's own, and times."""
    text = re.sub(r'"instance":"[^"]*"', "", reply.body.decode())
    for one in sorted(ids, key=len, reverse=True):
        text = text.replace(one, "<id>")
    return reply.status, re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z?", "<time>", text)


async def test_another_tenants_id_is_answered_like_an_unknown_one(
    api: Api, tenants: TenantService, make_tenant: Any
) -> None:
    """In the path, in the query and in the body of every operation; and no list shows one."""
    all_operations = [one for one in await operations(api) if one.path != "/v1/insights/tail"]

    async def owner(tenant: int) -> tuple[Caller, str]:
        secret = await tenants.create_key(tenant, NewKey(kind="secret", name="k", scopes=["*"]), actor="test")
        write = await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="test")
        return Caller("key", secret.key), write.key

    estate = await build_estate(api, all_operations, *await owner(await make_tenant()))
    names = {name for one in all_operations for name in one.parameters}
    assert names - set(estate.ids) == set(NOT_MADE)
    stranger, _ = await owner(await make_tenant())
    asked = 0
    for one in (one for one in all_operations if ":" in one.need):
        for foreign in variants(one, estate):
            unknown = {name: made_up(value) for name, value in foreign.items()}
            replies = []
            for ids in (foreign, unknown):
                params = {name: ids[name] for name in one.query if name in ids}
                replies.append(await send(api, one, stranger, ids, placed(one.body, ids), params))
            known, other = (comparable(reply, [*foreign.values(), *unknown.values()]) for reply in replies)
            if known[0] < 300:  # it names nothing of that kind: its own new ids and secrets differ
                known, other = (known[0], str("<id>" in known[1])), (other[0], str("<id>" in other[1]))
                assert known[1] == "False", (one.method, one.path, replies[0].body)
            assert known == other, (one.method, one.path, foreign)
            assert known[0] < 500 or known[0] == 503, (one.method, one.path, known)
            if one.method != "GET" and one.parameters and not set(one.parameters) & set(NOT_MADE):
                assert known[0] >= 400, (one.method, one.path, known)
            asked += 1
        if one.method == "GET" and not one.parameters:
            body = (await send(api, one, stranger)).body.decode(errors="replace")
            assert not [found for ids in estate.ids.values() for found in ids if found in body], one.path
    assert asked > 150


def variants(one: Operation, estate: Estate) -> Iterator[dict[str, str]]:
    """For every object of the other tenant that the operation could name, one set of ids."""
    named = {*one.parameters, *(name for name in one.query if name in estate.ids)}
    most = max((len(estate.all_of(name)) for name in {*named, *body_names(one.body, estate)}), default=0)
    for number in range(most):
        yield {name: ids[number % len(ids)] for name in estate.ids if (ids := estate.all_of(name))}


def body_names(body: Any, estate: Estate) -> set[str]:
    if isinstance(body, list):
        return {name for inner in body for name in body_names(inner, estate)}
    if not isinstance(body, dict):
        return set()
    own = {name.removesuffix("s") for name in body if name.removesuffix("s") in estate.ids}
    return own | {name for inner in body.values() for name in body_names(inner, estate)}


def made_up(like: str) -> str:
    """An id of the same shape that nobody has."""
    if len(like) == 36:
        return str(uuid4())
    return uuid4().hex if len(like) == 32 else "9" * len(like)
