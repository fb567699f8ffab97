"""What the provider tells us afterwards: proving that it was the provider, and reading it into typed facts.

Reading never fails. A part that cannot be understood becomes an `Odd` fact that keeps its bytes; the parts beside it
are read all the same.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from handbill.messaging.facts import (
    AlertFact,
    Fact,
    Failure,
    InboundFact,
    Odd,
    PreferenceFact,
    StatusFact,
    TemplateFact,
)
from handbill.messaging.lattice import WORDS, Status

_ALERTS = frozenset(
    {
        "account_alerts",
        "account_update",
        "account_review_update",
        "business_capability_update",
        "business_status_update",
        "phone_number_name_update",
        "phone_number_quality_update",
        "security",
    }
)
_TEXT_LIMIT = 8192


def sign(secret: str, body: bytes) -> str:
    """The header's value for a body; the provider's side of `signed`, for tests and for webhooks of our own."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def signed(secrets: Iterable[str], body: bytes, header: str | None) -> bool:
    """Whether one of the app secrets (two while one is being rotated) signed exactly these bytes. Constant time."""
    sent = (header or "").strip().encode("utf-8", "surrogatepass")
    good = False
    for secret in secrets:
        if secret:
            good |= hmac.compare_digest(sign(secret, body).encode(), sent)
    return good


def handshake(query: Mapping[str, str], verify_token: str) -> str | None:
    """The challenge to repeat when the provider subscribes with our own token; None refuses it."""
    sent = query.get("hub.verify_token", "").encode("utf-8", "surrogatepass")
    if query.get("hub.mode") != "subscribe" or not verify_token:
        return None
    if not hmac.compare_digest(verify_token.encode(), sent):
        return None
    challenge = query.get("hub.challenge", "")
    return challenge if challenge.isascii() and challenge.isalnum() and len(challenge) <= 256 else None


def parse(body: bytes) -> tuple[Fact, ...]:
    """Every fact of one request, in the order in which they stand there."""
    try:
        return tuple(_whole(msgspec.json.decode(body)))
    except (ValueError, RecursionError) as error:
        return (Odd(_key("odd", body), "", f"not JSON that can be read: {error}", body),)


def _whole(whole: Any) -> Iterator[Fact]:
    entries = whole.get("entry") if isinstance(whole, dict) else None
    if not isinstance(entries, list) or whole.get("object") != "whatsapp_business_account":
        yield _odd("", "not about a WhatsApp business account", whole)
        return
    for entry in entries:
        yield from _entry(entry)


def _entry(entry: Any) -> Iterator[Fact]:
    changes = entry.get("changes") if isinstance(entry, dict) else None
    if not isinstance(changes, list):
        yield _odd("", "an entry without changes", entry)
        return
    waba = _text(entry.get("id"))
    at_ms = _time(entry.get("time"))
    for change in changes:
        field = _text(change.get("field")) if isinstance(change, dict) else ""
        value = change.get("value") if isinstance(change, dict) else None
        if not isinstance(value, dict):
            yield _odd(field, "a change without a value", change)
        elif field in ("messages", "user_preferences"):
            yield from _messages(field, waba, value)
        elif field.startswith(("message_template_", "template_")):
            yield _template(field, waba, at_ms, value)
        elif field in _ALERTS:
            event = _text(value.get("event") or value.get("alert_type") or value.get("current_limit"))
            yield AlertFact(_key(field, waba, at_ms, _bytes(value)), waba, field, event, at_ms, _bytes(value))
        else:
            yield _odd(field, "a field this release does not know", value)


Reader = Callable[[str, str, Mapping[str, str], dict[str, Any]], Fact]


def _messages(field: str, waba: str, value: dict[str, Any]) -> Iterator[Fact]:
    metadata = value.get("metadata")
    number = _text(metadata.get("phone_number_id")) if isinstance(metadata, dict) else ""
    names = _names(value.get("contacts"))
    readers: tuple[tuple[str, Reader], ...] = (
        ("statuses", _status),
        ("messages", _inbound),
        ("user_preferences", _preference),
    )
    known = False
    for part, read in readers:
        items = value.get(part)
        if not isinstance(items, list):
            continue
        known = True
        for item in items:
            yield read(waba, number, names, item) if isinstance(item, dict) else _odd(field, f"{part}: no object", item)
    errors = value.get("errors")
    if isinstance(errors, list) and errors:
        raw = _bytes(errors)
        yield AlertFact(_key("errors", waba, number, raw), waba, "errors", str(_failures(errors)[0].code), 0, raw)
    elif not known:
        yield _odd(field, "neither statuses nor messages", value)


def _status(waba: str, number: str, _: Mapping[str, str], item: dict[str, Any]) -> Fact:
    wamid, word = _text(item.get("id")), _text(item.get("status"))
    status = WORDS.get(word)
    if not wamid or status is None or status is Status.ACCEPTED:
        return _odd("messages", f"a status that is not known: {word[:40]!r}", item)
    pricing = item.get("pricing")
    pricing = pricing if isinstance(pricing, dict) else {}
    opaque = item.get("biz_opaque_callback_data")
    billable = pricing.get("billable")
    # A second report of the same status with another error is another fact: which one counts, the lattice decides.
    return StatusFact(
        key=_key("status", wamid, status.word, _text(item.get("timestamp")), _bytes(item.get("errors"))),
        waba_id=waba,
        number_id=number,
        wamid=wamid,
        status=status,
        at_ms=_time(item.get("timestamp")),
        address=_text(item.get("recipient_id") or item.get("recipient_user_id")),
        opaque=opaque if isinstance(opaque, str) else None,
        failures=_failures(item.get("errors")),
        category=_text(pricing.get("category")) or None,
        billable=billable if isinstance(billable, bool) else None,
        raw=_bytes(item),
    )


def _inbound(waba: str, number: str, names: Mapping[str, str], item: dict[str, Any]) -> Fact:
    wamid, sender = _text(item.get("id")), _text(item.get("from") or item.get("from_user_id"))
    kind = _text(item.get("type")) or "unknown"
    if not wamid or not sender:
        return _odd("messages", "a message without an id or a sender", item)
    inner = item.get(kind)
    inner = inner if isinstance(inner, dict) else {}
    if kind == "system" and inner.get("type") == "user_preference_changed" and "marketing" in inner:
        said = {"wa_id": sender, "value": inner["marketing"], "timestamp": item.get("timestamp")}
        return _preference(waba, number, names, {**said, "category": "marketing_messages"})
    text, payload = _words(kind, inner)
    context = item.get("context")
    return InboundFact(
        key=_key("inbound", wamid),
        waba_id=waba,
        number_id=number,
        wamid=wamid,
        sender=sender,
        name=names.get(sender, ""),
        at_ms=_time(item.get("timestamp")),
        kind=kind,
        text=text,
        payload=payload,
        media_id=_text(inner.get("id")) or None if "mime_type" in inner else None,
        reply_to=_text(context.get("id")) or None if isinstance(context, dict) else None,
        raw=_bytes(item),
    )


def _words(kind: str, inner: dict[str, Any]) -> tuple[str, str]:
    """What a message says in words, and the note of the button behind it."""
    if kind == "interactive":
        reply = inner.get(_text(inner.get("type")))
        reply = reply if isinstance(reply, dict) else {}
        return _text(reply.get("title") or reply.get("body")), _text(reply.get("id") or reply.get("response_json"))
    said = inner.get("body") or inner.get("text") or inner.get("caption") or inner.get("emoji")
    return _text(said), _text(inner.get("payload"))


def _preference(waba: str, number: str, _: Mapping[str, str], item: dict[str, Any]) -> Fact:
    address, value = _text(item.get("wa_id") or item.get("user_id")), _text(item.get("value")).lower()
    category, at_ms = _text(item.get("category")), _time(item.get("timestamp"))
    key = _key("preference", address, category, value, at_ms)
    if address and value == "stop":
        return PreferenceFact(key, waba, number, address, category, "stop", at_ms, _bytes(item))
    if address and value == "resume":
        return PreferenceFact(key, waba, number, address, category, "resume", at_ms, _bytes(item))
    return _odd("user_preferences", f"a preference that is not known: {value[:40]!r}", item)


def _template(field: str, waba: str, at_ms: int, value: dict[str, Any]) -> Fact:
    template, name = _text(value.get("message_template_id")), _text(value.get("message_template_name"))
    event = _text(value.get("event") or value.get("new_quality_score") or value.get("new_category"))
    return TemplateFact(
        key=_key(field, waba, at_ms, _bytes(value)),
        waba_id=waba,
        field=field,
        template_id=template,
        name=name,
        language=_text(value.get("message_template_language")),
        event=event.upper(),
        reason=_text(value.get("reason")),
        at_ms=at_ms,
        raw=_bytes(value),
    )


def _failures(errors: Any) -> tuple[Failure, ...]:
    found = []
    for item in errors if isinstance(errors, list) else ():
        error = item if isinstance(item, dict) else {}
        data = error.get("error_data")
        details = data.get("details") if isinstance(data, dict) else None
        code = error.get("code")
        code = code if isinstance(code, int) else int(code) if isinstance(code, str) and code.isdecimal() else 0
        code = code if 0 <= code < 2**31 else 0
        found.append(Failure(code, _text(details or error.get("message") or error.get("title"))[:500]))
    return tuple(found)


def _names(contacts: Any) -> dict[str, str]:
    found = {}
    for contact in contacts if isinstance(contacts, list) else ():
        profile = contact.get("profile") if isinstance(contact, dict) else None
        if isinstance(profile, dict):
            for known in (contact.get("wa_id"), contact.get("user_id")):
                found[_text(known)] = _text(profile.get("name"))[:200]
    return found


def _text(value: Any) -> str:
    """Text, or a number as text; anything else is nothing. Bounded, and without what no text column takes."""
    if isinstance(value, str):
        return value[:_TEXT_LIMIT].replace("\0", "").encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _time(value: Any) -> int:
    """Unix seconds, as a number or as text, in milliseconds; 0 where none was sent."""
    text = _text(value)
    return int(text) * 1000 if text.isascii() and text.isdecimal() and len(text) <= 12 else 0


def _bytes(value: Any) -> bytes:
    """The part as JSON again, keys sorted: equal parts of two copies are equal bytes."""
    return msgspec.json.encode(value, order="deterministic")


def _key(*parts: str | int | bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        piece = part if isinstance(part, bytes) else str(part).encode("utf-8", "replace")
        digest.update(len(piece).to_bytes(4, "big") + piece)
    return digest.hexdigest()


def _odd(field: str, reason: str, value: Any) -> Odd:
    raw = _bytes(value)
    return Odd(_key("odd", field, raw), field, reason, raw)
