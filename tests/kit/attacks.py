"""What once stopped, filled or slowed an installation, as requests of one tenant with keys and of somebody without.

Each attack is an endless series of shots, the worst of their kind that a route accepts or has to refuse. `sockets` are
no requests but connections that are opened and kept.
"""

from __future__ import annotations

import gzip
import json
import random
import string
import zlib
from collections.abc import Callable, Iterator

import jwt
import msgspec

MIB = 1 << 20
INLINE = 64_000
"""Bodies up to 64 KiB are read on the event loop."""
HARD_PATTERNS = ("(?:a?){24}b", "(?:a?){50}a*b", "(?:a|aa|aaa|a|aa)" * 12 + "b", "(?:.?){300}b", "(a|aa)*x")
HOME = "/v1/decide"
JSON = {"Content-Type": "application/json"}
GZIP = {**JSON, "Content-Encoding": "gzip"}


class Target(msgspec.Struct, frozen=True):
    """The attackers' own tenant, and the import that they have uploaded."""

    base: str
    redis_url: str
    tenant_id: int
    banner_number: int
    write_key: str
    secret_key: str
    banner: str
    placement: str
    jwt_secret: str
    import_id: str = ""


class Shot(msgspec.Struct, frozen=True):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


Attack = Callable[[Target, random.Random], Iterator[Shot]]
"""Shots without end. What makes each one different from the last is drawn when it is asked for."""


def _keyed(target: Target) -> dict[str, str]:
    return {**JSON, "X-Write-Key": target.write_key}


def _secret(target: Target) -> dict[str, str]:
    return {**JSON, "Authorization": f"Bearer {target.secret_key}"}


def bodies_that_backtracked(target: Target, rng: random.Random) -> Iterator[Shot]:
    while True:
        for size in (72, INLINE, 4 * MIB):
            body = b'NaN"' + b'\\"' * (size // 2)
            yield Shot("POST", "/v1/events", JSON, body)
            yield Shot("POST", "/v1/events", _keyed(target), body)
            named = b'{"api_key":"%s","a":NaN,"x":"' % target.write_key.encode() + b'\\"' * (size // 2)
            yield Shot("POST", "/batch/", JSON, named)


def targeting_patterns(target: Target, rng: random.Random) -> Iterator[Shot]:
    while True:
        url = "a" * 950 + "".join(rng.choices("ab", k=50))
        body = {"user_id": rng.randbytes(8).hex(), "placements": ["home"], "context": {"url": url}}
        yield Shot("POST", HOME, _keyed(target), json.dumps(body).encode())


def packed_bodies(target: Target, rng: random.Random) -> Iterator[Shot]:
    empty = gzip.compress(b"") * (4 * MIB // 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(64)) + packer.flush()
    small = gzip.compress(b"[" * 60_000)
    admin = {**_secret(target), "Content-Encoding": "gzip"}
    while True:
        for body in (empty, bomb, small):
            yield Shot("POST", "/v1/events", {**_keyed(target), "Content-Encoding": "gzip"}, body)
            yield Shot("POST", "/batch/", GZIP, body)
            yield Shot("POST", "/admin/banners", admin, body)


def bodies_large_when_unpacked(target: Target, rng: random.Random) -> Iterator[Shot]:
    """A few kilobytes that unpack to many, and that a pattern takes long for. Two of them have no key."""
    size = 8 * MIB
    key = b'{"api_key":"%s","batch":[' % target.write_key.encode()
    plain = (
        b"hbw_" * (size // 4),
        key + b"1," * (size // 2) + b"NaN]}",
        b"data=" + b"%22" * (size // 3),
        key + b'"",' * (MIB // 3) + b"NaN]}",
    )
    packed = [gzip.compress(body) for body in plain]
    while True:
        for body in packed:
            yield Shot("POST", "/batch/", GZIP, body)


def deep_json(target: Target, rng: random.Random) -> Iterator[Shot]:
    lists, objects = b"[" * 30_000 + b"]" * 30_000, b'{"all":[' * 7_000 + b"]}" * 7_000
    while True:
        for deep in (lists, objects):
            yield Shot(
                "POST",
                "/v1/events",
                _keyed(target),
                b'{"events":[{"event":"a","distinct_id":"b","properties":{"x":%s}}]}' % deep,
            )
            for path in ("/admin/banners", "/admin/segments"):
                yield Shot("POST", path, _secret(target), b'{"rule":%s,"targeting":%s}' % (deep, deep))
            yield Shot("POST", HOME, _keyed(target), b'{"user_id":"a","context":{"custom":{"x":%s}}}' % deep)


def long_values(target: Target, rng: random.Random) -> Iterator[Shot]:
    letters = string.ascii_letters + "/.;() "
    while True:
        odd = "Mozilla/5.0 (" + "".join(rng.choices(letters, k=480))
        for agent in (odd, odd * 60, "x" * 390_000):
            yield Shot("POST", HOME, {**_keyed(target), "User-Agent": agent}, b'{"user_id":"a","placements":["home"]}')
        long = "i" * 400_000
        event = {"event": long, "distinct_id": long, "$device_id": long, "$session_id": long}
        yield Shot("POST", "/v1/events", _keyed(target), json.dumps({"events": [event] * 2}).encode())
        asked = {
            "user_id": long,
            "device_id": long,
            "session_id": long,
            "context": {"custom": {"a": long}, "time_zone": long},
        }
        yield Shot("POST", HOME, _keyed(target), json.dumps(asked | {"placements": ["home"]}).encode()[: MIB - 1])
        for size in (5_000, 20_000):
            claims = {"sub": "a" * 150, "exp": 4_000_000_000, "x": "c" * size, "n": rng.random()}
            token = jwt.encode(claims, target.jwt_secret, algorithm="HS256")
            yield Shot("POST", HOME, {**_keyed(target), "Authorization": f"Bearer {token}"}, b'{"placements":["home"]}')


def refused_events(target: Target, rng: random.Random) -> Iterator[Shot]:
    nothing = b'{"events":[' + b"1," * 400_000 + b"1]}"
    nameless = json.dumps({"events": [{"distinct_id": "null", "n": n} for n in range(3_000)]}).encode()
    while True:
        yield Shot("POST", "/v1/events", _keyed(target), nothing)
        yield Shot("POST", "/v1/events", _keyed(target), nameless)


def heavy_questions(target: Target, rng: random.Random) -> Iterator[Shot]:
    days = {"from": "2026-06-01", "to": "2026-07-30"}
    where = [{"property": "plan", "op": "contains", "values": ["o"]}]
    series = [{"event": "buy", "measure": "sum", "of": "amount", "filters": where}, {"measure": "people"}] * 4
    while True:
        trends = {**days, "series": series, "breakdown": {"property": "plan"}, "groups": 5, "compare": True}
        yield Shot("POST", "/v1/insights/trends", _secret(target), json.dumps(trends).encode())
        steps = {**days, "steps": [{"event": "view"}, {"event": "buy"}] * 4, "window_s": 604800}
        yield Shot("POST", "/v1/insights/funnels", _secret(target), json.dumps(steps).encode())
        back = {**days, "begins": {"event": "view"}, "period": "day"}
        yield Shot("POST", "/v1/insights/retention", _secret(target), json.dumps(back).encode())
        yield Shot("GET", "/v1/insights/events?from=2026-06-01&to=2026-08-01&limit=200", _secret(target))


def large_answers(target: Target, rng: random.Random) -> Iterator[Shot]:
    """Stored events with large properties, as a page and as a table."""
    while True:
        yield Shot("GET", "/v1/insights/events?from=2026-05-01&to=2026-05-20&limit=200", _secret(target))
        yield Shot("GET", "/v1/insights/events.csv?from=2026-05-01&to=2026-05-20", _secret(target))


def floods_for_tails(target: Target, rng: random.Random) -> Iterator[Shot]:
    """Events with large properties, which each live tail of the tenant shows."""
    while True:
        value = {"text": "v" * 1_000}
        events = [
            {"event": "f", "distinct_id": f"d{rng.random()}", "event_id": rng.randbytes(16).hex(), "properties": value}
            for _ in range(400)
        ]
        yield Shot("POST", "/v1/events", _keyed(target), json.dumps({"events": events}).encode())


def heavy_file() -> bytes:
    """Cells on which the patterns of phones and addresses took quadratic time."""
    cells = ("1" * 20_000, "1 " * 10_000, "ext" + " " * 20_000 + "z", "1-(" * 7_000, "a." * 10_000)
    rows = [f"Ada,{cell},{cell},{cell}" for cell in cells]
    return ("Nome,Celular,E-mail,Obs\n" + "\n".join(rows * 20) + "\n").encode()


def previews(target: Target, rng: random.Random) -> Iterator[Shot]:
    while True:
        yield Shot("GET", f"/admin/imports/{target.import_id}/preview?rows=50", _secret(target))


def uploads(target: Target, rng: random.Random) -> Iterator[Shot]:
    """Files that are uploaded and never started."""
    headers = {"Authorization": f"Bearer {target.secret_key}", "Content-Type": "text/csv"}
    file = heavy_file()[:200_000]
    packed = gzip.compress(b"name,phone\n" + b"a,b\n" * 2_000_000)
    while True:
        yield Shot("POST", "/admin/imports?name=a.csv", headers, file)
        yield Shot("POST", "/admin/imports?name=a.csv.gz", headers, packed)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        bodies_that_backtracked, targeting_patterns, packed_bodies, bodies_large_when_unpacked, deep_json, long_values,
        refused_events, heavy_questions, large_answers, floods_for_tails, previews, uploads,
    )
}  # fmt: skip


def sockets(target: Target) -> Iterator[bytes]:
    """The first bytes of connections that then send nothing: bodies announced, heads not ended, tails, nothing."""
    host = b"Host: x\r\nContent-Type: application/json\r\n"
    secret = b"Authorization: Bearer %s\r\n" % target.secret_key.encode()
    for _ in range(40):
        yield b"POST /batch/ HTTP/1.1\r\n%sContent-Length: 20000000\r\n\r\n{" % host
        yield b"POST /v1/events HTTP/1.1\r\n%sContent-Length: 5000000\r\n\r\n{" % host
        yield b"POST /admin/imports?name=a.csv HTTP/1.1\r\n%s%sContent-Length: 900000000\r\n\r\na" % (host, secret)
        yield b"POST /v1/events HTTP/1.1\r\nHost: x\r\nX-A: "
        yield b""
    for _ in range(4):
        yield b"GET /v1/insights/tail HTTP/1.1\r\n%s%s\r\n" % (host, secret)
