"""Rows as their owner reads them: public ids instead of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from handbill.banners.model import (
    Banner,
    BannerView,
    Campaign,
    CampaignStatus,
    CampaignView,
    Placement,
    PlacementView,
    schedule_status,
)


def placement_view(place: Placement) -> PlacementView:
    return PlacementView(
        place.public_id, place.name, place.slug, place.description, place.ranking, place.caps, place.version,
        place.created_at, place.updated_at,
    )  # fmt: skip


def campaign_view(campaign: Campaign) -> CampaignView:
    return CampaignView(
        campaign.public_id, campaign.name, campaign.status, campaign.is_active, campaign.starts_at, campaign.ends_at,
        campaign.caps, campaign.version, campaign.created_at, campaign.updated_at,
    )  # fmt: skip


def banner_view(banner: Banner, placements: Mapping[int, UUID], campaigns: Mapping[int, UUID]) -> BannerView:
    return BannerView(
        banner_id=banner.public_id,
        name=banner.name,
        title=banner.title,
        description=banner.description,
        image_url=banner.image_url,
        cta_link=banner.cta_link,
        asset_url=banner.asset_url,
        x_times=banner.x_times,
        y_hours=banner.y_hours,
        z_duration_sec=banner.z_duration_sec,
        is_active=banner.is_active,
        start_date=banner.publish_at,
        end_date=banner.expires_at,
        publish_at=banner.publish_at,
        expires_at=banner.expires_at,
        schedule_status=banner.schedule_status,
        campaign_id=campaigns.get(banner.campaign_id) if banner.campaign_id is not None else None,
        placement_ids=[placements[place] for place in banner.placement_ids if place in placements],
        archived=banner.archived_at is not None,
        targeting=banner.targeting,
        priority=banner.priority,
        weight=banner.weight,
        revenue=banner.revenue,
        variants=banner.variants,
        holdout_percent=banner.holdout_percent,
        caps=banner.caps,
        cap_mode=banner.cap_mode,
        cap_by=banner.cap_by,
        version=banner.version,
        created_at=banner.created_at,
        updated_at=banner.updated_at,
    )


def campaign_status(starts_at: datetime | None, ends_at: datetime | None, now: datetime) -> CampaignStatus:
    status = schedule_status(starts_at, ends_at, now)
    return "ended" if status == "expired" else status
