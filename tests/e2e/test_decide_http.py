"""Deciding over HTTP, with a real process: the answer, the redirect, the public looks, and Redis gone."""

from __future__ import annotations

import json

import aiohttp

from handbill.banners.model import NewBanner, NewPlacement
from handbill.settings import load as settings_of
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import build
from tests.conftest import OwnEngine
from tests.kit.stack import stack
from tests.kit.waiting import eventually


async def test_decide_follow_and_look(own_redis: OwnEngine) -> None:
    redis = await own_redis()
    async with stack(redis=False) as built:
        built.redis_url = redis.url
        house = build(settings_of(built.env()))
        await house.start()
        try:
            tenant = (await house.tenants.create_tenant(NewTenant(name="Shop", slug="shop"), actor="t")).tenant_id
            key = (await house.tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="t")).key
            admin = NewKey(kind="secret", name="s", scopes=["banners:write"])
            secret = (await house.tenants.create_key(tenant, admin, actor="t")).key
            await house.banners.editor.create_placement(tenant, NewPlacement(name="Home", slug="home"), actor="t")
            new = NewBanner(x_times=2, y_hours=24, z_duration_sec=3, title="Sale", cta_link="https://shop.example/x")
            banner = await house.banners.editor.create_banner(tenant, new, actor="t")
        finally:
            await house.stop()
        headers = {"X-Write-Key": key, "Origin": "https://shop.example"}
        async with built.api() as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as web:

            async def decide(user: str) -> list[dict[str, str]]:
                body = {"user_id": user, "placements": ["home"]}
                async with web.post("/v1/decide", json=body, headers=headers) as reply:
                    assert reply.status == 200, await reply.text()
                    assert reply.headers["access-control-allow-origin"]
                    assert reply.headers["cache-control"] == "no-store"
                    found: list[dict[str, str]] = json.loads(await reply.text())["decisions"][0]["banners"]
                    return found

            (shown,) = await decide("ann")
            assert shown["banner_id"] == str(banner.banner_id)

            async with web.get(shown["click_url"], allow_redirects=False) as reply:
                assert (reply.status, reply.headers["location"]) == (302, "https://shop.example/x")
                assert reply.headers["cache-control"] == "no-store"
            async with web.get(f"/r/{shown['token'][:-4]}AAAA", allow_redirects=False) as reply:
                assert reply.status == 404
                assert "location" not in reply.headers

            async with web.get(f"/banner/{banner.banner_id}") as reply:
                assert reply.status == 200
                looks, tag = await reply.json(), reply.headers["etag"]
                assert (looks["title"], looks["cta_link"]) == ("Sale", "https://shop.example/x")
                assert "max-age=60" in reply.headers["cache-control"]
            async with web.get(f"/banner/{banner.banner_id}", headers={"If-None-Match": tag}) as reply:
                assert reply.status == 304
                assert await reply.read() == b""

            for _ in range(5):  # each is asked for before the catalogue in memory was refreshed
                body = {"x_times": 2, "y_hours": 24, "z_duration_sec": 3, "title": "New"}
                as_admin = {"Authorization": f"Bearer {secret}"}
                async with web.post("/admin/banners", json=body, headers=as_admin) as reply:
                    assert reply.status == 201
                    made = (await reply.json())["banner_id"]
                async with web.get(f"/banner/{made}") as reply:
                    assert reply.status == 200
            async with web.patch(f"/admin/banners/{made}", json={"is_active": False}, headers=as_admin) as reply:
                assert reply.status == 200

            async def is_gone() -> bool:
                async with web.get(f"/banner/{made}", headers={"If-None-Match": '"v1"'}) as reply:
                    return (reply.status, reply.headers.get("cache-control")) == (404, "no-store")

            await eventually(is_gone, what="a banner that was switched off")

            await redis.stop()

            async def answered() -> bool:
                return bool(await decide("ann"))

            await eventually(answered, what="decisions from PostgreSQL while Redis is away")
