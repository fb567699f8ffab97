"""What PostHog's clients ask for beside sending events: flags, surveys and remote configuration. All of it is empty.

Nothing is looked up: an unknown key gets the same reply as a valid one, and a reply costs no more than its refusal.
With this configuration posthog-js captures automatically, sends gzip, and loads no further scripts.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from handbill.kit.fast import FastDoc, FastHandler, FastReply, FastRequest, FastRoute

BODY_BYTES = 1 << 20
"""Requests for flags carry properties of the person and the groups; they are read off the connection only."""
KEEP_S = 300
CACHE = f"public, max-age={KEEP_S}"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,200}")
_EXTENSION = re.compile(r"(?:/[0-9][0-9A-Za-z.+-]{0,39})?/(?!array|main|module)[a-z][a-z0-9-]{0,60}\.js")
"""`/surveys.js` or `/1.434.18/surveys.js`, but not posthog-js itself: empty, it would lose events without an error."""
NO_EXTENSION = b"// Handbill serves no extensions of posthog-js.\n"
_CONFIG: dict[str, Any] = {
    "supportedCompression": ["gzip", "gzip-js"],
    "analytics": {"endpoint": "/e/"},
    "autocapture_opt_out": False,
    "autocaptureExceptions": False,
    "captureDeadClicks": False,
    "capturePerformance": False,
    "conversations": False,
    "defaultIdentifiedOnly": True,
    "elementsChainAsString": True,
    "errorTracking": {"autocaptureExceptions": False, "suppressionRules": []},
    "heatmaps": False,
    "isAuthenticated": False,
    "logs": {"captureConsoleLogs": False},
    "productTours": False,
    "sessionRecording": False,
    "siteApps": [],
    "toolbarParams": {},
}
"""Two members are left out. Without `hasFeatureFlags` posthog-js asks for flags, and pages that wait for them go on.
With `surveys`, even if it is false, posthog-js loads a script for them."""
_FLAGS: dict[str, Any] = {
    "errorsWhileComputingFlags": False,
    "flags": {},
    "featureFlags": {},
    "featureFlagPayloads": {},
}
_DEFINITIONS: dict[str, Any] = {"flags": [], "group_type_mapping": {}, "cohorts": {}}
_SURVEYS: dict[str, Any] = {"surveys": [], "survey_config": None}

_encode = msgspec.json.Encoder().encode


def is_token(token: str) -> bool:
    """Whether a key has a form that may be repeated in a script."""
    return _TOKEN.fullmatch(token) is not None


def is_extension(path: str) -> bool:
    """Whether a path behind `/static` names an extension that posthog-js loads when it is asked for."""
    return _EXTENSION.fullmatch(path) is not None


def config(token: str) -> bytes:
    """The configuration as JSON."""
    return _encode({"token": token, **_CONFIG})


def config_script(token: str) -> bytes:
    """The configuration as the script that posthog-js loads first. `token` must have passed `is_token`."""
    entry = _encode({"config": {"token": token, **_CONFIG}, "siteApps": []})
    name = _encode(token)
    return (
        b"(function(){var c=window._POSTHOG_REMOTE_CONFIG=window._POSTHOG_REMOTE_CONFIG||{};c[%b]=%b;})();\n"
        % (name, entry)
    )  # fmt: skip


class PosthogFlags(msgspec.Struct, frozen=True):
    """No flags. Older clients read configuration from the same reply: more members than these may be in it."""

    flags: dict[str, Any]
    """The flags by name, for newer clients: always empty."""
    featureFlags: dict[str, Any]
    """The flags by name, for older clients: always empty."""
    featureFlagPayloads: dict[str, Any]
    """What comes with each flag: always empty."""
    errorsWhileComputingFlags: bool
    """Whether a flag could not be decided: always false."""


class PosthogFlagDefinitions(msgspec.Struct, frozen=True):
    flags: list[dict[str, Any]]
    """How to decide each flag: always empty."""
    group_type_mapping: dict[str, str]
    """The types of groups by number: always empty."""
    cohorts: dict[str, Any]
    """The cohorts that flags name: always empty."""


class PosthogSurveys(msgspec.Struct, frozen=True):
    surveys: list[dict[str, Any]]
    """The surveys to show: always empty."""
    survey_config: dict[str, Any] | None = None
    """How surveys look: always null."""


class PosthogRequest(msgspec.Struct, frozen=True):
    """Whatever a client says of its user; nothing of it is read."""

    token: str | None = None
    """The write key; it is not looked up."""
    distinct_id: str | None = None


def routes() -> list[FastRoute]:
    """The addresses without a key in their path; `events.config_routes` has the others."""
    flags = FastReply(200, _encode({**_CONFIG, **_FLAGS}))
    return [
        FastRoute("POST", "/flags/", _always(flags), cors=True, body_limit=BODY_BYTES, doc=_FLAGS_DOC, open_query=True),
        *(
            FastRoute(method, path, _always(flags), cors=True, body_limit=BODY_BYTES, open_query=True)
            for path in ("/flags", "/flags/", "/decide", "/decide/")
            for method in ("POST", "GET")
            if (method, path) != ("POST", "/flags/")
        ),
        *_kept("/flags/definitions", _DEFINITIONS, _DEFINITIONS_DOC),
        *_kept("/api/feature_flag/local_evaluation", _DEFINITIONS),
        *_kept("/api/surveys", _SURVEYS, _SURVEYS_DOC),
        *_kept("/api/early_access_features", {"earlyAccessFeatures": []}),
        *_kept("/api/web_experiments", {"experiments": []}),
        *_kept("/api/product_tours", {"product_tours": []}),
    ]


def _kept(path: str, reply: dict[str, Any], doc: FastDoc | None = None) -> list[FastRoute]:
    """A GET that browsers and caches may keep for a while, with and without the slash."""
    handler = _always(FastReply(200, _encode(reply), headers=[(b"cache-control", CACHE.encode())]))
    return [
        FastRoute("GET", path, handler, cors=True, doc=doc, open_query=True),
        FastRoute("GET", f"{path}/", handler, cors=True, open_query=True),
    ]


def _always(reply: FastReply) -> FastHandler:
    async def handle(_: FastRequest) -> FastReply:
        return reply

    handle.__doc__ = "An empty reply for PostHog's clients, whatever is asked."
    return handle


_TAG = "Events"
_EMPTY = "Handbill has none of these: the reply is always empty, so that PostHog's clients go on without an error."
_FLAGS_DOC = FastDoc(
    "PostHog: feature flags", _TAG, "posthogFlags", f"{_EMPTY} Also at `/flags` and `/decide/`, and by GET.",
    PosthogRequest, {"token": "hbw_...", "distinct_id": "user-42"}, PosthogFlags, _FLAGS, codes=(413, 429),
)  # fmt: skip
_DEFINITIONS_DOC = FastDoc(
    "PostHog: definitions of feature flags", _TAG, "posthogFlagDefinitions",
    f"{_EMPTY} For clients that decide flags themselves; also at `/api/feature_flag/local_evaluation`.",
    reply=PosthogFlagDefinitions, reply_example=_DEFINITIONS,
)  # fmt: skip
_SURVEYS_DOC = FastDoc(
    "PostHog: surveys", _TAG, "posthogSurveys",
    f"{_EMPTY} `/api/early_access_features/`, `/api/web_experiments/` and `/api/product_tours/` reply likewise.",
    reply=PosthogSurveys, reply_example=_SURVEYS,
)  # fmt: skip
