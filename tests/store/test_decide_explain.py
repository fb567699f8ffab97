"""Which limit closed a banner, in the words of `explain=1`, and what people call what it is about."""

from __future__ import annotations

from typing import Any

import pytest

from handbill.banners.model import CapRule, NewCampaign
from tests.store.test_decide import Shop, shop

__all__ = ["shop"]
FIVE, SESSION, LIFETIME = CapRule(x=1, y_hours=5), CapRule(x=1, per="session"), CapRule(x=1, per="lifetime")
WIDE = {"x_times": 9, "y_hours": 1}


@pytest.mark.parametrize(
    ("banner", "campaign", "placement", "words"),
    [
        ({"x_times": 1, "y_hours": 24}, None, None, "1 in 24 hours per banner and user"),
        ({**WIDE, "caps": [FIVE]}, None, None, "1 in 5 hours per banner and user"),
        ({**WIDE, "caps": [LIFETIME]}, None, None, "1 in a lifetime per banner and user"),
        ({**WIDE, "caps": [SESSION]}, None, None, "1 per banner and session"),
        ({"x_times": 1, "y_hours": 24, "cap_by": "device"}, None, None, "1 in 24 hours per banner and device"),
        ({**WIDE, "caps": [LIFETIME], "cap_by": "device"}, None, None, "1 in a lifetime per banner and device"),
        (WIDE, FIVE, None, "1 in 5 hours per campaign and user"),
        (WIDE, LIFETIME, None, "1 in a lifetime per campaign and user"),
        (WIDE, SESSION, None, "1 per campaign and session"),
        (WIDE, None, FIVE, "1 in 5 hours per placement and user"),
        (WIDE, None, LIFETIME, "1 in a lifetime per placement and user"),
        (WIDE, None, SESSION, "1 per placement and session"),
        ({"x_times": 1, "y_hours": 2}, FIVE, LIFETIME,
         "1 in 2 hours per banner and user and 1 in 5 hours per campaign and user"
         " and 1 in a lifetime per placement and user"),
    ],
)  # fmt: skip
async def test_the_limit_that_closed_a_banner_is_named_by_its_kind(
    shop: Shop, banner: dict[str, Any], campaign: CapRule | None, placement: CapRule | None, words: str
) -> None:
    new = NewCampaign(name="Spring", caps=[campaign] if campaign else [])
    made = await shop.loop.banners.editor.create_campaign(shop.tenant, new, actor="test")
    place = await shop.placement("home", caps=[placement] if placement else [])
    shown = await shop.banner(campaign_id=made.campaign_id, **banner)
    who = {"device_id": "d", "session_id": "s"}
    assert (await shop.explain(placements=["home"], **who))[str(shown.banner_id)][0] == "SHOWN"
    await shop.seen(shown, placement_id=str(place.placement_id), **who)
    reason, rule, _ = (await shop.explain(placements=["home"], **who))[str(shown.banner_id)]
    assert (reason, rule) == ("CAPPED", words)


async def test_verdicts_name_what_they_are_about(shop: Shop) -> None:
    new = NewCampaign(name="Spring")
    campaign = await shop.loop.banners.editor.create_campaign(shop.tenant, new, actor="test")
    await shop.placement("home")
    mine = await shop.banner(name="Sale", campaign_id=campaign.campaign_id)
    alone = await shop.banner(name="Alone")
    headers = {"authorization": f"Bearer {shop.secret_key}", "x_write_key": ""}
    answer = await shop.decide(query="explain=1", headers=headers, placements=["home"])
    named = {each["banner_id"]: each["names"] for each in answer["explain"]}
    assert named == {
        str(mine.banner_id): {"banner": "Sale", "placement": "home", "campaign": "Spring"},
        str(alone.banner_id): {"banner": "Alone", "placement": "home", "campaign": None},
    }
    answer = await shop.decide(query="explain=1", headers=headers)
    assert {each["names"]["placement"] for each in answer["explain"]} == {None}
