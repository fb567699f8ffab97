"""Webhooks: who signed them, what they say, and one end state for every order and repetition."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.messaging import webhooks
from handbill.messaging.facts import AlertFact, Fact, InboundFact, Odd, PreferenceFact, StatusFact, TemplateFact
from handbill.messaging.lattice import NOTHING, WORDS, Mark, Standing, Status, fold, join, of

SECRET = "an-app-secret"


def body(field: str, value: Any, **entry: Any) -> bytes:
    change = {"field": field, "value": value}
    whole = {"object": "whatsapp_business_account", "entry": [{"id": "77", "changes": [change], **entry}]}
    return json.dumps(whole).encode()


def messages(**parts: Any) -> bytes:
    metadata = {"phone_number_id": "42", "display_phone_number": "15550001111"}
    return body("messages", {"messaging_product": "whatsapp", "metadata": metadata, **parts})


def one(raw: bytes) -> Any:
    facts = webhooks.parse(raw)
    assert len(facts) == 1
    return facts[0]


@given(st.binary(max_size=200), st.text(max_size=20), st.integers(0, 2000))
def test_only_the_secret_signs_and_only_these_bytes(raw: bytes, secret: str, flip: int) -> None:
    secret = "s" + secret.encode("utf-8", "ignore").decode()
    header = webhooks.sign(secret, raw)
    assert webhooks.signed([secret], raw, header)
    assert webhooks.signed(["an older one", secret], raw, header)
    assert not webhooks.signed([secret + "x"], raw, header)
    assert not webhooks.signed([secret], raw + b" ", header)
    place = flip % len(header)
    changed = header[:place] + ("0" if header[place] != "0" else "1") + header[place + 1 :]
    assert not webhooks.signed([secret], raw, changed)


@pytest.mark.parametrize("header", [None, "", "sha256=", "sha1=00", "\ud800", "sha256=" + "é" * 64])
def test_no_signature_is_no_signature(header: str | None) -> None:
    assert not webhooks.signed([SECRET], b"{}", header)
    assert not webhooks.signed(["", ""], b"{}", webhooks.sign("", b"{}")), "an empty secret signs nothing"


def test_the_known_vector() -> None:
    # HMAC-SHA256, RFC 4231 case 2.
    header = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert webhooks.signed(["Jefe"], b"what do ya want for nothing?", header)


def test_the_handshake() -> None:
    query = {"hub.mode": "subscribe", "hub.verify_token": "mine", "hub.challenge": "1158201444"}
    assert webhooks.handshake(query, "mine") == "1158201444"
    assert webhooks.handshake(query, "other") is None
    assert webhooks.handshake(query, "") is None
    assert webhooks.handshake({**query, "hub.mode": "unsubscribe"}, "mine") is None
    assert webhooks.handshake({**query, "hub.challenge": "<script>"}, "mine") is None
    assert webhooks.handshake({**query, "hub.verify_token": "\ud800"}, "mine") is None


def test_a_status_with_its_error_and_our_note() -> None:
    error = {"code": 131049, "title": "ignored", "error_data": {"details": "enough for today"}}
    status: dict[str, Any] = {"id": "wamid.1", "status": "failed", "timestamp": "1750857384", "recipient_id": "5511999"}
    status |= {"errors": [error], "biz_opaque_callback_data": "c:9", "new_field": {"kept": True}}
    fact = one(messages(statuses=[{**status, "pricing": {"billable": False, "category": "marketing"}}]))
    assert isinstance(fact, StatusFact)
    assert (fact.waba_id, fact.number_id, fact.wamid, fact.opaque) == ("77", "42", "wamid.1", "c:9")
    assert (fact.status, fact.at_ms, fact.address) == (Status.FAILED, 1750857384000, "5511999")
    assert (fact.failures[0].code, fact.failures[0].details) == (131049, "enough for today")
    assert (fact.category, fact.billable) == ("marketing", False)
    assert json.loads(fact.raw)["new_field"] == {"kept": True}
    assert fact.standing.error == Mark(1750857384000, 131049, "enough for today")


INBOUND: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "text", "text": {"body": "Hola"}}, "Hola", ""),
    ({"type": "button", "button": {"text": "Stop", "payload": "STOP_ALL"}}, "Stop", "STOP_ALL"),
    (
        {"type": "interactive", "interactive": {"type": "button_reply", "button_reply": {"id": "b1", "title": "Yes"}}},
        "Yes",
        "b1",
    ),
    (
        {"type": "interactive", "interactive": {"type": "list_reply", "list_reply": {"id": "r2", "title": "Row"}}},
        "Row",
        "r2",
    ),
    ({"type": "image", "image": {"id": "9", "mime_type": "image/png", "caption": "See"}}, "See", ""),
    ({"type": "reaction", "reaction": {"message_id": "w", "emoji": "👍"}}, "👍", ""),
    ({"type": "something_new", "something_new": {"x": 1}}, "", ""),
]


@pytest.mark.parametrize(("part", "text", "payload"), INBOUND)
def test_what_a_person_wrote(part: dict[str, Any], text: str, payload: str) -> None:
    message = {"from": "491511", "id": "wamid.in", "timestamp": 1750857384, "context": {"id": "wamid.out"}, **part}
    contacts = [{"wa_id": "491511", "profile": {"name": "Ada"}}]
    fact = one(messages(contacts=contacts, messages=[message]))
    assert isinstance(fact, InboundFact)
    assert (fact.sender, fact.name, fact.reply_to, fact.kind) == ("491511", "Ada", "wamid.out", part["type"])
    assert (fact.text, fact.payload) == (text, payload)
    assert fact.media_id == ("9" if part["type"] == "image" else None)


def test_both_ways_of_stopping_marketing() -> None:
    item = {"wa_id": "491511", "category": "marketing_messages", "value": "stop", "timestamp": 1731705721}
    fact = one(body("user_preferences", {"metadata": {"phone_number_id": "42"}, "user_preferences": [item]}))
    assert isinstance(fact, PreferenceFact)
    assert (fact.address, fact.wish, fact.at_ms) == ("491511", "stop", 1731705721000)
    system = {"type": "system", "system": {"type": "user_preference_changed", "marketing": "resume"}}
    fact = one(messages(messages=[{"from": "491511", "id": "w", "timestamp": "5", **system}]))
    assert isinstance(fact, PreferenceFact)
    assert fact.wish == "resume"
    odd = one(body("user_preferences", {"user_preferences": [{**item, "value": "maybe"}]}))
    assert isinstance(odd, Odd)


def test_templates_and_accounts() -> None:
    value = {"event": "PAUSED", "message_template_id": 594425479261596, "message_template_name": "sale"}
    value |= {"message_template_language": "es", "reason": "NONE"}
    fact = one(body("message_template_status_update", value, time=1739321024))
    assert isinstance(fact, TemplateFact)
    assert (fact.template_id, fact.name, fact.language, fact.event) == ("594425479261596", "sale", "es", "PAUSED")
    fact = one(body("account_update", {"event": "DISABLED_UPDATE", "ban_info": {}}))
    assert isinstance(fact, AlertFact)
    assert fact.event == "DISABLED_UPDATE"
    fact = one(messages(errors=[{"code": 131031}]))
    assert isinstance(fact, AlertFact)
    assert fact.event == "131031"
    fact = one(body("field_of_next_year", {"a": 1}))
    assert isinstance(fact, Odd)
    assert json.loads(fact.raw) == {"a": 1}


def test_facts_travel_and_come_back_the_same() -> None:
    status = {"id": "w", "status": "failed", "timestamp": "1", "errors": [{"code": 131026}]}
    text = {"from": "4915", "id": "w2", "timestamp": "2", "type": "text", "text": {"body": "Hi"}}
    facts = webhooks.parse(messages(statuses=[status, {}], messages=[text]))
    packed = msgspec.msgpack.encode(facts)
    assert msgspec.msgpack.decode(packed, type=tuple[Fact, ...]) == facts


def test_one_bad_part_does_not_hide_its_neighbours() -> None:
    good = {"id": "w", "status": "sent", "timestamp": "1"}
    facts = webhooks.parse(messages(statuses=[None, good, {"id": "w", "status": "flying"}, 7], messages="nothing"))
    assert [type(fact) for fact in facts] == [Odd, StatusFact, Odd, Odd]


FIELDS = ["messages", "user_preferences", "message_template_status_update", "security", "x"]
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["statuses", "messages", "id", "status", "errors", "from", "type", "text", "value", "time"])
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(json_values, st.sampled_from(FIELDS))
def test_reading_never_fails(value: Any, field: str) -> None:
    for raw in (body(field, value), json.dumps(value).encode(), body(field, {"statuses": value, "messages": value})):
        first, again = webhooks.parse(raw), webhooks.parse(raw)
        assert first == again
        assert all(fact.key for fact in first)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff", b"[" * 100_000, b'"\\ud800"', b"1e999", b'{"a":NaN}', b"9" * 5_000, body("messages", 10**40)]
)
def test_bytes_that_are_no_webhook_are_kept(raw: bytes) -> None:
    assert isinstance(one(raw), Odd)


marks = st.builds(Mark, st.integers(0, 3), st.integers(0, 2), st.sampled_from(["", "a"]))
standings = st.lists(st.builds(of, st.sampled_from(Status), marks), max_size=6)


@given(standings, st.randoms(use_true_random=False), st.integers(0, 5))
def test_any_order_any_repetition_any_grouping_ends_the_same(parts: list[Standing], random: Any, cut: int) -> None:
    expected = fold(*parts)
    shuffled = parts + [part for part in parts if random.random() < 0.5]
    random.shuffle(shuffled)
    assert fold(*shuffled) == expected
    assert join(fold(*shuffled[:cut]), fold(*shuffled[cut:])) == expected
    assert join(expected, expected) == expected
    assert join(NOTHING, expected) == expected
    if parts:
        assert expected.status == max(part.status or Status.ACCEPTED for part in parts)


def test_failed_gives_way_to_proof_of_delivery_only() -> None:
    sent, failed = of(Status.SENT, Mark(1)), of(Status.FAILED, Mark(2, 131026))
    assert fold(failed, sent).status is Status.FAILED
    assert fold(failed, sent).error == Mark(2, 131026)
    read = fold(of(Status.READ, Mark(9)), failed, sent)
    assert (read.status, read.error) == (Status.READ, None)
    assert read.at_ms(Status.DELIVERED) == 9, "whoever read it got it"
    assert read.at_ms(Status.SENT) == 1
    assert fold(failed).at_ms(Status.SENT) is None
    assert WORDS["played"] is Status.READ


@given(st.permutations(["sent", "delivered", "read", "failed", "delivered"]), st.integers(1, 4))
def test_permuted_and_repeated_webhooks_give_one_end_state(order: list[str], repeat: int) -> None:
    times = {"sent": 3, "delivered": 5, "read": 8, "failed": 4}
    seen: dict[str, Standing] = {}
    for word in order * repeat:
        status = {"id": "w", "status": word, "timestamp": str(times[word]), "errors": [{"code": 131000}]}
        for fact in webhooks.parse(messages(statuses=[status])):
            assert isinstance(fact, StatusFact)
            seen[fact.key] = fact.standing
    assert len(seen) == 4, "copies have one key"
    end = fold(*seen.values())
    assert end.status is Status.READ
    assert [end.at_ms(status) for status in (Status.SENT, Status.DELIVERED, Status.READ)] == [3000, 5000, 8000]
