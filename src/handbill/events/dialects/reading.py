"""JSON from strangers: mended where every engine behind us would choke, and cut up without being written anew."""

from __future__ import annotations

import codecs
import ipaddress
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from handbill.events.dialects.canon import Refused
from handbill.events.reasons import Reason
from handbill.kit.bounds import SCAN_BYTES
from handbill.kit.errors import Invalid
from handbill.kit.untrusted_json import UNREADABLE, without_unstorable

T = TypeVar("T")
SMALL, WIDE = 200, 2_000
PAYLOAD_BYTES = 220 * 1024
"""Properties and sets of one event: what fits an entry of the journal beside the other fields."""
_ROUND_BYTES = 64 * 1024
"""Everything of an event that is neither properties nor sets: texts that are cut to their columns anyway."""
Fields = dict[str, msgspec.Raw]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_fields: msgspec.json.Decoder[Fields] = msgspec.json.Decoder(Fields)
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
encode = msgspec.json.Encoder().encode

# Python and old JavaScript write numbers that JSON does not have; a text that contains the words is left alone.
# Group 1 is such a number, group 2 the end of a text. What begins with one of few bytes is searched for much faster.
_NO_NUMBER = re.compile(
    rb'(-NaN\b|-Infinity\b|NaN\b(?<!\wNaN)|Infinity\b(?<!\wInfinity))|"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL
)
_REST_OF_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)


def mended(body: bytes) -> bytes:
    """The same JSON without characters that no store could keep."""
    if not body.isascii():
        body = body.removeprefix(BYTE_ORDER_MARK)
        try:
            body.decode()
        except UnicodeDecodeError:
            body = _readable(body)
    return without_unstorable(body)


def _readable(body: bytes) -> bytes:
    """What is not UTF-8 becomes U+FFFD; in parts, so that other threads run in between."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    starts = range(0, len(body), SCAN_BYTES)
    parts = [decoder.decode(body[start : start + SCAN_BYTES]).encode() for start in starts]
    return b"".join((*parts, decoder.decode(b"", final=True).encode()))


def decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Raises one of UNREADABLE. NaN and Infinity, which JSON lacks and some clients send, are read as null."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        if b"NaN" not in body and b"Infinity" not in body:
            raise
    return decoder.decode(_with_null_for_no_numbers(body))


def _with_null_for_no_numbers(body: bytes) -> bytes:
    """In linear time and in parts of SCAN_BYTES, so that other threads run in between."""
    written, copied, at = bytearray(), 0, 0
    while at < len(body):
        limit = at + SCAN_BYTES
        for found in _NO_NUMBER.finditer(body, at, limit):
            at = found.end()
            if found[1]:
                written += body[copied : found.start()]
                written += b"null"
                copied = at
            elif not found[2]:
                at = _end_of_text(body, at)
                break
        else:
            at = max(at, limit - len(b"-Infinity"))  # a number may end in the next part
    written += body[copied:]
    return bytes(written)


def _end_of_text(body: bytes, at: int) -> int:
    """Where a text ends that goes on at `at`: behind its quote, or at the end of the body if it has none."""
    while at < len(body):
        found = _REST_OF_TEXT.match(body, at, at + SCAN_BYTES)
        if found is None or found.end() == at:  # the body ends with a backslash
            break
        at = found.end()
        if found[1]:
            return at
    return len(body)


def bad_json(what: str = "The body is not the JSON this address reads") -> Invalid:
    return Invalid(f"{what}; nothing was kept.", code="BAD_JSON")


def fields_of(raw: msgspec.Raw) -> Fields:
    """An object's fields, each still in its bytes. Raises Refused if it is no object, or far too large a one."""
    if len(raw) > PAYLOAD_BYTES + _ROUND_BYTES:
        raise Refused(Reason.EVENT_TOO_LARGE)
    try:
        return _fields.decode(raw)
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_EVENT) from None


def plain(raw: msgspec.Raw | None) -> Any:
    """The value of a small field; None where it cannot be read, or is not small at all."""
    if not raw or len(raw) > _ROUND_BYTES:
        return None
    try:
        return _anything.decode(raw)
    except UNREADABLE:
        return None


def id_text(raw: msgspec.Raw | None) -> str | None:
    """An id as text: numbers and containers are their own JSON; null, nothing and the empty text are None."""
    if not raw:
        return None
    value = plain(raw)
    if value is None or isinstance(value, str):
        return value or None
    return msgspec.json.format(bytes(raw), indent=-1).decode()


def text(value: Any, most: int = SMALL, warned: list[Reason] | None = None) -> str | None:
    """A text that fits its column; anything that is no text, or an empty one, is None. Once cut, it is `warned` of."""
    if type(value) is not str or not value:
        return None
    if len(value) <= most:
        return value
    if warned is not None and Reason.CONTEXT_CUT not in warned:
        warned.append(Reason.CONTEXT_CUT)
    return value[:most]


def number_or_text(value: Any, warned: list[Reason] | None = None) -> str | None:
    """Versions and session ids are numbers in some clients and texts in others."""
    return str(value) if type(value) in (int, float) else text(value, SMALL, warned)


def screen(value: Any) -> int | None:
    """A screen's side in pixels, 0 to 65535; whatever else it is, it is not known."""
    if type(value) is float and value == int(value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= 65_535 else None


def object_of(raw: msgspec.Raw | None) -> bytes | None:
    """The bytes of a JSON object, None where nothing or null was sent. Raises Refused if it is anything else."""
    if not raw:
        return None
    found = bytes(raw)
    if found[0] == 0x7B:
        return found
    if found == b"null":
        return None
    raise Refused(Reason.MALFORMED_PROPERTIES)


def merged(first: bytes | None, winner: bytes | None) -> bytes | None:
    """Two JSON objects in one; where both have a name, the second's value stands."""
    if first is None or winner is None:
        return first if winner is None else winner
    return encode({**_fields.decode(first), **_fields.decode(winner)})


def names_of(values: Iterable[Any]) -> bytes | None:
    """What to unset, from lists of names or from objects whose keys are the names; None if there is nothing."""
    found: dict[str, None] = {}
    for value in values:
        if isinstance(value, (list, dict)):
            found.update((name, None) for name in value if isinstance(name, str))
    return encode(list(found)) if found else None


def spliced(properties: bytes, extra: dict[str, bytes]) -> bytes:
    """The object with more fields at its end, not decoded. A name that it has already keeps the sender's value."""
    keys = {name: encode(name) for name in extra}
    if any(key in properties for key in keys.values()):
        had = _fields.decode(properties)
        keys = {name: key for name, key in keys.items() if name not in had}
    if not keys:
        return properties
    added = b",".join(key + b":" + extra[name] for name, key in keys.items())
    inside = properties[1:-1].strip()
    return b"{" + inside + b"," + added + b"}" if inside else b"{" + added + b"}"


def check_size(*parts: bytes | None) -> None:
    if sum(len(part) for part in parts if part) > PAYLOAD_BYTES:
        raise Refused(Reason.EVENT_TOO_LARGE)


def address(value: Any, truncate: bool) -> str | None:
    """An IP address in its own form; of a truncated one only the network stays (/24, /48)."""
    if not isinstance(value, str) or not value:
        return None
    try:
        found = ipaddress.ip_address(value.strip().partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    if not truncate:
        return str(found)
    bits = 24 if found.version == 4 else 48
    return str(ipaddress.ip_network(f"{found}/{bits}", strict=False).network_address)


def without_ip(properties: bytes, name: str = "$ip") -> bytes:
    """The properties with the address in them truncated too; one that cannot be read becomes null."""
    if encode(name) not in properties:
        return properties
    found = _fields.decode(properties)
    if name not in found:
        return properties
    return encode({**found, name: msgspec.Raw(encode(address(plain(found[name]), truncate=True)))})
