"""What is too long for a decision is refused with its name, and what nobody knows is left out: never a 500."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from handbill.infra.redis import RedisError
from handbill.kit.errors import Invalid, Unauthorized
from tests.store.test_decide import Shop, shop

__all__ = ["shop"]
LONG = "x" * 60_000


async def listed(shop: Shop, query: str, **headers: str) -> Any:
    reply = await shop.serving.banners(shop.request(query=query, path="/banners", **headers))
    assert reply.status == 200
    return json.loads(reply.body)["banners"]


@pytest.mark.parametrize("zone", ["Mars/Olympus", "America", "../../etc/passwd", "x" * 100])
async def test_an_unknown_time_zone_is_taken_as_utc(shop: Shop, zone: str) -> None:
    always = await shop.banner(targeting={"time": {"from": "00:00", "to": "24:00"}})
    noon = await shop.banner(targeting={"time": {"from": "12:00", "to": "13:00"}})
    await shop.banner(targeting={"time": {"from": "13:00", "to": "12:00"}})
    assert await shop.ids(limit=5, context={"time_zone": zone}) == [[str(noon.banner_id), str(always.banner_id)]]


async def test_a_query_of_too_many_parameters_or_bytes_is_refused(shop: Shop) -> None:
    await shop.banner()
    many = "&".join(f"p{number}=1" for number in range(49))
    assert len(await listed(shop, f"user_id=ann&{many}")) == 1
    for bad in (f"user_id=ann&{many}&one=more", f"user_id=ann&p={LONG}"):
        with pytest.raises(Invalid) as refused:
            await listed(shop, bad)
        assert [fault.field for fault in refused.value.faults] == ["query"]
        with pytest.raises(Invalid):
            await shop.decide(query=f"explain=1&{bad}")


@pytest.mark.parametrize("name", ["user_id", "device_id", "session_id", "language", "country"])
async def test_a_parameter_that_is_too_long_is_refused_by_its_name(shop: Shop, name: str) -> None:
    await shop.banner()
    assert len(await listed(shop, urlencode({"user_id": "ann", name: "é" * 200}))) == 1
    with pytest.raises(Invalid) as refused:
        await listed(shop, urlencode({"user_id": "ann", name: "x" * 201}))
    assert [fault.field for fault in refused.value.faults] == [name]
    assert not any("x" * 201 in str(key) for key in shop.show.decider._last_seen._newer)


async def test_long_values_of_a_context_are_refused_and_long_headers_are_cut(shop: Shop) -> None:
    banner = await shop.banner(targeting={"not": {"custom": {"key": "plan", "op": "eq", "value": "x"}}})
    cases: list[tuple[str, dict[str, Any]]] = [
        ("custom[...]", {"custom": {"plan": "x" * 2_001}}),
        ("custom", {"custom": {"x" * 101: "a"}}),
        ("custom", {"custom": {f"k{number}": "a" for number in range(51)}}),
        ("region", {"region": "x" * 201}),
        ("user_agent", {"user_agent": "x" * 1_001}),
        ("url", {"url": "x" * 2_001}),
        ("time_zone", {"time_zone": "x" * 101}),
    ]
    for field, context in cases:
        with pytest.raises(Invalid) as refused:
            await shop.decide(context=context)
        assert [fault.field for fault in refused.value.faults] == [f"context.{field}"]
    assert await shop.ids(context={"custom": {"plan": "x" * 2_000}}) == [[str(banner.banner_id)]]
    assert await listed(shop, "user_id=ann", user_agent=LONG, accept_language=LONG) == [str(banner.banner_id)]


async def test_a_token_that_is_too_long_is_refused_before_it_is_hashed(shop: Shop) -> None:
    with pytest.raises(Unauthorized, match="longer than 8192"):
        await shop.decide(None, headers={"authorization": f"Bearer {LONG}"})
    assert len(shop.loop.tenants.directory._tokens) == 0


async def test_an_error_of_redis_is_an_empty_list(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    banner = await shop.banner()

    async def wrong(*_: object) -> None:
        raise RedisError("WRONGTYPE", "Operation against a key holding the wrong kind of value")

    monkeypatch.setattr(shop.loop.caps, "look", wrong)
    assert await listed(shop, "user_id=ann") == []
    monkeypatch.undo()
    assert await listed(shop, "user_id=ann") == [str(banner.banner_id)]
    monkeypatch.setattr(shop.loop.caps, "look", wrong)
    assert await listed(shop, "user_id=ann") == [str(banner.banner_id)], "as it was seen last"
