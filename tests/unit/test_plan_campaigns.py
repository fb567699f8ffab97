"""What a decision says of a banner's campaign is written with the plan, and stays true from one plan to the next."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from handbill.banners.catalogue import Snapshot
from handbill.banners.model import Campaign
from handbill.banners.plan import Plan
from tests.unit.test_ranking import banner

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def campaign(number: int) -> Campaign:
    return Campaign(
        id=number, tenant_id=7, public_id=UUID(int=number), name="c", status="active", is_active=True, starts_at=None,
        ends_at=None, version=1, created_at=NOW, updated_at=NOW, deleted_at=None,
    )  # fmt: skip


def test_a_banner_that_has_not_changed_is_rewritten_when_its_campaign_can_be_read_again() -> None:
    banners = (msgspec.structs.replace(banner(1), campaign_id=5), banner(2))

    def told(plan: Plan) -> dict[int, str | None]:
        written = {entry.banner.id: entry.face("ann").written(b"TOKEN", b"AT") for entry in plan.entries}
        return {number: json.loads(each)["campaign_id"] for number, each in written.items()}

    without = Plan(Snapshot(7, 1, banners, {}, {}, {}))
    assert told(without) == {1: None, 2: None}
    again = Plan(Snapshot(7, 2, banners, {}, {}, {5: campaign(5)}), without.pieces)
    assert told(again) == {1: str(UUID(int=5)), 2: None}
