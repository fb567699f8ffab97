"""Requests as clients of every dialect send them, for the tests of the parsers."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import lz4.frame
import zstandard

from handbill.events.dialects.canon import Moment, Parsed, Terms
from handbill.events.dialects.router import ROUTES, parse
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
