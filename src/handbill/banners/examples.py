"""What the routes' bodies look like, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_AT = "2026-07-01T09:30:00Z"

NEW_BANNER: dict[str, Any] = {
    "x_times": 2,
    "y_hours": 24,
    "z_duration_sec": 3,
    "start_date": "2026-04-01T00:00:00Z",
    "end_date": "2026-04-30T23:59:59Z",
    "asset_url": "https://cdn.example.com/banners/summer-sale",
}
BANNER: dict[str, Any] = {
    "banner_id": ID,
    "name": "Summer sale",
    "title": "Summer sale",
    "description": "Everything for the beach",
    "image_url": "https://cdn.example.com/summer.png",
    "cta_link": "https://shop.example.com/summer",
    "asset_url": "https://cdn.example.com/banners/summer-sale",
    "x_times": 2,
    "y_hours": 24,
    "z_duration_sec": 3,
    "is_active": True,
    "start_date": "2026-04-01T00:00:00Z",
    "end_date": "2026-04-30T23:59:59Z",
    "publish_at": "2026-04-01T00:00:00Z",
    "expires_at": "2026-04-30T23:59:59Z",
    "schedule_status": "active",
    "campaign_id": None,
    "placement_ids": [],
    "archived": False,
    "targeting": {"country": ["NL", "DE"], "device": "mobile"},
    "priority": 0,
    "weight": 100,
    "revenue": 0.0,
    "variants": [],
    "holdout_percent": 0.0,
    "caps": [],
    "cap_mode": "soft",
    "cap_by": "user",
    "version": 1,
    "created_at": _AT,
    "updated_at": _AT,
}
NEW_PLACEMENT: dict[str, Any] = {"name": "Home, top", "slug": "home-top"}
PLACEMENT: dict[str, Any] = {
    "placement_id": ID,
    "name": "Home, top",
    "slug": "home-top",
    "description": None,
    "ranking": [],
    "caps": [],
    "version": 1,
    "created_at": _AT,
    "updated_at": _AT,
}
NEW_CAMPAIGN: dict[str, Any] = {"name": "Summer", "starts_at": "2026-04-01T00:00:00Z", "ends_at": None}
CAMPAIGN: dict[str, Any] = {
    "campaign_id": ID,
    "name": "Summer",
    "status": "active",
    "is_active": True,
    "starts_at": "2026-04-01T00:00:00Z",
    "ends_at": None,
    "caps": [],
    "version": 1,
    "created_at": _AT,
    "updated_at": _AT,
}

DECIDING: dict[str, Any] = {"ranking": ["priority", "recency"], "version": 1, "smart_scheduling": False}
PUBLIC_BANNER: dict[str, Any] = {
    "banner_id": ID,
    "variant": None,
    "title": "Summer sale",
    "description": "Everything for the beach",
    "image_url": "https://cdn.example.com/summer.png",
    "asset_url": "https://cdn.example.com/banners/summer-sale",
    "cta_link": "https://shop.example.com/summer",
    "z_duration_sec": 3,
    "version": 1,
}

_FIGURES: dict[str, Any] = {
    "impressions": 1200,
    "clicks": 36,
    "views": 800,
    "dismissals": 90,
    "marked_impressions": 4,
    "marked_clicks": 0,
    "marked_views": 0,
    "ctr": 0.03,
    "banner_id": None,
    "placement_id": None,
    "campaign_id": None,
    "ctr_low": 0.021747,
    "ctr_high": 0.041252,
    "variant": None,
    "country": None,
    "device": None,
    "page": None,
    "banner_name": None,
    "placement_name": None,
    "campaign_name": None,
}
STATS: dict[str, Any] = {
    "rows": [{"at": "2026-06-19T00:00:00Z", **_FIGURES, "variant": "b"}],
    "totals": {"at": None, **_FIGURES},
    "zone": "UTC",
    "fresh_at": "2026-06-19T12:00:00Z",
    "days": [],
    "suspected": [{"reason": "too_fast", "kind": "click", "events": 2}],
    "uniques": {
        "impressions": 640,
        "clicks": 31,
        "views": 420,
        "note": None,
        "unidentified": {"impressions": 80, "clicks": 2, "views": 0},
    },
    "source": "events",
    "complete_from": "2026-06-19",
    "missing": [{"day": "2026-06-18", "events": 5}],
}


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None}
