"""The rules of a client as pure functions; `vectors.json` holds an example of each, and handbill.js has the same."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from handbill.client.model import Banner, Decision, Fate, How, Moment, Report, Showing

DAY_MS = 86_400_000
HORIZON_MS = 34 * DAY_MS
"""A day inside the server's 35, past which it cannot tell a copy from a new event."""
BATCH_MAX = 50
ACCIDENTAL_MS = 500
BACKOFF_MAX_MS = 300_000
RETRY_AFTER_MAX_MS = 3_600_000

_AGAIN = frozenset({401, 408, 425, 429})
"""401 is among them: a fresh token may come."""

T = TypeVar("T")


def report_of(visible_ms: float, how: How, accidental_ms: int = ACCIDENTAL_MS) -> Report:
    """What a showing reports. A button hit sooner than anybody reads is no refusal of the banner."""
    ms = max(0, min(math.floor(visible_ms), DAY_MS))
    return Report(ms, how == "dismiss" and ms >= accidental_ms)


def fate_of(status: int, retry_after: str | None, tries: int) -> Fate:
    """What becomes of a report after an answer; status 0 means that none came."""
    if status != 0 and status < 500 and status not in _AGAIN:
        return Fate(False, 0)
    told = int(retry_after) * 1000 if retry_after and re.fullmatch(r"[0-9]{1,9}", retry_after) else 0
    if told:
        return Fate(True, min(told, RETRY_AFTER_MAX_MS))
    return Fate(True, min(1000 * 2 ** min(tries, 20), BACKOFF_MAX_MS))


def fitting(entries: Iterable[tuple[int, T]], now_ms: int, limit: int) -> list[tuple[int, T]]:
    """Of (time, entry) pairs those that may still be sent: none too old, and of too many the newest; oldest first."""
    fresh = [entry for entry in entries if now_ms - HORIZON_MS < entry[0] < now_ms + DAY_MS]
    return sorted(fresh, key=lambda entry: entry[0])[-limit:]


def decisions_of(reply: Any) -> list[Decision]:
    """The decisions in an answer; anything unexpected is left out."""
    found = reply.get("decisions") if isinstance(reply, dict) else None
    if not isinstance(found, list):
        return []
    return [
        Decision(
            _text(one.get("placement")),
            _text(one.get("placement_id")),
            tuple(banner for sent in one["banners"] if (banner := _banner(sent)) is not None),
        )
        for one in found
        if isinstance(one, dict) and isinstance(one.get("banners"), list)
    ]


def _banner(sent: Any) -> Banner | None:
    try:
        banner = msgspec.convert(sent, Banner)
    except msgspec.ValidationError:
        return None
    return banner if banner.z_duration_sec > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def impression(showing: Showing) -> dict[str, Any]:
    return _full({**_tracked(showing, "imp_"), "referrerUrl": showing.referrer})


def click(showing: Showing, destination: str) -> dict[str, Any]:
    return _full({**_tracked(showing, "clk_"), "destinationUrl": destination})


def view(showing: Showing, report: Report) -> dict[str, Any]:
    return _full(
        {
            "banner_id": showing.banner.banner_id,
            "user_id": showing.user,
            "event_id": f"view_{showing.id}",
            "view_duration_ms": report.view_duration_ms,
            "dismissed": report.dismissed,
            "viewable": showing.viewable,
            "token": showing.banner.token,
            "placement_id": showing.placement_id,
            "session_id": showing.session,
            "device_id": showing.device,
        }
    )


def event(
    moment: Moment,
    name: str,
    properties: Mapping[str, Any] | None = None,
    person: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An event of the app's own. `person` may have `$set`, `$set_once` and `$unset`."""
    return _full(
        {
            "event": name,
            "distinct_id": moment.user or moment.device,
            "anonymous_id": moment.device if moment.user else None,
            "event_id": f"evt_{moment.id}",
            "timestamp": iso(moment.at),
            "properties": dict(properties or {}),
            "user_properties": dict(person) if person else None,
            "context": _full(moment.context),
        }
    )


def refusals(status: int, answer: Any, count: int) -> dict[int, str]:
    """Which of the sent reports were refused for good, by place, with the server's code or reason."""
    known = answer if isinstance(answer, dict) else {}
    data = known.get("data")
    lists = (data.get("rejected") if isinstance(data, dict) else None, known.get("dropped"))
    refused = [one for each in lists if isinstance(each, list) for one in each if isinstance(one, dict)]
    found = {
        one["index"]: str(one.get("code") or one.get("reason")) for one in refused if isinstance(one.get("index"), int)
    }
    if known.get("quota_limited"):
        return dict.fromkeys(range(count), "QUOTA")
    if status >= 300 and not found:
        return dict.fromkeys(range(count), str(known.get("code") or f"HTTP_{status}"))
    return found


def _tracked(showing: Showing, prefix: str) -> dict[str, Any]:
    return {
        "bannerPublicId": showing.banner.banner_id,
        "placementPublicId": showing.placement_id,
        "campaignPublicId": showing.banner.campaign_id,
        "variant": showing.banner.variant,
        "token": showing.banner.token,
        "correlationId": f"{prefix}{showing.id}",
        "userId": showing.user,
        "sessionId": showing.session,
        "pageUrl": showing.page,
        "occurredAt": iso(showing.at),
    }


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _full(body: dict[str, Any]) -> dict[str, Any]:
    """Without what is not known."""
    return {name: value for name, value in body.items() if value is not None}
