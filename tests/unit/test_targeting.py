"""Whom a banner is for: rules, their faults, and the index that asks them all at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.targeting.context import Asked, Questions
from handbill.banners.targeting.index import Index, clauses_of
from handbill.banners.targeting.nodes import Node
from handbill.banners.targeting.reader import faults_of, read
from handbill.banners.wire import ContextIn

IPHONE = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    "Version/17.0 Mobile/15E148 Safari/604.1"
)
WORDS = ["all", "any", "not", "country", "url", "time", "custom", "percent", "x"]
MONDAY_9_30 = 1_763_371_800_000  # 2025-11-17T09:30:00Z


def holds(rule: dict[str, Any], **values: Any) -> bool:
    return read(rule, "salt").holds(values)


def test_all_entries_of_a_rule_must_hold() -> None:
    rule = {"country": ["NL", "DE"], "device": "mobile"}
    assert holds(rule, country="nl", device="mobile")
    assert not holds(rule, country="fr", device="mobile")
    assert not holds(rule, country="nl")


def test_all_any_and_not_nest() -> None:
    rule = {"any": [{"country": "NL"}, {"all": [{"device": "mobile"}, {"not": {"os": "ios"}}]}]}
    assert holds(rule, country="nl")
    assert holds(rule, country="fr", device="mobile", os="android")
    assert not holds(rule, country="fr", device="mobile", os="ios")


def test_what_is_not_known_does_not_hold_and_its_reverse_does() -> None:
    assert not holds({"country": "NL"})
    assert holds({"not": {"country": "NL"}})
    assert not holds({"custom": {"key": "plan", "op": "ne", "value": "paid"}})
    assert holds({}), "an empty rule is for everybody"


@pytest.mark.parametrize(
    ("pattern", "address", "fits"),
    [
        ("https://a.example/*", "https://a.example/x", True),
        ("https://a.example/*", "https://b.example/x", False),
        ("*/sale*.html", "https://a.example/sale-1.html", True),
        ("*/sale*.html", "https://a.example/sale-1.htm", False),
        ("ab*b", "ab", False),
        ("ab*b", "abb", True),
        ("a?c", "abc", True),
        ("a.c", "abc", False),
        ({"prefix": "https://a.example/*"}, "https://a.example/*x", True),
        ({"prefix": "https://a.example/*"}, "https://a.example/x", False),
        ({"regex": r"https://[a-z]+\.example/(de|nl)/.*"}, "https://a.example/nl/1", True),
        ({"regex": r"/nl/"}, "https://a.example/nl/1", False),
    ],
)
def test_addresses(pattern: Any, address: str, fits: bool) -> None:
    assert holds({"url": pattern}, url=address) is fits


def test_time_and_weekday_are_the_users_own() -> None:
    office = {"time": {"from": "09:00", "to": "17:30"}, "weekday": ["mon", "fri"]}
    questions = Questions({"moment"})

    def at(zone: str, moved_ms: int = 0) -> bool:
        asked = Asked("u", MONDAY_9_30 + moved_ms, ContextIn(), {}, "", zone)
        return read(office, "").holds(questions.answered(asked))

    assert at("UTC")
    assert not at("America/New_York"), "there it is 04:30"
    assert at("UTC", 8 * 3_600_000 - 1), "17:29:59.999"
    assert not at("UTC", 8 * 3_600_000), "17:30 is over"
    assert not at("UTC", 24 * 3_600_000), "Tuesday"
    night = {"time": {"from": "22:00", "to": "06:00"}}
    assert [holds(night, moment=hour * 60) for hour in (21, 22, 23, 0, 5, 6)] == [False, True, True, True, True, False]


def test_custom_values_keep_their_kinds() -> None:
    def custom(op: str, value: Any, sent: Any) -> bool:
        return holds({"custom": {"key": "k", "op": op, "value": value}}, **{"custom:k": sent})

    assert custom("eq", 1, 1.0)
    assert not custom("eq", 1, True)
    assert not custom("eq", "1", 1)
    assert custom("eq", False, False)
    assert not custom("eq", 0, False)
    assert custom("in", ["a", 2], 2)
    assert custom("not_in", ["a", 2], "b")
    assert custom("gte", 10, 10)
    assert not custom("gt", 10, 10)
    assert not custom("gt", 10, "11")
    assert custom("contains", "shoe", "red shoes")
    assert custom("starts_with", "red", "red shoes")
    assert holds({"custom": {"key": "k", "op": "exists"}}, **{"custom:k": False})


def test_consent_needs_all_of_it() -> None:
    assert holds({"consent": ["ads", "geo"]}, consent=frozenset({"ads", "geo", "mail"}))
    assert not holds({"consent": ["ads", "geo"]}, consent=frozenset({"ads"}))


def test_a_rollout_takes_its_share_lasts_and_only_grows() -> None:
    people = [f"user-{number}" for number in range(2_000)]
    ten = {who for who in people if holds({"percent": 10}, who=who)}
    thirty = {who for who in people if holds({"percent": 30}, who=who)}
    assert 120 < len(ten) < 280
    assert ten < thirty
    assert not any(holds({"percent": 0}, who=who) for who in people)
    assert all(holds({"percent": 100}, who=who) for who in people)
    other = {who for who in people if holds({"percent": {"of": 10, "salt": "another"}}, who=who)}
    assert len(ten & other) < 60, "draws of different names have nothing to do with each other"


def test_every_fault_is_named_by_its_place() -> None:
    rule = {
        "country": ["NL", "Holland"],
        "any": [{"device": "fridge"}, {"colour": "red"}],
        "time": {"from": "9:00", "to": "25:00"},
        "url": [{"regex": "(?=a)b"}, 7],
        "percent": 120,
        "custom": {"key": "k", "op": "gt", "value": "ten"},
        "not": [],
    }
    faults = {fault.field for fault in faults_of(rule, "targeting")}
    assert faults == {
        "targeting.country", "targeting.any[0].device", "targeting.any[1].colour", "targeting.time.from",
        "targeting.time.to", "targeting.url[0]", "targeting.url[1]", "targeting.percent", "targeting.custom.value",
        "targeting.not",
    }  # fmt: skip
    assert faults_of({"country": "NL"}, "targeting") == []


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=12,
))  # fmt: skip
def test_whatever_is_sent_is_read_or_refused(rule: Any) -> None:
    faults = faults_of(rule, "targeting")
    if not faults:
        assert read(rule, "s").holds({}) in (True, False)


LEAVES = st.sampled_from([
    {"country": ["NL"]}, {"country": ["NL", "DE"]}, {"device": "mobile"}, {"os": ["ios"]}, {"language": "pt"},
    {"url": "https://a/*"}, {"referrer": {"prefix": "https://b"}}, {"weekday": ["mon"]}, {"consent": ["ads"]},
    {"custom": {"key": "k", "op": "eq", "value": 1}}, {"custom": {"key": "k", "op": "eq", "value": True}},
    {"custom": {"key": "k", "op": "eq", "value": "1"}}, {"percent": 50},
])  # fmt: skip
RULES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda rules: {"all": rules})
        | st.lists(inner, min_size=1, max_size=3).map(lambda rules: {"any": rules})
        | inner.map(lambda rule: {"not": rule})
    ),
    max_leaves=6,
)
VALUES = st.fixed_dictionaries({}, optional={
    "country": st.sampled_from(["nl", "de", "fr"]), "device": st.sampled_from(["mobile", "desktop"]),
    "os": st.sampled_from(["ios", "android"]), "language": st.sampled_from(["pt", "pt-br", "en"]),
    "url": st.sampled_from(["https://a/1", "https://c"]), "referrer": st.sampled_from(["https://b/1", "x"]),
    "moment": st.sampled_from([0, 5_000]), "consent": st.sampled_from([frozenset(), frozenset({"ads"})]),
    "custom:k": st.sampled_from([1, True, "1", 2.5]), "who": st.sampled_from(["a", "b", "c"]),
})  # fmt: skip


@given(st.lists(st.none() | RULES, max_size=60), st.lists(VALUES, min_size=1, max_size=4))
def test_the_index_says_what_each_rule_says_alone(rules: list[Any], requests: list[dict[str, Any]]) -> None:
    trees: list[Node | None] = [read(rule, f"b{bit}") if rule else None for bit, rule in enumerate(rules)]
    index = Index([clauses_of(tree) for tree in trees])
    for values in requests * 2:  # the second time from memory
        left = index.narrowed((1 << len(trees)) - 1, values)
        for bit, tree in enumerate(trees):
            alone = tree is None or tree.holds(values)
            assert (bool(left >> bit & 1) and index.allows(bit, values)) is alone


def test_facts_come_from_the_caller_first_then_from_the_request() -> None:
    headers = {b"user-agent": IPHONE.encode(), b"accept-language": b"pt-BR,pt;q=0.9"}
    where = {"1.2.3.4": "nl"}.get
    questions = Questions({"device", "os", "browser", "language", "country", "custom:k", "url"})
    assert questions.answered(Asked("u", MONDAY_9_30, ContextIn(), headers, "1.2.3.4"), where) == {
        "device": "mobile", "os": "ios", "browser": "safari", "language": "pt-br", "country": "nl",
    }  # fmt: skip
    told = ContextIn(country="DE", language="en", custom={"k": 7}, user_agent="", url="https://a/")
    assert questions.answered(Asked("u", MONDAY_9_30, told, headers, "1.2.3.4"), where) == {
        "country": "de", "language": "en", "custom:k": 7, "url": "https://a/",
    }  # fmt: skip
