"""What the OpenAPI page says of this room's hot routes."""

from __future__ import annotations

from typing import Any

from handbill.banners.examples import ID
from handbill.banners.wire import (
    Accepted,
    BatchAccepted,
    ClickIn,
    DecideIn,
    Decisions,
    ImpressionIn,
    Shown,
    ViewIn,
)
from handbill.kit.fast import FastDoc, FastQuery

_IMPRESSION: dict[str, Any] = {
    "bannerPublicId": ID,
    "placementPublicId": ID,
    "sessionId": "sess_abc123",
    "deviceType": "mobile",
    "countryCode": "NP",
    "pageUrl": "https://shop.example.com/p/123",
    "occurredAt": "2026-06-19T10:15:30.000Z",
    "correlationId": "imp_1750334400000",
}
_CLICK: dict[str, Any] = {
    "bannerPublicId": ID,
    "placementPublicId": ID,
    "destinationUrl": "https://shop.example.com/summer",
    "correlationId": "clk_1750334400000",
}
_VIEW: dict[str, Any] = {
    "banner_id": ID,
    "user_id": "user-42",
    "event_id": "user-42_1712656789",
    "view_duration_ms": 3200,
    "dismissed": False,
}
_BATCH = {"message": "2 recorded.", "data": {"accepted": 2, "rejected": []}}
_CODES = (400, 404, 413, 415, 429, 503)
_DECIDED = "Send the decision's `token` and its variant counts. Without a campaign it counts for its banner's."
_RETRY = "Sent again with the same id it counts once. 202 means durable; 429 and 503 carry Retry-After."


IMPRESSION = FastDoc(
    "Record an impression", "Tracking", "recordImpression", f"A banner appeared on a screen. {_DECIDED} {_RETRY}",
    ImpressionIn, _IMPRESSION, Accepted, {"message": "Impression recorded.", "data": None}, 202, (403, *_CODES),
)  # fmt: skip
CLICK = FastDoc(
    "Record a click", "Tracking", "recordClick", f"Somebody followed a banner. {_DECIDED} {_RETRY}",
    ClickIn, _CLICK, Accepted, {"message": "Click recorded.", "data": None}, 202, (403, *_CODES),
)  # fmt: skip
VIEW = FastDoc(
    "Record a view", "Tracking", "recordView",
    f"Seen for at least z seconds, or dismissed: then it counts against the cap. {_RETRY}",
    ViewIn, _VIEW, Accepted, {"message": "View recorded.", "data": None}, 202, (401, 403, *_CODES), write_key=True,
)  # fmt: skip
IMPRESSIONS = FastDoc(
    "Record up to 500 impressions", "Tracking", "recordImpressions", f"Bad ones are named, good ones kept. {_RETRY}",
    dict[str, list[ImpressionIn]], {"events": [_IMPRESSION]}, BatchAccepted, _BATCH, 202, (403, *_CODES),
)  # fmt: skip
CLICKS = FastDoc(
    "Record up to 500 clicks", "Tracking", "recordClicks", f"Bad ones are named, good ones kept. {_RETRY}",
    dict[str, list[ClickIn]], {"events": [_CLICK]}, BatchAccepted, _BATCH, 202, (403, *_CODES),
)  # fmt: skip
VIEWS = FastDoc(
    "Record up to 500 views", "Tracking", "recordViews", f"Bad ones are named, good ones kept. {_RETRY}",
    dict[str, list[ViewIn]], {"events": [_VIEW]}, BatchAccepted, _BATCH, 202, (401, 403, *_CODES), write_key=True,
)  # fmt: skip
BANNERS = FastDoc(
    "The banners a user may see now", "Serving", "getBanners",
    "The tenant by its write key, the user by the tenant's token or by user_id. Treat any failure as an empty list.",
    None, None, Shown, {"banners": [ID], "user_id": "user-42"}, 200, (400, 401, 403, 404, 429, 503),
    (
        FastQuery("user_id", "Whose caps to look at; not needed with a user's token."),
        FastQuery("placement", "Only banners for this placement, by slug or id."),
        FastQuery("country", "Where the user is, for targeting; else by the client's address where that is known."),
        FastQuery("language", "The user's language, for targeting; else the browser's."),
        FastQuery("session_id", "For limits per session."),
        FastQuery("device_id", "For limits per device."),
    ),
    write_key=True,
)  # fmt: skip
_SEALED = "IPdAfIWDGVR4xJ4PyLE8L1zQ9pVxO0w7u3cU0n8x3mHqk1w2a5QbG0mS1cXrHkYtq7vE2dWfZaLp6sNiJoRu"
DECIDE = FastDoc(
    "Decide what a user sees", "Serving", "decide",
    "The best banners for each placement, none twice. The tenant by its write key, the user by the tenant's token or "
    "by user_id. Treat any failure as an empty list. explain=1 takes a secret key with banners:read instead.",
    DecideIn,
    {"user_id": "user-42", "placements": ["home-top"], "limit": 1, "context": {"url": "https://shop.example.com/"}},
    Decisions,
    {
        "user_id": "user-42",
        "decided_at": "2026-06-19T10:15:30.000Z",
        "decisions": [
            {
                "placement": "home-top",
                "placement_id": ID,
                "banners": [
                    {
                        "banner_id": ID,
                        "campaign_id": ID,
                        "variant": None,
                        "title": "Summer sale",
                        "description": None,
                        "image_url": "https://cdn.example.com/summer.png",
                        "asset_url": None,
                        "click_url": f"/r/{_SEALED}",
                        "z_duration_sec": 3,
                        "token": _SEALED,
                        "expires_at": "2026-06-20T10:15:30.000Z",
                    }
                ],
            }
        ],
    },
    200,
    (400, 401, 403, 404, 413, 415, 429, 503),
    (FastQuery("explain", "1: with every banner's verdict."),),
    write_key=True,
)  # fmt: skip
