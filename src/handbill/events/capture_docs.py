"""What the OpenAPI page says of the routes at which clients send events."""

from __future__ import annotations

from typing import Any

import msgspec

from handbill.events.dialects.canon import Dialect
from handbill.kit.errors import Fault
from handbill.kit.fast import FastDoc

_TAG = "Events"
_CODES = (400, 401, 403, 413, 415, 429, 503)
_ONCE = "Sent again with the same ids it counts once; 429 and 503 carry Retry-After."

ALIASES: dict[Dialect, str] = {
    Dialect.OWN: "Events of a product, in our own dialect.",
    Dialect.POSTHOG: "Events as PostHog's clients send them; the same as `POST /batch/`.",
    Dialect.POSTHOG_V1: "Events as PostHog's newer clients send them.",
    Dialect.SEGMENT: "Messages as Segment's and RudderStack's clients send them; the same as `POST /v1/batch`.",
}
"""One line for the addresses that are only other names of a described one."""


class OwnEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    event: str
    """The name of the event."""
    distinct_id: str | int
    event_id: str | None = None
    """Names the event: sent again with it, it counts once; made up if not given."""
    timestamp: str | None = None
    """When it happened, ISO 8601; without it, when it was received."""
    anonymous_id: str | None = None
    """The id that the user had before `distinct_id` was known; links both."""
    properties: dict[str, Any] = {}
    user_properties: dict[str, Any] = {}
    """Changes of the person's properties: `$set`, `$set_once` and `$unset`."""
    context: dict[str, Any] = {}
    """What is known of the moment, e.g. url, device and country."""


class OwnBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """1 to 500 events. The write key is the first of `x-api-key`, `x-write-key`, `?write_key=`, `api_key`."""

    events: list[OwnEvent]
    """The events, 1 to 500 of them."""
    sent_at: str | None = None
    api_key: str | None = None
    historical_migration: bool = False
    """Whether these are old events that are brought in: of any age, each with a `timestamp`, taken as it is."""


class OwnNote(msgspec.Struct, frozen=True):
    """`faults` name the fields that are not known, with the reason UNKNOWN_FIELD."""

    index: int
    """The position of the event in the batch, from 0."""
    reason: str
    """Why it was not accepted, as a constant."""
    faults: list[Fault] = []


class OwnTaken(msgspec.Struct, frozen=True):
    accepted: int
    """How many events were accepted."""
    dropped: list[OwnNote]
    """The events that were not accepted, and why."""
    warnings: list[OwnNote] = []
    """The events that were accepted with something left out or cut, and why; left out if there are none."""
    quota_limited: bool = False
    """Whether the day's quota is used up; then nothing was accepted."""


class PosthogBatch(msgspec.Struct, frozen=True):
    api_key: str
    batch: list[dict[str, Any]]
    """The events, as PostHog's clients write them."""
    sent_at: str | None = None
    historical_migration: bool = False
    """Whether these are old events that are brought in: of any age, each with a `timestamp`, taken as it is."""


class PosthogEvent(msgspec.Struct, frozen=True):
    api_key: str
    event: str
    distinct_id: str
    properties: dict[str, Any] = {}
    timestamp: str | None = None
    """When it happened, ISO 8601; without it, when it was received."""
    uuid: str | None = None
    """Names the event: sent again with it, it counts once."""


class PosthogTaken(msgspec.Struct, frozen=True):
    status: int
    """Always 1: the request was taken."""
    quota_limited: list[str] = []
    """What is over the day's quota; then nothing of it was accepted."""


class PosthogError(msgspec.Struct, frozen=True):
    type: str
    code: str
    detail: str
    attr: str | None = None
    """The part of the request that is wrong; null where it is none in particular."""


class PosthogV1Batch(msgspec.Struct, frozen=True):
    created_at: str
    """When the client put the batch together, ISO 8601."""
    batch: list[dict[str, Any]]
    """The events, as PostHog's newer clients write them."""


class PosthogV1Taken(msgspec.Struct, frozen=True):
    results: dict[str, Any]
    """By the `uuid` of the event: a warning, or why it was dropped; others were accepted."""


class PosthogV1Error(msgspec.Struct, frozen=True):
    error: str
    """What is wrong, as a constant."""
    error_description: str
    """What is wrong, for a person to read."""
    error_uri: str | None = None
    """Where to read more; null: nowhere."""


class SegmentBatch(msgspec.Struct, frozen=True):
    batch: list[dict[str, Any]]
    """The messages, each with its `type`."""
    writeKey: str | None = None
    sentAt: str | None = None
    """When the client sent it, ISO 8601; corrects a clock that is wrong."""


class SegmentMessage(msgspec.Struct, frozen=True):
    messageId: str | None = None
    """Names the message: sent again with it, it counts once."""
    userId: str | None = None
    """The id of the user, as you know the user."""
    anonymousId: str | None = None
    """The id of somebody who is not known yet."""
    event: str | None = None
    properties: dict[str, Any] = {}
    traits: dict[str, Any] = {}
    """Properties of the person or group."""
    context: dict[str, Any] = {}
    """What the client says of the moment, e.g. page and device."""
    writeKey: str | None = None


class SegmentTaken(msgspec.Struct, frozen=True):
    success: bool
    """Always true: the request was taken."""


class SegmentError(msgspec.Struct, frozen=True):
    success: bool
    """Always false: nothing was accepted."""
    code: str
    message: str
    """What is wrong, for a person to read."""


_AT = "2026-07-01T09:30:00.000Z"
_KEY = "hbw_..."
_OWN = {
    "sent_at": _AT,
    "events": [
        {
            "event": "order_placed",
            "distinct_id": "user-42",
            "event_id": "order-1001",
            "timestamp": _AT,
            "properties": {"total": 59.9},
            "user_properties": {"$set": {"plan": "pro"}},
        }
    ],
}
_POSTHOG_EVENT = {"event": "order placed", "distinct_id": "user-42", "properties": {"total": 59.9}, "timestamp": _AT}
_V1_EVENT = {"uuid": "0190163d-8694-739b-aea5-966c26f8ad91", **_POSTHOG_EVENT}
_MESSAGE = {"messageId": "m-1", "userId": "user-42", "event": "Order Placed", "properties": {"total": 59.9}}
_OF_POSTHOG = PosthogError, {
    "type": "authentication_error", "code": "unauthorized", "detail": "The write key is not known.", "attr": None,
}  # fmt: skip
_OF_V1 = PosthogV1Error, {
    "error": "unauthorized", "error_description": "The write key is not known.", "error_uri": None,
}  # fmt: skip
_OF_SEGMENT = SegmentError, {"success": False, "code": "unauthorized", "message": "The write key is not known."}


def _foreign(
    name: str, summary: str, body: tuple[Any, Any], reply: tuple[Any, Any], error: tuple[Any, Any], words: str
) -> FastDoc:
    return FastDoc(
        summary, _TAG, name, f"{words} {_ONCE}", *body, *reply, 200, _CODES, error=error[0], error_example=error[1]
    )


def _message(kind: str) -> FastDoc:
    words = f"One message of type {kind}, as Segment's and RudderStack's clients send it; also at `/v1/{kind[0]}`."
    error, taken = _OF_SEGMENT, (SegmentTaken, {"success": True})
    return _foreign(f"segment{kind.title()}", f"Segment: {kind}", (SegmentMessage, _MESSAGE), taken, error, words)


DOCS: dict[tuple[str, str], FastDoc] = {
    ("POST", "/v1/events"): FastDoc(
        "Send events", _TAG, "sendEvents",
        f"1 to 500 events, told one by one what was wrong. 202 means durable. {_ONCE} Over the day's quota: 200 with "
        "`quota_limited`, and nothing was kept.",
        OwnBatch, _OWN, OwnTaken, {"accepted": 1, "dropped": []}, 202, _CODES, write_key=True,
    ),
    ("POST", "/batch/"): _foreign(
        "posthogBatch", "PostHog: a batch", (PosthogBatch, {"api_key": _KEY, "batch": [_POSTHOG_EVENT]}),
        (PosthogTaken, {"status": 1}), _OF_POSTHOG,
        "Events as PostHog's clients send them, packed or not, as JSON, a form or base64; also at `/batch`, `/e/`, "
        "`/i/v0/e/`, `/track/`, `/engage/`.",
    ),
    ("POST", "/capture/"): _foreign(
        "posthogCapture", "PostHog: one event", (PosthogEvent, {"api_key": _KEY, **_POSTHOG_EVENT}),
        (PosthogTaken, {"status": 1}), _OF_POSTHOG, "One event, or a list of them, as PostHog's clients send them.",
    ),
    ("POST", "/i/v1/analytics/events"): _foreign(
        "posthogEvents", "PostHog: events, newer", (PosthogV1Batch, {"created_at": _AT, "batch": [_V1_EVENT]}),
        (PosthogV1Taken, {"results": {}}), _OF_V1, "Events as PostHog's newer clients send them, with a word on each.",
    ),
    ("POST", "/v1/batch"): _foreign(
        "segmentBatch", "Segment: a batch",
        (SegmentBatch, {"writeKey": _KEY, "batch": [{"type": "track", **_MESSAGE}]}),
        (SegmentTaken, {"success": True}), _OF_SEGMENT,
        "Messages as Segment's and RudderStack's clients send them; also at `/v1/b`, `/beacon/v1/batch`, and at "
        "`/v1/import` for messages of any age.",
    ),
    **{("POST", f"/v1/{kind}"): _message(kind) for kind in ("track", "identify", "page", "screen", "group", "alias")},
}  # fmt: skip
"""The addresses that describe themselves, by method and path; the others are their aliases."""
