"""Spend beside counts, and the question how far a platform's claim and our count agree."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Literal, Protocol
from uuid import UUID

import msgspec

EventsState = Literal["counted", "away"]


class Touch(msgspec.Struct, frozen=True):
    """What our events know of one utm_campaign: clicks by click id (else by visit), people, and purchases."""

    utm: str
    clicks: int
    people: int
    purchases: int


class TouchCounts(Protocol):
    """Where touches are counted. Busy when the event store is away."""

    async def by_utm(self, tenant: int, start: date, end: date, zone: str, wanted: list[str]) -> list[Touch]: ...


class SpendRow(msgspec.Struct, frozen=True):
    """One ad campaign. Counts of ours are null where the campaign names nothing that we could count by."""

    campaign_id: UUID
    """The id of the ad campaign."""
    name: str
    """The name of the ad campaign."""
    currency: str
    spend: Decimal
    """What the platform charged, as a decimal string."""
    platform_clicks: int
    """Clicks on links that the platform reports."""
    platform_purchases: int
    """Purchases that the platform reports."""
    banner_clicks: int | None
    """Clicks on the banners of the banner campaign it is tied to, as Handbill counted them."""
    event_clicks: int | None
    """Clicks that arrived, by click id, of events that carry its utm_campaign."""
    event_people: int | None
    """People with an event that carries the campaign's utm_campaign; null where none is set."""
    event_purchases: int | None
    """Purchases of events that carry the campaign's utm_campaign; null where none is set."""
    counted_clicks: int | None
    """Our count: what arrived, else what was clicked on our banners."""
    cost_per_counted_click: Decimal | None
    """Spend divided by `counted_clicks`; null where that is 0 or shared."""
    claim: Decimal | None
    """The platform's clicks for each one of ours: 1 is agreement."""
    purchase_claim: Decimal | None
    """The platform's purchases for each one of ours; null where there is none or it is shared."""
    shared: bool = False
    """Another row shows the same clicks, whole: nobody can say whose they are, so nothing is divided by them."""


class SpendReport(msgspec.Struct, frozen=True):
    """`events`: whether the event store answered; while it is away its columns are null."""

    rows: list[SpendRow]
    zone: str
    exact_zone: bool
    """Whether all ad accounts keep the days of this zone."""
    events: EventsState
    """Whether the event store was asked: `counted`, or `away` and the columns of events are null."""
