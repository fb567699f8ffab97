"""The report of a campaign is what a page showed of it, in each of its variants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.browser.conftest import MakePage, Shop
from tests.kit.waiting import eventually

VISITORS = 6
SHOW = """async ({options, visitors}) => {
  const slot = document.getElementById("slot");
  document.addEventListener("handbill:shown", ({detail}) => hb.click(detail.showing, "https://shop.example.com/pots"));
  for (const user of visitors) {
    window.hb = new Handbill({...options, user});
    await hb.show(slot, "home");
    hb.stop();
  }
}"""


async def test_the_report_of_a_campaign_is_what_a_page_showed(visit: MakePage, shop: Shop) -> None:
    campaign = (await shop.ask("POST", "/admin/campaigns", json={"name": "Tea week"}))["campaign_id"]
    variants = [{"key": "a", "title": "A"}, {"key": "b", "title": "B"}]
    await shop.banner(z_duration_sec=1, campaign_id=campaign, variants=variants)
    page = await visit()
    by_variant: dict[str, list[str]] = {"a": [], "b": []}
    for number in range(200):  # a user's variant is fixed, so visitors are chosen until both variants are seen enough
        user = f"visitor-{number}"
        headers = {"X-Write-Key": shop.write_key}
        body = {"user_id": user, "placements": ["home"]}
        reply = await shop.ask("POST", "/v1/decide", key=False, json=body, headers=headers)
        (found,) = reply["decisions"][0]["banners"]
        by_variant[found["variant"]].append(user)
        if min(len(users) for users in by_variant.values()) >= VISITORS // 2:
            break
    visitors = [user for users in by_variant.values() for user in users[: VISITORS // 2]]
    await page.evaluate(SHOW, {"options": shop.options, "visitors": visitors})

    expected = {"campaign_id": campaign, "impressions": VISITORS, "clicks": VISITORS, "views": VISITORS}
    today = datetime.now(UTC).date()
    query = f"from={today - timedelta(2)}&to={today + timedelta(2)}&interval=total&by=campaign"

    async def reported() -> bool:
        rows = (await shop.ask("GET", f"/admin/stats/banners?{query}"))["rows"]
        assert [{name: row[name] for name in expected} for row in rows] == [expected], "all is the campaign's"
        return True

    await eventually(reported, what="the report is complete")
    for table in ("banners.banner_clicks", "caps.user_views"):
        rows: list[dict[str, Any]] = await shop.rows(table)
        assert sorted(row["variant"] for row in rows) == ["a"] * (VISITORS // 2) + ["b"] * (VISITORS // 2)
