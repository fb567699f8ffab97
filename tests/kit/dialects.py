"""Requests as clients of every dialect send them, for the tests of the parsers."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import lz4.frame
import zstandard

from handbill.events.dialects.canon import CapturedEvent, Moment, Parsed, Terms
from handbill.events.dialects.router import ROUTES, parse
from handbill.kit.clock import from_ms, from_us
from handbill.kit.fast import FastRequest

NOW = 1_794_830_400_000
"""2026-11-16T12:00:00Z, when every request of these tests arrives."""
VECTORS = Path(__file__).parents[1] / "vectors" / "dialects"
HEADERS = {
    b"posthog-sdk-info": b"test/1",
    b"posthog-attempt": b"1",
    b"posthog-request-id": b"r",
    b"posthog-request-timestamp": b"2026-11-16T12:00:00Z",
}
"""What the newest of the dialects cannot do without, and the others do not mind."""


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: gzip.compress(body, mtime=0),
    "zlib": zlib.compress,
    "deflate": raw_deflate,
    "zstd": lambda body: zstandard.ZstdCompressor().compress(body),
    "lz4": lz4.frame.compress,
}


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def moment() -> Moment:
    numbers = itertools.count(1)
    return Moment(NOW, lambda: f"new-{next(numbers)}")


def request(
    path: str, body: bytes, *, method: str = "POST", query: bytes = b"", headers: dict[bytes, bytes] | None = None
) -> FastRequest:
    return FastRequest(method, path, query, headers or {}, body, "203.0.113.77", "r-1")


def read(asked: FastRequest, *, tenant: int = 7, truncate_ip: bool = False) -> Parsed:
    return parse(ROUTES[asked.method, asked.path], asked, moment(), Terms(tenant, truncate_ip))


BATCHES = {"/v1/events": "events", "/batch/": "batch", "/i/v1/analytics/events": "batch", "/v1/batch": "batch"}
"""An address of every dialect, and what the list of events is called there."""


def event(n: int, us: int | None = None, id: str | None = None, /, **properties: Any) -> dict[str, Any]:
    """One event in the words of every dialect."""
    stamp = {} if us is None else {"timestamp": from_us(us).isoformat()}
    return {"event": "e", "type": "track", "id": id or f"e{n}", "properties": properties, **stamp}


def post(
    path: str,
    events: Sequence[dict[str, Any]],
    *,
    sent_at: int | None = None,
    received: int = NOW,
    query: bytes = b"",
    **more: Any,
) -> Parsed:
    """A request with these events, as a client sends it at a time of its own clock."""
    id_of = {"/v1/events": "event_id", "/v1/batch": "messageId"}.get(path, "uuid")
    user = "userId" if path == "/v1/batch" else "distinct_id"
    skipped = {"id", "type"} if path == "/v1/events" else {"id"}
    batch = [
        {user: "ada", id_of: each["id"]} | {name: value for name, value in each.items() if name not in skipped}
        for each in events
    ]
    when = None if sent_at is None else from_ms(sent_at).isoformat()
    headers = {**HEADERS, b"posthog-request-timestamp": (when or "never").encode()}
    body: dict[str, Any] = {BATCHES[path]: batch, **more}
    if when is not None and path != "/i/v1/analytics/events":
        body["sentAt" if path == "/v1/batch" else "sent_at"] = when
    asked = request(path, json.dumps(body).encode(), query=query, headers=headers)
    numbers = iter(range(10**6))
    return parse(ROUTES["POST", path], asked, Moment(received, lambda: f"new-{next(numbers)}"), Terms(7))


def only(parsed: Parsed) -> CapturedEvent:
    (event,) = parsed.events
    return event


def uuid7(ms: int, tail: int = 0) -> str:
    return str(uuid.UUID(int=ms << 80 | 0x7 << 76 | 0b10 << 62 | tail))


def from_vector(vector: dict[str, Any]) -> FastRequest:
    body = vector["text"].encode() if "text" in vector else json.dumps(vector["body"]).encode()
    query = vector.get("query", "").encode()
    if vector.get("form"):
        body = urlencode({"data": base64.b64encode(body).decode(), "compression": "base64"}).encode()
    if vector.get("in_query"):
        query, body = b"data=" + quote(base64.b64encode(body), safe="").encode(), b""
    if "pack" in vector:
        body = PACKERS[vector["pack"]](body)
    headers = {name.encode(): value.encode() for name, value in vector.get("headers", {}).items()}
    return request(vector["path"], body, method=vector.get("method", "POST"), query=query, headers=headers)
