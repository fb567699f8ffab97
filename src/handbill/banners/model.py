"""Banners, placements and campaigns: what the catalogue holds and what callers may send.

`start_date` and `end_date` are the same two times as `publish_at` and `expires_at` under another name; a caller may use
either pair. Shown = the operator's switch is on and now lies in the window, of the banner and of its campaign.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from handbill.banners import windows
from handbill.banners.windows import When
from handbill.kit.errors import Fault

Name = Annotated[str, Meta(min_length=1, max_length=200, description="What people call it")]
Text = Annotated[str, Meta(max_length=5000)]
Note = Annotated[str, Meta(max_length=2000, description="For those who work with it; nobody else sees it")]
Title = Annotated[str, Meta(max_length=500)]
Url = Annotated[str, Meta(min_length=1, max_length=2000)]
# A text may not end with a line break, before which Python's `$` matches, too.
Slug = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$(?!\n)", description="Short name for use in code")]
XTimes = Annotated[int, Meta(ge=1, le=1000, description="How often a user may see it inside the window")]
YHours = Annotated[int, Meta(ge=1, le=8760, description="The rolling window in hours")]
ZSeconds = Annotated[int, Meta(ge=1, le=3600, description="How long it stays on screen, in seconds")]

Priority = Annotated[int, Meta(ge=-1000, le=1000, description="Higher goes first")]
Weight = Annotated[int, Meta(ge=1, le=10_000, description="Its share of chances among equals")]
Revenue = Annotated[float, Meta(ge=0, le=1_000_000_000, description="What one view is worth, for ranking only")]
Percent = Annotated[float, Meta(ge=0, le=100)]
Targeting = Annotated[dict[str, Any], Meta(description="Whom it is for: see the page on targeting; null is everybody")]
VariantKey = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$", description="The variant's short name")]

Criterion = Literal["priority", "weight", "ctr", "revenue", "recency", "least_seen", "active_hour"]
Ranking = Annotated[
    list[Criterion], Meta(max_length=7, description="What decides the order, most important first; empty: the default")
]
CapPer = Literal["window", "lifetime", "session"]
CapMode = Literal["soft", "strict"]
CapBy = Literal["user", "device"]

ScheduleStatus = Literal["scheduled", "active", "expired"]
CampaignStatus = Literal["scheduled", "active", "ended"]


class CapRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most `x` views: in any `y_hours` hours, in a lifetime, or in one session."""

    x: XTimes
    y_hours: YHours | None = None
    per: CapPer = "window"
    """What the limit holds for: any window of `y_hours`, a lifetime, or one session."""


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One face of a banner in an A/B test: what it does not say itself is the banner's own."""

    key: VariantKey
    weight: Weight = 100
    title: Title | None = None
    description: Text | None = None
    image_url: Url | None = None
    cta_link: Url | None = None
    asset_url: Url | None = None


CapRules = Annotated[list[CapRule], Meta(max_length=5, description="Further limits; each of them must have room")]
Variants = Annotated[list[Variant], Meta(max_length=10, description="Variants to test against each other")]


class Placement(msgspec.Struct, frozen=True):
    id: int
    tenant_id: int
    public_id: UUID
    name: str
    slug: str
    description: str | None
    version: int
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    ranking: list[Criterion] = []
    caps: list[CapRule] = []
    limits_raised_at: datetime | None = None


class Campaign(msgspec.Struct, frozen=True):
    id: int
    tenant_id: int
    public_id: UUID
    name: str
    status: CampaignStatus
    is_active: bool
    starts_at: datetime | None
    ends_at: datetime | None
    version: int
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    caps: list[CapRule] = []
    limits_raised_at: datetime | None = None

    def open_at(self, now: datetime) -> bool:
        return self.is_active and self.deleted_at is None and _inside(self.starts_at, self.ends_at, now)


class Banner(msgspec.Struct, frozen=True):
    id: int
    tenant_id: int
    public_id: UUID
    campaign_id: int | None
    name: str
    title: str | None
    description: str | None
    image_url: str | None
    cta_link: str | None
    asset_url: str | None
    x_times: int
    y_hours: int
    z_duration_sec: int
    is_active: bool
    publish_at: datetime | None
    expires_at: datetime | None
    schedule_status: ScheduleStatus
    placement_ids: list[int]
    version: int
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None
    deleted_at: datetime | None
    limits_raised_at: datetime | None = None
    targeting: dict[str, Any] | None = None
    priority: int = 0
    weight: int = 100
    revenue: float = 0.0
    variants: list[Variant] = []
    holdout_percent: float = 0.0
    caps: list[CapRule] = []
    cap_mode: CapMode = "soft"
    cap_by: CapBy = "user"

    def open_at(self, now: datetime) -> bool:
        """Its own switch and window; the campaign's come on top."""
        if not self.is_active or self.deleted_at is not None or self.archived_at is not None:
            return False
        return _inside(self.publish_at, self.expires_at, now)


def schedule_status(publish_at: datetime | None, expires_at: datetime | None, now: datetime) -> ScheduleStatus:
    """Where `now` lies in the half-open window. The sync statement decides by the same rule."""
    if expires_at is not None and expires_at <= now:
        return "expired"
    if publish_at is not None and publish_at > now:
        return "scheduled"
    return "active"


def _inside(start: datetime | None, end: datetime | None, now: datetime) -> bool:
    return (start is None or start <= now) and (end is None or now < end)


# --- what callers send


class NewPlacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    slug: Slug
    description: Note | None = None
    ranking: Ranking = []
    caps: CapRules = []


class PlacementPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | UnsetType = UNSET
    slug: Slug | UnsetType = UNSET
    description: Note | UnsetType | None = UNSET
    ranking: Ranking | UnsetType = UNSET
    caps: CapRules | UnsetType = UNSET


class NewCampaign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    is_active: bool = True
    starts_at: When | None = None
    ends_at: When | None = None
    caps: CapRules = []


class CampaignPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | UnsetType = UNSET
    is_active: bool | UnsetType = UNSET
    starts_at: When | UnsetType | None = UNSET
    ends_at: When | UnsetType | None = UNSET
    caps: CapRules | UnsetType = UNSET


class NewBanner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    x_times: XTimes
    y_hours: YHours
    z_duration_sec: ZSeconds
    name: Name | None = None
    title: Title | None = None
    description: Text | None = None
    image_url: Url | None = None
    cta_link: Url | None = None
    asset_url: Url | None = None
    campaign_id: UUID | None = None
    placement_ids: Annotated[list[UUID], Meta(max_length=100)] = []
    is_active: bool = True
    start_date: When | None = None
    end_date: When | None = None
    publish_at: When | None = None
    expires_at: When | None = None
    targeting: Targeting | None = None
    priority: Priority = 0
    weight: Weight = 100
    revenue: Revenue = 0.0
    variants: Variants = []
    holdout_percent: Percent = 0.0
    caps: CapRules = []
    cap_mode: CapMode = "soft"
    cap_by: CapBy = "user"

    @staticmethod
    def joint_faults(body: Mapping[str, Any]) -> list[Fault]:
        """Of fields that belong together, in a body that was refused."""
        return windows.faults_in_json(body)


class BannerPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    x_times: XTimes | UnsetType = UNSET
    y_hours: YHours | UnsetType = UNSET
    z_duration_sec: ZSeconds | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    title: Title | UnsetType | None = UNSET
    description: Text | UnsetType | None = UNSET
    image_url: Url | UnsetType | None = UNSET
    cta_link: Url | UnsetType | None = UNSET
    asset_url: Url | UnsetType | None = UNSET
    campaign_id: UUID | UnsetType | None = UNSET
    placement_ids: Annotated[list[UUID], Meta(max_length=100)] | UnsetType = UNSET
    is_active: bool | UnsetType = UNSET
    start_date: When | UnsetType | None = UNSET
    end_date: When | UnsetType | None = UNSET
    publish_at: When | UnsetType | None = UNSET
    expires_at: When | UnsetType | None = UNSET
    targeting: Targeting | UnsetType | None = UNSET
    priority: Priority | UnsetType = UNSET
    weight: Weight | UnsetType = UNSET
    revenue: Revenue | UnsetType = UNSET
    variants: Variants | UnsetType = UNSET
    holdout_percent: Percent | UnsetType = UNSET
    caps: CapRules | UnsetType = UNSET
    cap_mode: CapMode | UnsetType = UNSET
    cap_by: CapBy | UnsetType = UNSET

    @staticmethod
    def joint_faults(body: Mapping[str, Any]) -> list[Fault]:
        """Of fields that belong together, in a body that was refused."""
        return windows.faults_in_json(body)


class Deciding(msgspec.Struct, frozen=True):
    """How a tenant's banners are decided where nothing narrower says otherwise."""

    ranking: list[Criterion] = []
    version: int = 0
    smart_scheduling: bool = False
    """Whether the hours in which each person is active are learnt, for `active_hour`."""


class DecidingPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ranking: Ranking | UnsetType = UNSET
    smart_scheduling: (
        Annotated[bool, Meta(description="Learn in which hours each person is active, for active_hours")] | UnsetType
    ) = UNSET


# --- what callers get


class BannerView(msgspec.Struct, frozen=True):
    """A banner as its owner reads it. Ids are the public ones."""

    banner_id: UUID
    name: str
    title: str | None
    description: str | None
    image_url: str | None
    cta_link: str | None
    asset_url: str | None
    x_times: int
    y_hours: int
    z_duration_sec: int
    is_active: bool
    start_date: datetime | None
    end_date: datetime | None
    publish_at: datetime | None
    expires_at: datetime | None
    schedule_status: ScheduleStatus
    """Where now lies between `publish_at` and `expires_at`."""
    campaign_id: UUID | None
    placement_ids: list[UUID]
    archived: bool
    """Whether it is in the archive: it is not shown and not listed by default."""
    targeting: Targeting | None
    priority: int
    weight: int
    revenue: float
    variants: list[Variant]
    holdout_percent: float
    caps: list[CapRule]
    cap_mode: CapMode
    cap_by: CapBy
    version: int
    created_at: datetime
    updated_at: datetime


class PlacementView(msgspec.Struct, frozen=True):
    placement_id: UUID
    """The placement's public id."""
    name: str
    slug: str
    description: str | None
    """For those who work with it; nobody else sees it."""
    ranking: list[Criterion]
    caps: list[CapRule]
    version: int
    created_at: datetime
    updated_at: datetime


class CampaignView(msgspec.Struct, frozen=True):
    campaign_id: UUID
    """The campaign's public id."""
    name: str
    status: CampaignStatus
    """Where now lies between `starts_at` and `ends_at`."""
    is_active: bool
    starts_at: datetime | None
    ends_at: datetime | None
    caps: list[CapRule]
    version: int
    created_at: datetime
    updated_at: datetime


class BannerFilter(msgspec.Struct, frozen=True):
    """What a list of banners may be narrowed by."""

    schedule_status: ScheduleStatus | None = None
    is_active: bool | None = None
    campaign_id: UUID | None = None
    placement_id: UUID | None = None
    archived: bool = False
    search: Annotated[str, Meta(max_length=200)] | None = None
