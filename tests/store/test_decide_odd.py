"""Whatever a request says, and whatever Redis holds or refuses: a list, or a fault of the request; never a 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handbill.banners.show import ShowPolicy
from handbill.caps.history import History
from handbill.infra.postgres import Database, PostgresError
from handbill.infra.redis import Redis
from handbill.infra.redis.errors import from_reply
from handbill.kit.errors import Broken, Busy, HandbillError
from handbill.kit.fast import FastReply, FastRequest
from handbill.kit.telemetry import metrics
from tests.kit.clocks import FakeClock
from tests.kit.loop import loop
from tests.store.test_decide import KEY, Shop, make_shop


@pytest.fixture
async def shop(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Shop]:
    """With a limit of decisions that nobody reaches, so that Redis is asked for it."""
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as made:
        yield await make_shop(made, tenant, clock, ShowPolicy(token_key=KEY, decisions_per_minute=10_000))


numbers = st.sampled_from([
    "0", "-0", "-0.0", "1e308", "-1e308", "1e400", "5e-324", "123456789012345678901234567890", "9223372036854775808",
    "-9223372036854775809", "NaN", "Infinity", "01", "1.", "1.5", "true", "false", "null",
])  # fmt: skip
texts = st.one_of(
    st.sampled_from([
        "\ud800", "\udfff\ud800", "\0", "", "x" * 201, "x" * 2_001, "../../etc/localtime", "Mars/Olympus", "America",
        "Europe/Amsterdam", "posixrules", "localtime", "NL", "nl", "zz", "https://shop.example/", "https://[::1",
        "a\nb", "home", "0190163d-8694-739b-aea5-966c26f8ad91", "Mozilla/5.0 (iPhone)", "plan", "\u202e",
    ]),
    st.text(max_size=20),
).map(json.dumps)  # fmt: skip
flat = numbers | texts
values = st.recursive(
    flat,
    lambda inside: st.one_of(
        st.lists(inside, max_size=4).map(lambda parts: f"[{','.join(parts)}]"),
        st.dictionaries(texts, inside, max_size=4).map(
            lambda members: "{" + ",".join(f"{name}:{value}" for name, value in members.items()) + "}"
        ),
    ),
    max_leaves=8,
)
CONTEXT = ("url", "referrer", "country", "region", "language", "time_zone", "user_agent", "custom", "consent")
FIELDS = ("user_id", "session_id", "device_id", "placements", "limit")


def written(members: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}"


custom = st.dictionaries(st.sampled_from(["plan", "age", "n"]), flat, max_size=3).map(written)
contexts = st.fixed_dictionaries(
    {}, optional={name: (custom | values) if name == "custom" else (texts | values) for name in CONTEXT}
).map(written)
bodies = st.fixed_dictionaries(
    {"user_id": st.one_of(texts, st.just('"ann"'))},
    optional={**dict.fromkeys(FIELDS[1:], values), "context": contexts | values, "odd": values},
).map(written)
likely = st.fixed_dictionaries(
    {"user_id": st.just('"ann"'), "context": contexts}, optional={"session_id": texts, "device_id": texts}
).map(written)

RULES: list[dict[str, Any]] = [
    {"country": "NL"}, {"language": "nl"}, {"region": "NH"}, {"url": {"glob": "*shop*"}}, {"referrer": {"regex": "a+"}},
    {"url": {"prefix": "https://shop"}}, {"time": {"from": "00:00", "to": "24:00"}}, {"weekday": ["mon", "thu"]},
    {"device": "mobile"}, {"os": "ios"}, {"browser": "safari"}, {"consent": "ads"}, {"percent": 50},
    *({"custom": {"key": key, "op": op, "value": value}} for key, op, value in (
        ("plan", "eq", "paid"), ("plan", "ne", True), ("age", "gt", 3), ("age", "lte", 1e308), ("n", "contains", "a"),
        ("n", "starts_with", "\u00e9"), ("age", "in", [1, 2.5, "x", False]), ("n", "not_in", ["a"]),
    )),
    {"not": {"any": [{"country": ["DE", "FR"]}, {"custom": {"key": "age", "op": "lt", "value": 0}}]}},
]  # fmt: skip


async def crowded(shop: Shop) -> set[str]:
    """A banner for every kind of rule, and strict ones; the ids of these."""
    for rule in RULES:
        await shop.banner(targeting=rule)
    weekdays = {"weekday": ["mon", "tue", "wed", "thu", "fri"]}
    strict = [await shop.banner(cap_mode="strict", x_times=1_000, targeting=rule) for rule in (None, weekdays)]
    return {str(banner.banner_id) for banner in strict}


async def answered(shop: Shop, request: FastRequest) -> FastReply | None:
    """The answer, or None where the request is at fault."""
    handler = shop.serving.banners if request.path == "/banners" else shop.serving.decide
    shop.clock.advance(seconds=1)
    try:
        reply = await handler(request)
    except HandbillError as error:
        if not 400 <= error.status < 500:
            raise
        return None
    assert reply.status == 200
    json.loads(reply.body)
    return reply


async def test_no_context_breaks_a_decision(shop: Shop) -> None:
    await crowded(shop)
    running, good = asyncio.get_running_loop(), 0

    def ask(request: FastRequest) -> FastReply | None:
        return asyncio.run_coroutine_threadsafe(answered(shop, request), running).result(60)

    @settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(likely, bodies), st.one_of(st.just("Mozilla/5.0"), texts), st.sampled_from(["", "explain=1"]))
    def decides(body: str, agent: str, query: str) -> None:
        nonlocal good
        raw = {b"x-write-key": shop.write_key.encode(), b"user-agent": agent.encode("utf-8", "replace")}
        if query:
            raw[b"authorization"] = f"Bearer {shop.secret_key}".encode()
        sent = body.encode("utf-8", "surrogatepass")
        good += ask(FastRequest("POST", "/v1/decide", query.encode(), raw, sent, "1.2.3.4", "r")) is not None

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(
        st.sampled_from(["user_id", "country", "language", "session_id", "device_id", "placement"]),
        st.text(max_size=30),
    ))  # fmt: skip
    def lists(query: dict[str, str]) -> None:
        nonlocal good
        text = "&".join(f"{name}={quote(value, errors='surrogatepass')}" for name, value in query.items())
        raw = {b"x-write-key": shop.write_key.encode()}
        good += ask(FastRequest("GET", "/banners", text.encode(), raw, b"", "1.2.3.4", "r")) is not None

    await asyncio.to_thread(decides)
    await asyncio.to_thread(lists)
    assert good > 20


@pytest.mark.parametrize("reply", [
    "WRONGTYPE no", "OOM no", "READONLY no", "NOSCRIPT no", "ERR no", "MISCONF no", "NOPERM no", "LOADING no",
    "ERR Error running script (call to f_79): @user_script:10: @user_script: 10: -OOM command not allowed",
])  # fmt: skip
async def test_no_command_that_redis_refuses_breaks_a_decision(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    strict = await crowded(shop)
    seen = await shop.banner(x_times=1)
    await shop.seen(seen)
    await shop.loop.consumer()
    await shop.loop.drained()
    wanted = await shop.ids("ann", limit=20, context={"country": "NL"})
    assert str(seen.banner_id) not in wanted[0]
    whole = type(shop.loop.redis)
    many, call = whole.many, whole.call

    async def refused(*_: Any, **__: Any) -> Any:
        raise from_reply(reply)

    for names in (("many",), ("call",), ("many", "call")):
        for name in names:
            monkeypatch.setattr(whole, name, refused)
        for turn in range(15):  # more than pass without a question to Redis
            (shown,) = await shop.ids("ann", limit=20, context={"country": "NL"})
            assert set(wanted[0]) - set(shown) <= strict, "only a strict limit needs Redis"
            assert set(shown) <= set(wanted[0]), "PostgreSQL knows what was seen"
            stranger = f"{'-'.join(names)}{turn}"  # this process remembers nothing of them
            assert (await shop.ids(stranger, limit=20, context={"country": "NL"}))[0], "PostgreSQL answers"
        assert (await shop.serving.banners(shop.request(query="user_id=ann", path="/banners"))).status == 200
        monkeypatch.setattr(whole, "many", many)
        monkeypatch.setattr(whole, "call", call)
    assert await shop.ids("ann", limit=20, context={"country": "NL"}) == wanted


@pytest.mark.parametrize(
    "error",
    [PostgresError("no", sqlstate="42501", constraint=None, statement="caps_of"), Broken("no login"), Busy("away")],
)
async def test_where_postgres_refuses_too_nothing_is_shown(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await shop.banner()

    async def refused(*_: Any, **__: Any) -> Any:
        raise from_reply("NOPERM refused")

    async def refused_too(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(type(shop.loop.redis), "call", refused)
    monkeypatch.setattr(type(shop.loop.redis), "many", refused)
    monkeypatch.setattr(History, "of", refused_too)
    before = metrics.DECIDE_FALLBACK.labels("empty")._value.get()
    assert await shop.ids("ann") == [[]]
    assert metrics.DECIDE_FALLBACK.labels("empty")._value.get() == before + 1


@pytest.mark.parametrize("user", ["a{b}", "{}", "\u202e:*", "x" * 200])
async def test_no_users_id_breaks_the_limit_of_decisions(shop: Shop, user: str) -> None:
    banner = await shop.banner()
    for _ in range(30):  # more than pass without a question to Redis
        assert await shop.ids(user) == [[str(banner.banner_id)]]


async def test_values_of_other_programs_in_redis_break_no_decision(shop: Shop) -> None:
    """Each key that a decision uses holds a list, or bytes that are no value of ours."""
    await crowded(shop)
    seen = await shop.banner(x_times=50)
    await shop.banner(targeting={"person.plan": "paid"})
    redis = shop.loop.redis
    prefix = str(shop.loop.keys.tagged("x", "y")).partition(":")[0]
    await shop.seen(seen)
    for _ in range(15):
        await shop.ids(limit=20)
    keys = [key for key in await redis.call("KEYS", f"{prefix}:*") if b"mark" not in key and b":journal" not in key]
    kinds = {key.split(b":")[1] for key in keys}
    assert {b"c", b"throttle"} <= kinds, kinds
    for garbage in (("RPUSH", "x"), ("SET", "\xff\x01 no value"), ("HSET", "a", "b")):
        for key in keys:
            if key.split(b":")[1] in (b"c", b"throttle", b"person"):
                await redis.call("DEL", key)
                await redis.call(garbage[0], key, *garbage[1:])
        for _ in range(15):
            await shop.ids(limit=20)
