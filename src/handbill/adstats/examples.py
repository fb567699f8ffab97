"""What the routes' bodies look like, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_AT = "2026-02-19T09:30:00Z"
_DAY = "2026-02-19"

NEW_CONNECTION: dict[str, Any] = {
    "provider": "META",
    "external_id": "1234567890",
    "name": "Shop, Europe",
    "access_token": "EAAB...",
}
CONNECTION: dict[str, Any] = {
    "connection_id": ID,
    "provider": "META",
    "external_id": "1234567890",
    "name": "Shop, Europe",
    "currency": "EUR",
    "time_zone": "Europe/Paris",
    "look_back_days": 28,
    "connection_type": "AD_ACCOUNT",
    "is_active": True,
    "token_state": "valid",
    "token_note": None,
    "token_changed_at": _AT,
    "token_ends_at": None,
    "token_checked_at": None,
    "verified_at": _AT,
    "version": 1,
    "created_at": _AT,
    "updated_at": _AT,
}
SELLPAGE: dict[str, Any] = {
    "sellpage_id": ID,
    "name": "Summer shoes",
    "url": "https://shop.example.com/summer",
    "version": 1,
    "created_at": _AT,
    "updated_at": _AT,
}
NEW_SELLPAGE = {"name": "Summer shoes", "url": "https://shop.example.com/summer"}
NEW_ENTITY: dict[str, Any] = {
    "entity_type": "CAMPAIGN",
    "name": "Spring",
    "connection_id": ID,
    "sellpage_id": ID,
    "external_id": "23850000000000000",
    "budget_type": "DAILY",
    "budget": "100.00",
    "utm_campaign": "spring",
}
ENTITY: dict[str, Any] = {
    "entity_id": ID,
    "entity_type": "CAMPAIGN",
    "connection_id": ID,
    "campaign_id": ID,
    "name": "Spring",
    "parent_id": None,
    "sellpage_id": ID,
    "external_id": "23850000000000000",
    "status": "ACTIVE",
    "budget_type": "DAILY",
    "budget": "100.0000",
    "utm_campaign": "spring",
    "banner_campaign_id": None,
    "version": 1,
    "created_at": _AT,
    "updated_at": _AT,
}
IMPORT: dict[str, Any] = {
    "entities": [
        {"entity_type": "CAMPAIGN", "external_id": "11", "name": "Spring", "budget": "100.00"},
        {"entity_type": "ADSET", "external_id": "21", "name": "Runners", "parent_external_id": "11"},
        {"entity_type": "AD", "external_id": "31", "name": "Red shoe", "parent_external_id": "21"},
    ]
}
IMPORTED = {"created": 3, "changed": 0, "unchanged": 0, "refused": []}
_JOB = f"sync:{ID}:{_DAY}:{_DAY}:CAMPAIGN"
SYNC: dict[str, Any] = {"enqueued": 1, "jobIds": [_JOB], "jobs": [{"id": _JOB, "state": "enqueued"}]}
BACKFILL: dict[str, Any] = {
    "backfill_id": ID,
    "state": "running",
    "date_from": "2026-01-01",
    "date_to": _DAY,
    "parts": 6,
    "done": 2,
    "failed": 0,
    "progress": 0.3333,
    "asked_by": "user 7",
    "created_at": _AT,
    "errors": [],
}
STATES: list[dict[str, Any]] = [
    {
        "connection_id": ID,
        "level": "CAMPAIGN",
        "synced_at": _AT,
        "hourly_at": _AT,
        "daily_at": _AT,
        "syncs": 288,
        "failed_at": None,
        "error": None,
        "unmatched": 0,
        "listed_at": None,
    }
]
_FIGURES: dict[str, Any] = {
    "spend": "102.36",
    "impressions": 11765,
    "link_clicks": 235,
    "content_views": 165,
    "add_to_cart": 20,
    "checkout_initiated": 10,
    "purchases": 4,
    "purchase_value": "371.20",
}
_ROW: dict[str, Any] = {
    "currency": "EUR",
    **_FIGURES,
    "cpm": "8.700383",
    "ctr": "0.019975",
    "cpc": "0.435574",
    "cost_per_purchase": "25.590000",
    "roas": "3.626417",
    "day": _DAY,
    "entity_id": None,
    "entity_name": None,
    "sellpage_id": None,
    "sellpage_name": None,
    "factor": "1.000000",
    "fetched_at": _AT,
}
STATS: dict[str, Any] = {
    "rows": [_ROW],
    "totals": [{**_ROW, "day": None}],
    "zones": ["Europe/Paris"],
    "exact_zone": True,
    "mode": "latest",
    "as_of": None,
}
_CONVERTED = {**_ROW, "sellpage_id": ID, "cr1": "0.019975", "cr2": "0.017021", "cr3": "0.024242", "ad_source": "META"}
SELLPAGES: dict[str, Any] = {
    "rows": [_CONVERTED],
    "totals": [{**_CONVERTED, "day": None, "sellpage_id": None, "ad_source": None}],
    "zones": ["Europe/Paris"],
    "exact_zone": True,
    "mode": "latest",
}
DRIFT: list[dict[str, Any]] = [
    {
        "day": _DAY,
        "currency": "EUR",
        "first_spend": "101.90",
        "spend": "102.36",
        "first_purchases": 3,
        "purchases": 4,
        "first_purchase_value": "290.10",
        "purchase_value": "371.20",
        "beliefs": 9,
        "first_on": _DAY,
        "last_on": "2026-03-04",
    }
]
EXPLAINED: dict[str, Any] = {
    "entity_id": ID,
    "entity_name": "Spring",
    "level": "CAMPAIGN",
    "day": _DAY,
    "mode": "latest",
    "now": {**_ROW, "entity_id": ID, "entity_name": "Spring"},
    "told": [{"sync_id": ID, "fetched_at": _AT, "last_seen_at": _AT, "seen": 3, **_FIGURES}],
    "beliefs": [{"believed_on": _DAY, "believed_at": _AT, "currency": "EUR", **_FIGURES}],
    "literal_spend": "307.08",
    "literal_factor": "3.000000",
}
CSV = (
    "currency,spend,impressions,link_clicks,content_views,add_to_cart,checkout_initiated,purchases,purchase_value,cpm,"
    "ctr,cpc,cost_per_purchase,roas,day,entity_id,entity_name,sellpage_id,sellpage_name,factor,fetched_at\r\n"
    "EUR,102.36,11765,235,165,20,10,4,371.20,8.700383,0.019975,0.435574,25.590000,3.626417,2026-02-19,,,,,1,\r\n"
)


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None}
