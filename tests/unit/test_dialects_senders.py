"""A request's address and user agent are its person's only where a browser or an app sent it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handbill.events import enrich
from handbill.events.dialects.senders import Sender, sender_of
from handbill.events.model import PERSONLESS, CapturedEvent
from tests.kit.dialects import BATCHES, HEADERS, only, read, request

CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36"
IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Version/17.5 Mobile/15E148 Safari"
REQUESTS = "python-requests/2.32.3"
THEIRS = "203.0.113.77"
"""The address from which every request of these tests comes."""
POSTHOG = ("/batch/", "/i/v1/analytics/events")


def sent(path: str, agent: str, /, *, lib: str | None = None, **properties: Any) -> CapturedEvent:
    one: dict[str, Any] = {"event": "e", "properties": properties, "timestamp": "2026-11-16T11:59:00Z"}
    if path == "/v1/batch":
        one |= {"type": "track", "userId": "ada", "messageId": "m"}
        one |= {"context": {"library": {"name": lib}}} if lib else {}
    elif path == "/v1/events":
        one |= {"distinct_id": "ada", "event_id": "m"} | ({"context": {"lib": lib}} if lib else {})
    else:
        one |= {"distinct_id": "ada", "uuid": "m"}
        one["properties"] = {**({"$lib": lib} if lib else {}), **properties}
    headers = {**HEADERS, b"user-agent": agent.encode()}
    if lib and path == "/i/v1/analytics/events":
        headers[b"posthog-sdk-info"] = f"{lib}/1.0".encode()
    return only(read(request(path, json.dumps({BATCHES[path]: [one]}).encode(), headers=headers)))


@pytest.mark.parametrize("path", BATCHES)
@pytest.mark.parametrize("agent", [REQUESTS, "curl/8.5.0", "Go-http-client/2.0", "axios/1.7.2", "node", ""])
def test_programs_are_not_the_person(path: str, agent: str) -> None:
    event = sent(path, agent)
    assert (event.ip, event.user_agent) == (None, None)
    assert enrich.agent(event).browser == ""
    assert enrich.country(event, lambda _: "us") == ""


@pytest.mark.parametrize("path", BATCHES)
@pytest.mark.parametrize("agent", [CHROME, IPHONE, "MyShop/3 CFNetwork/1490.0.4 Darwin/23.2.0", "Dalvik/2.1.0 (Linux)"])
def test_browsers_and_apps_are(path: str, agent: str) -> None:
    event = sent(path, agent)
    assert (event.ip, event.user_agent) == (THEIRS, agent)
    assert enrich.country(event, lambda _: "us") == "US"


@pytest.mark.parametrize(
    ("path", "lib"),
    [
        *((path, lib) for path in POSTHOG for lib in ("posthog-python", "posthog-node", "posthog-ruby", "posthog-go")),
        *(("/v1/batch", lib) for lib in ("analytics-python", "@segment/analytics-node", "Analytics.NET")),
        ("/v1/events", "my-node-backend"),
    ],
)
def test_libraries_of_servers_are_not_whatever_user_agent_they_pass_on(path: str, lib: str) -> None:
    event = sent(path, CHROME, lib=lib)
    assert (event.lib, event.ip, event.user_agent) == (lib, None, None)


@pytest.mark.parametrize(
    ("path", "lib"),
    [
        *((path, lib) for path in POSTHOG for lib in ("posthog-ios", "posthog-android", "posthog-react-native")),
        *(("/v1/batch", lib) for lib in ("analytics-swift", "com.rudderstack.android.sdk.core", "rudder-ios-library")),
        ("/v1/events", "my-flutter-app"),
    ],
)
def test_libraries_of_apps_are(path: str, lib: str) -> None:
    event = sent(path, "okhttp/4.12.0", lib=lib)
    assert (event.ip, event.user_agent) == (THEIRS, "okhttp/4.12.0")


@pytest.mark.parametrize("lib", ["web", "analytics.js", "RudderLabs JavaScript SDK", "handbill.js", "axios", "Google"])
def test_of_other_libraries_the_user_agent_decides(lib: str) -> None:
    assert sender_of(None, lib, is_persons=True) is Sender.PERSON
    assert sender_of(None, lib, is_persons=False) is Sender.OTHER


def test_what_the_message_says_of_its_person_stands() -> None:
    named = {"$ip": "198.51.100.7", "$raw_user_agent": IPHONE, "$os": "Linux", "$os_version": "6.8"}
    for path in POSTHOG:
        event = sent(path, "posthog-python/7.79.0", lib="posthog-python", **{"$is_server": True}, **named)
        assert (event.ip, event.user_agent) == ("198.51.100.7", IPHONE)
        assert (event.os, enrich.agent(event).os) == (None, "iOS"), "the library attaches the server's own system"
        assert json.loads(event.properties)["$os"] == "Linux"
        assert sent(path, REQUESTS, **{"$os": "iOS"}).os == "iOS"
    context = {"ip": "198.51.100.7", "userAgent": IPHONE, "os": {"name": "iOS"}}
    body = {"batch": [{"type": "track", "event": "e", "userId": "ada", "context": context}]}
    event = only(read(request("/v1/batch", json.dumps(body).encode(), headers={b"user-agent": REQUESTS.encode()})))
    assert (event.ip, event.user_agent, event.os) == ("198.51.100.7", IPHONE, "iOS")


@pytest.mark.parametrize("path", [*POSTHOG, "/v1/events"])
def test_the_message_may_say_that_its_sender_is_a_server_or_is_none(path: str) -> None:
    event = sent(path, CHROME, lib=None, **{"$is_server": True})
    assert (event.ip, event.user_agent) == (None, None)
    event = sent(path, REQUESTS, lib="posthog-node", **{"$is_server": False})
    assert (event.ip, event.user_agent) == (THEIRS, REQUESTS)


# ------------------------------------------------------------------------------------------------- nobody's events
@pytest.mark.parametrize("path", [*POSTHOG, "/v1/events"])
@pytest.mark.parametrize("name", ["look", "$set", "$identify", "$create_alias", "$merge_dangerously"])
def test_an_event_without_a_profile_changes_nobody_and_says_so(path: str, name: str) -> None:
    inside = {"$process_person_profile": False, "$anon_distinct_id": "anon", "alias": "anon", "$set": {"plan": "pro"}}
    headers = {**HEADERS, b"user-agent": CHROME.encode()}
    id_name = "event_id" if path == "/v1/events" else "uuid"
    one = {"event": name, "distinct_id": "ada", id_name: "i", "timestamp": "2026-11-16T11:59:00Z", "properties": inside}
    parsed = read(request(path, json.dumps({BATCHES[path]: [one]}).encode(), headers=headers))
    event = only(parsed)
    assert (event.set, event.set_once, event.unset, event.edge) == (None, None, None, None)
    assert PERSONLESS in event.marks
    assert json.loads(event.properties) | inside == json.loads(event.properties), "the event keeps what was sent"
    assert [note.reason.value for note in parsed.warned] == ["PERSON_PROFILE_OFF"]


def test_the_newer_formats_option_counts_before_the_property() -> None:
    for option, inside, is_off in (
        (False, None, True),
        (True, False, False),
        (None, False, True),
        (None, "false", False),
    ):
        properties = {} if inside is None else {"$process_person_profile": inside}
        one = {
            "event": "e", "uuid": "u", "distinct_id": "ada", "timestamp": "2026-11-16T11:59:00Z",
            "options": {"process_person_profile": option}, "properties": properties,
        }  # fmt: skip
        parsed = read(request("/i/v1/analytics/events", json.dumps({"batch": [one]}).encode(), headers=HEADERS))
        assert (PERSONLESS in only(parsed).marks) == is_off
        assert not parsed.warned, "nothing was left out"


# ------------------------------------------------------------------------------------------------- UTM
def test_the_campaign_of_segments_clients_becomes_utm_properties() -> None:
    campaign = {"source": "news", "medium": "mail", "name": "autumn", "term": 7, "content": "", "id": "c-1"}
    one = {
        "type": "page", "anonymousId": "ada", "messageId": "m", "properties": {"utm_medium": "own"},
        "context": {"campaign": campaign},
    }  # fmt: skip
    event = only(read(request("/v1/batch", json.dumps({"batch": [one]}).encode())))
    kept = json.loads(event.properties)
    assert {name: value for name, value in kept.items() if name.startswith("utm_")} == {
        "utm_source": "news", "utm_medium": "own", "utm_campaign": "autumn", "utm_term": "7",
    }  # fmt: skip
    assert kept["$context"]["campaign"] == campaign
    unusual: tuple[Any, ...] = (None, "autumn", [], {"source": {"a": 1}, "name": None})
    for odd in unusual:
        one = {"type": "track", "event": "e", "userId": "ada", "context": {"campaign": odd}}
        event = only(read(request("/v1/batch", json.dumps({"batch": [one]}).encode())))
        assert not any(name.startswith("utm_") for name in json.loads(event.properties))
