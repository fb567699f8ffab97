"""What each client is told, in its own words: so that it neither sends again what was taken nor forgets what was not.

Its clients read only the status: 200 means taken, 4xx means never send this again, and 429 or 5xx means later. So an
event that can never be taken is answered as if it were, and the tenant reads of it in the drop counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from handbill.events.dialects.canon import Dialect, Note, Parsed
from handbill.events.reasons import Reason
from handbill.kit.errors import HandbillError
from handbill.kit.fast import FastReply

_encode = msgspec.json.Encoder().encode
_POSTHOG = _encode({"status": 1})
_SEGMENT = _encode({"success": True})
_DETAILS = {
    Reason.INVALID_TIMESTAMP: "invalid_event_timestamp",
    Reason.MALFORMED_PROPERTIES: "malformed_event_properties",
    Reason.ILLEGAL_DISTINCT_ID: "malformed_distinct_id",
}
_V1_ERRORS = {
    400: "invalid_request",
    401: "unauthorized",
    413: "payload_too_large",
    415: "unsupported_encoding",
    429: "rate_limited",
    503: "service_unavailable",
}
_V0_TYPES = {401: "authentication_error", 429: "throttled_error"}


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """Our own answer: how many were taken, which were not, and of which something was left out, with the reason."""

    accepted: int
    dropped: Sequence[Note]
    warnings: Sequence[Note] = ()


def taken(parsed: Parsed, late: Sequence[Note] = ()) -> FastReply:
    """The events are durable. `late` are those refused after the parsing, such as the ones that are too old."""
    dropped = [*parsed.dropped, *late] if late else parsed.dropped
    match parsed.dialect:
        case Dialect.OWN:
            return _own(parsed, sorted(dropped, key=lambda note: note.index) if late else dropped)
        case Dialect.POSTHOG:
            return FastReply(204, b"") if parsed.beacon else FastReply(200, _POSTHOG)
        case Dialect.POSTHOG_V1:
            return FastReply(200, _encode({"results": _results(parsed, dropped)}))
        case Dialect.SEGMENT:
            return FastReply(200, _SEGMENT)


def _own(parsed: Parsed, dropped: Sequence[Note]) -> FastReply:
    accepted = parsed.total - len(dropped)
    return FastReply(202 if accepted else 400, _encode(Told(accepted, dropped, _warnings(parsed, dropped))))


def _warnings(parsed: Parsed, dropped: Sequence[Note]) -> Sequence[Note]:
    """Of events that were taken."""
    if not parsed.warned:
        return ()
    lost = {note.index for note in dropped}
    return [note for note in parsed.warned if note.index not in lost]


def _results(parsed: Parsed, dropped: Sequence[Note]) -> dict[str, Any]:
    """A word for each uuid that was not simply taken. One that was taken once and copied is a warning, not a drop."""
    kept = {parsed.ids[place] for place in parsed.places} - {
        parsed.ids[note.index] for note in dropped if note.reason is not Reason.DUPLICATE_EVENT_UUID
    }
    found: dict[str, Any] = {}
    for notes in (parsed.warned, dropped):
        for note in notes:
            uuid = parsed.ids[note.index]
            if uuid is not None:
                found[uuid] = {"result": "warning" if uuid in kept else "drop", "details": _detail(note.reason)}
    return found


def _detail(reason: Reason) -> str:
    return _DETAILS.get(reason, reason.value.lower())


def untracked(parsed: Parsed) -> FastReply:
    """Nobody may be followed here: nothing was kept, and nothing is wrong with what was sent."""
    late = [Note(place, Reason.DO_NOT_TRACK) for place in parsed.places]
    if parsed.dialect is not Dialect.OWN:
        return taken(parsed, late)
    return FastReply(202, _encode(Told(0, sorted([*parsed.dropped, *late], key=lambda note: note.index))))


def over_quota(parsed: Parsed) -> FastReply:
    """Nothing was kept and nothing will be: the quota is used up. Told as a success, or clients would storm."""
    match parsed.dialect:
        case Dialect.OWN:
            return FastReply(200, _encode({"accepted": 0, "dropped": [], "quota_limited": True}))
        case Dialect.POSTHOG:
            # A list of what is limited, as its browser client reads it: it then waits a minute before it sends again.
            body = _encode({"status": 1, "quota_limited": ["events"]})
            return FastReply(204, b"") if parsed.beacon else FastReply(200, body)
        case Dialect.POSTHOG_V1:
            said = {"result": "drop", "details": "quota_limited"}
            return FastReply(200, _encode({"results": {uuid: said for uuid in parsed.ids if uuid is not None}}))
        case Dialect.SEGMENT:
            return FastReply(200, _SEGMENT)


def refused(dialect: Dialect, error: HandbillError) -> FastReply:
    """Nothing of the request was kept; the error in the shape that this dialect's clients read.

    Our own dialect's errors are problem+json like everywhere: raise them instead.
    """
    headers: list[tuple[bytes, bytes]] = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
    status = error.status
    if dialect is Dialect.POSTHOG_V1 and status == 429:
        status = 503  # these clients give up on 429, and come back after a 503
    return FastReply(status, _encode(_error(dialect, error)), headers=headers)


def _error(dialect: Dialect, error: HandbillError) -> dict[str, Any]:
    faults = "; ".join(f"{fault.field} {fault.reason}" for fault in error.faults)
    detail = f"{error.public_detail} {faults}".strip()
    code = error.code.lower()
    match dialect:
        case Dialect.OWN:
            return {"status": error.status, "code": error.code, "detail": detail}
        case Dialect.POSTHOG:
            kind = _V0_TYPES.get(error.status, "validation_error" if error.status < 500 else "server_error")
            return {"type": kind, "code": code, "detail": detail, "attr": None}
        case Dialect.POSTHOG_V1:
            name = "missing_required_headers" if error.code == "MISSING_HEADERS" else _V1_ERRORS.get(error.status, code)
            return {"error": name, "error_description": detail, "error_uri": None}
        case Dialect.SEGMENT:
            return {"success": False, "code": code, "message": detail}
