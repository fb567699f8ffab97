"""Decisions a second over HTTP: cached JWT, caps, twenty targeting rules a banner, signed tokens, users with history.

The limit is the empty reply of the same server, by the same generator, in the same run.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt as pyjwt

from benches._bench import Options, Result, alternating, main, require, rounded, say
from benches._load import Report, Request, client_address, load
from handbill.banners.model import NewBanner, NewPlacement
from handbill.caps.service import moves_of
from handbill.events.model import key
from handbill.settings import load as settings_of
from handbill.tenants.model import JwtRules, NewKey, NewTenant, SettingsPatch, TenantPatch
from handbill.wiring.house import House, build
from tests.kit.stack import Stack, stack

BAR = "ratio >= 0.40 with 10 banners; 1,000 banners (5 % match) >= half of that; p99 < 50 ms at 80 % of top"
SECRET = "a-secret-of-the-bench-with-32-characters"
COUNTRIES = [f"{a}{b}" for a in "ABCDE" for b in "WXYZ"]
AGENT = (
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Mobile Safari/537.36"
)
SETTINGS = {
    "HANDBILL_API__TRUSTED_PROXIES": "127.0.0.1/32",
    "HANDBILL_BANNERS__DECISIONS_PER_MINUTE": "1000000",  # counted as ever, but a few thousand users ask for many
}
ASKED = 5_000
"""Users who ask, of those who have a history."""


def rule(number: int, share: int) -> dict[str, Any]:
    """Twenty conditions. One country in twenty fits where `share` is 1, all where it is 20."""
    first = number % len(COUNTRIES)
    countries = [COUNTRIES[(first + step) % len(COUNTRIES)] for step in range(share)]
    custom = [
        {"key": "plan", "op": "in", "value": ["free", "team", f"p{number}"]},
        {"key": "visits", "op": "gte", "value": number % 3},
        {"key": "visits", "op": "lt", "value": 1_000 + number},
        {"key": "cart", "op": "eq", "value": True},
        {"key": "tags", "op": "contains", "value": "shoes"},
        {"key": "segment", "op": "starts_with", "value": "s"},
        {"key": "app", "op": "exists"},
    ]
    return {
        "country": countries,
        "device": ["mobile", "tablet"],
        "os": ["android", "ios"],
        "browser": ["chrome", "safari", "firefox"],
        "language": ["en", "nl"],
        "url": "https://shop.example.com/*",
        "not": {"referrer": {"prefix": "https://spam.example"}},
        "weekday": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        "time": {"from": "00:00", "to": "24:00"},
        "consent": ["ads"],
        "all": [
            *({"custom": each} for each in custom),
            {"not": {"custom": {"key": "plan", "op": "eq", "value": f"x{number}"}}},
            {"any": [{"device": "mobile"}, {"country": countries}]},
        ],
        "percent": 100,
    }


async def furnish(house: House, banners: int, share: int, users: int) -> list[Request]:
    """A tenant with banners, users with views of them, and the requests of those who ask."""
    made = await house.tenants.create_tenant(NewTenant(name="Bench", slug=f"bench-{banners}"), actor="bench")
    tenant = made.tenant_id
    write = await house.tenants.create_key(tenant, NewKey(kind="write", name="bench"), actor="bench")
    patch = TenantPatch(settings=SettingsPatch(jwt=JwtRules(kind="hs256"), jwt_secret=SECRET))
    await house.tenants.change_tenant(tenant, patch, actor="bench")
    await house.banners.editor.create_placement(tenant, NewPlacement(name="Home", slug="home"), actor="bench")
    news = [
        NewBanner(
            x_times=5,
            y_hours=24,
            z_duration_sec=3,
            title=f"Banner {number}",
            image_url="https://cdn.example.com/a.png",
            cta_link="https://shop.example.com/sale",
            targeting=rule(number, share),
            priority=number % 7,
        )
        for number in range(banners)
    ]
    for start in range(0, banners, 500):
        await house.banners.editor.create_banners(tenant, news[start : start + 500], actor="bench")
    await house.catalogue.refresh()
    await _history(house, tenant, users)
    expires = int(time.time()) + 86_400
    body = {
        "placements": ["home"],
        "context": {
            "url": "https://shop.example.com/p/1", "referrer": "https://search.example/", "country": COUNTRIES[3],
            "language": "en-GB", "time_zone": "Europe/Amsterdam", "user_agent": AGENT, "consent": ["ads"],
            "custom": {"plan": "team", "visits": 7, "cart": True, "tags": "red shoes", "segment": "s1", "app": "web"},
        },
    }  # fmt: skip
    encoded = json.dumps(body).encode()
    return [
        Request(
            "POST",
            "/v1/decide",
            {
                "X-Write-Key": write.key,
                "Authorization": "Bearer " + pyjwt.encode({"sub": f"user-{n}", "exp": expires}, SECRET, "HS256"),
                "Content-Type": "application/json",
                "X-Forwarded-For": client_address(n),
            },
            encoded,
        )
        for n in range(min(users, ASKED))
    ]


async def _history(house: House, tenant: int, users: int) -> None:
    """Three views each, of the banners that rank first, so that a decision looks past them."""
    numbers = [banner.id for banner in house.catalogue.tenant(tenant).banners][:3]
    now = house.clock.now_ms()
    commands: list[list[Any]] = []
    for n in range(users):
        moves = [
            move
            for banner in numbers
            for move in moves_of(key("view", f"{n}:{banner}"), now - 60_000 * (n % 60 + 1), banner)
        ]
        commands += house.caps.move_commands(tenant, f"user-{n}", moves)
        if len(commands) >= 1_000:
            await house.redis.many(commands)
            commands = []
    if commands:
        await house.redis.many(commands)


@contextlib.asynccontextmanager
async def furnished(built: Stack) -> AsyncIterator[House]:
    house = build(settings_of(built.env()))
    await house.start()
    try:
        await house.caps.ensure("bench")
        yield house
    finally:
        await house.stop()


async def body(options: Options) -> Result:
    users, seconds = options.scaled(100_000, 5_000), options.scaled(8, 3)
    ping = [Request("GET", "/ping", {"X-Forwarded-For": client_address(n)}) for n in range(1_000)]
    async with stack(settings=SETTINGS) as built:
        async with furnished(built) as house:
            few = await furnish(house, 10, len(COUNTRIES), users)
            many = await furnish(house, 1_000, 1, users)
        async with built.api() as port:
            for requests in (few, many):
                await checked(port, requests)

            async def rate(requests: list[Request]) -> float:
                report = await load(port, requests, seconds=seconds)
                good(report)
                say(f"{requests[0].path}: {report.rate:,.0f}/s, p99 {report.p99_ms:g} ms")
                return report.rate

            ten = await alternating(lambda: rate(few), lambda: rate(ping))
            thousand = await alternating(lambda: rate(many), lambda: rate(ping))
            paced = await load(port, few, seconds=seconds, rate=ten.value * 0.8)
            good(paced)
    detail = {
        "banners": 10,
        "thousand": rounded(thousand.value),
        "thousand_ratio": rounded(thousand.value / thousand.limit),
        "thousand_of_ten": rounded((thousand.value / thousand.limit) / (ten.value / ten.limit)),
        "p99_ms_at_80_percent": paced.p99_ms,
        "users_with_history": users,
        "users_asking": min(users, ASKED),
        "conditions_per_banner": 20,
        "mix": "country, device, os, browser, language, url, referrer, weekday, time, consent, 8 custom, any, percent",
        "body_bytes": len(few[0].body),
        "generator": paced.generator,
        **ten.detail(),
    }
    return Result(ten.value, "decisions/s", ten.limit, detail)


async def checked(port: int, requests: list[Request]) -> None:
    """The answer must be a banner with a token, before its speed means anything; this also fills the JWT memory."""
    report = await load(port, requests, count=len(requests), seconds=60, warm=0)
    good(report)
    require('"token":"' in report.sample, f"no banner was decided: {report.sample[:300]}")


def good(report: Report) -> None:
    require(report.failed == 0, f"{report.failed} replies were no success: {dict(report.statuses)} {report.sample}")


if __name__ == "__main__":
    main("decide", body)
