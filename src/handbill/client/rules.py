"""The rules of a client as pure functions; `vectors.json` holds an example of each, and handbill.js has the same."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from handbill.client.model import Banner, Decision, Fate, How, Moment, Report, Showing

DAY_MS = 86_400_000
HORIZON_MS = 34 * DAY_MS
"""A day inside the server's 35, past which it cannot tell a copy from a new event."""
BATCH_MAX = 50
BATCH_BYTES = 500_000
"""Of a batch of more than one; half of what a gateway commonly lets pass."""
PLACEMENTS_MAX = 10
ACCIDENTAL_MS = 500
BACKOFF_FIRST_MS = 1_000
BACKOFF_MAX_MS = 300_000
RETRY_AFTER_MAX_MS = 3_600_000

AGAIN = frozenset({401, 408, 425, 429})
"""401 is among them: a fresh token may come."""
_TOO_LARGE = 413

T = TypeVar("T")


def report_of(visible_ms: float, how: How, accidental_ms: int = ACCIDENTAL_MS) -> Report:
    """What a showing reports. A button hit sooner than anybody reads is no refusal of the banner."""
    ms = max(0, min(math.floor(visible_ms), DAY_MS))
    return Report(ms, how == "dismiss" and ms >= accidental_ms)


def fate_of(status: int, retry_after: str | None, tries: int, *, count: int = 1, understood: bool = True) -> Fate:
    """What becomes of `count` reports after an answer to all of them; status 0 means that none came.

    An answer that is not understood is not Handbill's: whatever sent it has taken nothing.
    """
    is_final = 0 < status < 500 and status not in AGAIN
    if count > 1 and status == _TOO_LARGE:
        return Fate(True, 0, count // 2)
    if is_final and (understood or status == _TOO_LARGE):
        return Fate(False, 0)
    told = int(retry_after) * 1000 if retry_after and re.fullmatch(r"[0-9]{1,9}", retry_after) else 0
    if told:
        return Fate(True, min(told, RETRY_AFTER_MAX_MS))
    return Fate(True, min(BACKOFF_FIRST_MS * 2 ** min(tries, 20), BACKOFF_MAX_MS))


def fitting(entries: Iterable[tuple[int, T]], now_ms: int, limit: int) -> list[tuple[int, T]]:
    """Of (time, entry) pairs those that may still be sent: none too old, and of too many the newest; oldest first."""
    fresh = [entry for entry in entries if now_ms - HORIZON_MS < entry[0] < now_ms + DAY_MS]
    return sorted(fresh, key=lambda entry: entry[0])[-limit:]


def batches(entries: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """In their order, none of too many or too large; an entry that is too large by itself goes alone."""
    batch: list[T] = []
    total = 0
    for entry in entries:
        bytes_ = size(entry)
        if batch and (len(batch) == BATCH_MAX or total + bytes_ > BATCH_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(entry)
        total += bytes_
    if batch:
        yield batch


def placements_by_request(names: Sequence[str]) -> list[list[str]]:
    """One decision is for ten placements at most; none named is one decision without any."""
    return [list(names[at : at + PLACEMENTS_MAX]) for at in range(0, max(1, len(names)), PLACEMENTS_MAX)]


def wait_before_decision(open_ms: float, open_after_ms: float) -> float:
    """Who leaves sooner than `open_after_ms` after opening asks for nothing."""
    return max(0.0, open_after_ms - open_ms)


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


def click(showing: Showing, destination: str, at: int) -> dict[str, Any]:
    return _full({**_tracked(showing, "clk_"), "occurredAt": iso(at), "destinationUrl": destination})


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


def is_understood(status: int, answer: Any, count: int) -> bool:
    """Whether this is Handbill's answer to `count` reports: whatever else answers has not taken them."""
    if not isinstance(answer, dict):
        return False
    if not any(isinstance(answer.get(name), kind) for name, kind in _SIGNS[status >= 300]):
        return False
    data = answer.get("data")
    rejected = data.get("rejected") if isinstance(data, dict) else data
    return all(each is None or _are_refusals(each, count) for each in (rejected, answer.get("dropped")))


_SIGNS: tuple[tuple[tuple[str, type], ...], ...] = (
    (("message", str), ("accepted", int)),
    (("code", str), ("dropped", list)),
)
"""What an answer of Handbill has: when it took something, and when it did not."""


def _are_refusals(value: Any, count: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and type(each.get("index")) is int
        and 0 <= each["index"] < count
        and isinstance(each.get("code") or each.get("reason"), str)
        for each in value
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
