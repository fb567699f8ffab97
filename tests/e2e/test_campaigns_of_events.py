"""Events without a campaign count for their banner's, whichever way they come in, and for as long as they may come."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from handbill.banners.tasks import QUEUE, RECORD_CLICK, RECORD_IMPRESSION
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.service import Outbox
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.http import Api
from tests.kit.processes import handbill, process
from tests.kit.waiting import eventually

SEAL = "a seal key for tests"
EVENTS = "/api/banners/events"
TARGET = "https://shop.example.com"
FIGURES = ("impressions", "clicks", "views")
NUMBERS = Sql(
    "select b.id as banner, p.id as placement from banners.banners b, banners.placements p"
    " where b.public_id = $1 and p.public_id = $2",
    "test_numbers",
)
Ledger = Counter[tuple[str, str]]
"""How many impressions, clicks and views were sent, by campaign; "" is none."""


@pytest.fixture
async def api(handbill_env: dict[str, str]) -> AsyncIterator[Api]:
    handbill_env["HANDBILL_TENANTS__SEAL_KEY"] = SEAL
    async with (
        process("api", env=handbill_env) as running,
        process("worker", env=handbill_env) as worker,
        aiohttp.ClientSession() as client,
    ):
        await running.log(event="api-ready")
        await worker.log(event="worker-ready")
        yield Api(running, f"http://127.0.0.1:{handbill_env['HANDBILL_API__PORT']}", client)


class Shop:
    """A tenant with its keys, a campaign and a ledger of what was sent for it."""

    def __init__(self, api: Api, tenant: int, write_key: str, secret_key: str) -> None:
        self.api, self.tenant, self.write_key, self.secret_key = api, tenant, write_key, secret_key
        self.ledger: Ledger = Counter()

    async def admin(self, method: str, path: str, **body: Any) -> Any:
        reply = await self.api(method, f"/admin/{path}", key=self.secret_key, json=body or None)
        assert reply.status in (200, 201, 204), reply.body
        return reply.json() if reply.body else None

    async def campaign(self) -> str:
        return str((await self.admin("POST", "campaigns", name=uuid.uuid4().hex))["campaign_id"])

    async def placement(self) -> str:
        slug = f"p-{uuid.uuid4().hex[:8]}"
        return str((await self.admin("POST", "placements", name=slug, slug=slug))["placement_id"])

    async def banner(self, campaign: str | None) -> str:
        body = {"x_times": 1000, "y_hours": 24, "z_duration_sec": 3, "cta_link": TARGET, "campaign_id": campaign}
        return str((await self.admin("POST", "banners", **body))["banner_id"])

    def sent(self, campaign: str | None, what: str, number: int = 1) -> None:
        self.ledger[campaign or "", what] += number

    async def send(self, path: str, body: Any) -> None:
        reply = await self.api("POST", path, json=body, headers={"X-Write-Key": self.write_key})
        assert reply.status == 202, reply.body

    async def every_http_way(self, banner: str, placement: str, campaign: str | None, *, follows: str = "") -> None:
        """One event of each kind through each route. `campaign` is the banner's."""

        def event(**more: Any) -> dict[str, Any]:
            ids = {"bannerPublicId": banner, "placementPublicId": placement, "correlationId": uuid.uuid4().hex}
            return {**ids, **more}

        def view() -> dict[str, Any]:
            named = {"banner_id": banner, "placement_id": placement, "user_id": "ada"}
            return {**named, "event_id": uuid.uuid4().hex, "view_duration_ms": 5000}

        await self.send(f"{EVENTS}/impression", event())
        await self.send(f"{EVENTS}/impression/batch", {"events": [event(), event(campaignPublicId=None)]})
        await self.send(f"{EVENTS}/click", event(destinationUrl=TARGET))
        await self.send(f"{EVENTS}/click/batch", {"events": [event(destinationUrl=TARGET) for _ in range(2)]})
        await self.send("/views", view())
        await self.send("/views/batch", {"events": [view(), view()]})
        self.sent(campaign, "impressions", 3)
        self.sent(campaign, "clicks", 3)
        self.sent(campaign, "views", 3)
        if follows:
            reply = await self.api("GET", follows, allow_redirects=False)
            assert (reply.status, reply.headers["location"]) == (302, TARGET)
            self.sent(campaign, "clicks")

    async def decided(self, user: str) -> dict[str, dict[str, Any]]:
        """What one user is shown, by banner."""
        body = {"user_id": user, "limit": 20}
        reply = await self.api("POST", "/v1/decide", json=body, headers={"X-Write-Key": self.write_key})
        assert reply.status == 200, reply.body
        return {banner["banner_id"]: banner for banner in reply.json()["decisions"][0]["banners"]}

    async def counted(self) -> None:
        """Until the stats by campaign, and those of each campaign alone, are the ledger."""
        today = datetime.now(UTC).date()
        days = f"from={today - timedelta(2)}&to={today + timedelta(2)}&interval=total"

        async def rows(query: str) -> dict[str, dict[str, int]]:
            reply = await self.api("GET", f"/admin/stats/banners?{days}&{query}", key=self.secret_key)
            assert reply.status == 200, reply.body
            return {row["campaign_id"] or "": row for row in reply.json()["rows"]}

        async def differences() -> list[str]:
            by_campaign = await rows("by=campaign")
            told = [
                f"{campaign or 'none'} {what}: {by_campaign.get(campaign, {}).get(what, 0)} of {number}"
                for (campaign, what), number in self.ledger.items()
                if by_campaign.get(campaign, {}).get(what, 0) != number
            ]
            for campaign in {campaign for campaign, _ in self.ledger if campaign}:
                alone = sum(row[what] for row in (await rows(f"campaign_id={campaign}")).values() for what in FIGURES)
                wanted = sum(number for (of, _), number in self.ledger.items() if of == campaign)
                told += [f"campaign_id={campaign}: {alone} of {wanted}"] if alone != wanted else []
            return told

        async def agreed() -> bool:
            return not await differences()

        try:
            await eventually(agreed, timeout=60, what="the stats are the ledger")
        except AssertionError as error:
            raise AssertionError(f"{error}: {await differences()}") from error


@pytest.fixture
async def shop(api: Api, database: Database, redis: Redis, tenant: int) -> Shop:
    tenants = TenantService(database, redis, seal_key=sha256(SEAL.encode()).digest())
    write = await tenants.create_key(tenant, NewKey(kind="write", name="w"), actor="test")
    secret = await tenants.create_key(tenant, NewKey(kind="secret", name="s", scopes=["*"]), actor="test")
    await tenants.stop()
    return Shop(api, tenant, write.key, secret.key)


async def test_events_without_a_campaign_count_for_their_banners(
    shop: Shop, handbill_env: dict[str, str], database: Database, redis: Redis, tmp_path: Path
) -> None:
    campaign, other, place = await shop.campaign(), await shop.campaign(), await shop.placement()
    banner, free = await shop.banner(campaign), await shop.banner(None)

    async def known() -> bool:
        return {banner, free} <= (await shop.decided("somebody")).keys()

    await eventually(known, what="the banners are shown")
    decided = await shop.decided("ada")
    assert (decided[banner]["campaign_id"], decided[free]["campaign_id"]) == (campaign, None)
    assert list(decided[banner])[:3] == ["banner_id", "campaign_id", "variant"]
    for each, of in ((banner, campaign), (free, None)):
        await shop.every_http_way(each, place, of, follows=decided[each]["click_url"])

    named = {"bannerPublicId": banner, "placementPublicId": place}
    for sent, counted in ((other, other), (str(uuid.uuid4()), None)):  # the one that was sent, as ever
        await shop.send(f"{EVENTS}/impression", {**named, "correlationId": sent, "campaignPublicId": sent})
        shop.sent(counted, "impressions")

    async with database.worker() as tx:
        numbers = await tx.fetchrow(NUMBERS, uuid.UUID(banner), uuid.UUID(place))
        assert numbers is not None
        by_number = {"bannerId": numbers["banner"], "placementId": numbers["placement"]}
        for data in (named, by_number):
            for name, more in ((RECORD_IMPRESSION, {}), (RECORD_CLICK, {"destinationUrl": TARGET})):
                job = uuid.uuid4().hex
                await Outbox(redis).put(tx, QUEUE, name, {**data, **more}, tenant_id=None, job_id=job)
        unknown = {**by_number, "campaignId": 2**30, "correlationId": "of an unknown campaign"}
        await Outbox(redis).put(tx, QUEUE, RECORD_IMPRESSION, unknown, tenant_id=None, job_id=uuid.uuid4().hex)
    shop.sent(campaign, "impressions", 2)
    shop.sent(campaign, "clicks", 2)
    shop.sent(None, "impressions")

    for kind, line in (
        ("impression", named),
        ("click", {**named, "destinationUrl": TARGET}),
        ("view", {"banner_id": banner, "user_id": "ada", "view_duration_ms": 5000}),
    ):
        await history(shop, handbill_env, tmp_path, kind, line)
        shop.sent(campaign, f"{kind}s")
    await shop.counted()


async def history(shop: Shop, env: dict[str, str], folder: Path, kind: str, line: dict[str, Any]) -> None:
    file = folder / f"{kind}.jsonl"
    file.write_text(json.dumps({**line, "event_id" if kind == "view" else "correlationId": f"history-{kind}"}) + "\n")
    code, output = await handbill("events", "import", str(file), "--tenant", str(shop.tenant), "--kind", kind, env=env)
    assert code == 0, output
    assert "1 events sent, 0 lines refused" in output


async def test_events_of_archived_and_deleted_banners_and_deleted_placements_count(shop: Shop) -> None:
    campaign, place, gone = await shop.campaign(), await shop.placement(), await shop.placement()
    archived, deleted, other = [await shop.banner(campaign) for _ in range(3)]

    async def known() -> bool:
        return {archived, deleted, other} <= (await shop.decided("somebody")).keys()

    await eventually(known, what="the banners are shown")
    decided = await shop.decided("ada")
    await shop.admin("POST", f"banners/{archived}/archive")
    await shop.admin("DELETE", f"banners/{deleted}")
    await shop.admin("DELETE", f"placements/{gone}")

    async def unknown() -> bool:
        return (await shop.decided("somebody")).keys() == {other}

    await eventually(unknown, what="the banners are not shown any more")
    await shop.every_http_way(archived, place, campaign, follows=decided[archived]["click_url"])
    await shop.every_http_way(deleted, place, campaign, follows=decided[deleted]["click_url"])
    await shop.every_http_way(other, gone, campaign, follows=decided[other]["click_url"])
    await shop.counted()
