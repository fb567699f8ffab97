"""Patterns that tenants write: what they match, which are refused, and that none of them can hold up the server."""

from __future__ import annotations

import re
import warnings
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from handbill.banners.catalogue import Snapshot
from handbill.banners.model import Banner
from handbill.banners.plan import Plan
from handbill.banners.targeting import patterns
from handbill.banners.targeting.reader import faults_of, read
from handbill.kit.bounds import ADDRESS_CHARS, PATTERN_CHARS, RULE_PROGRAM_STEPS
from tests.kit.growth import growth

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def matches(kind: str, pattern: str, address: str) -> bool:
    return read({"url": {kind: pattern}}, "salt").holds({"url": address})


# --- what they match


@given(st.text("ab*?.", max_size=12), st.text("ab.", max_size=12))
def test_a_glob_means_what_a_slow_reader_says(pattern: str, text: str) -> None:
    def slow(p: str, t: str) -> bool:
        if not p:
            return not t
        if p[0] == "*":
            return slow(p[1:], t) or (bool(t) and slow(p, t[1:]))
        return bool(t) and p[0] in ("?", t[0]) and slow(p[1:], t[1:])

    assert patterns.glob(pattern).matches(text) is slow(pattern, text)


SIGNS = st.text("ab/.*?[]()+{}^$|\\\n é𝄞", max_size=10)


@given(SIGNS, SIGNS)
def test_globs_and_prefixes_answer_as_python_does(pattern: str, text: str) -> None:
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    assert patterns.glob(pattern).matches(text) is (re.fullmatch(expression, text, re.DOTALL) is not None)
    assert patterns.prefix(pattern).matches(text) is text.startswith(pattern)
    assert patterns.prefix(text[:3]).matches(text)


ATOMS = st.sampled_from(["a", "b", "ab", ".", "[ab]", "[^a]", r"\d", r"\w", r"\.", "/", "é", "[a-c]", r"\b", "^", "$"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "??"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        )
    ),
    max_leaves=6,
)


@given(EXPRESSIONS | st.text(r"ab.*+?[](){}|\d1,^$-", max_size=8), st.text("ab1./é", max_size=6))
def test_regular_expressions_answer_as_python_does_where_both_read_them(pattern: str, text: str) -> None:
    assume(r"\B" not in pattern and "[[" not in pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            python = re.compile(pattern, re.ASCII)
        found = patterns.regex(pattern)
    except (ValueError, re.error, OverflowError):
        assume(False)
    assert found.matches(text) is (python.fullmatch(text) is not None)


def test_classes_are_those_of_ascii() -> None:
    assert matches("regex", r"\w\d", "a1")
    assert not matches("regex", r"\w", "é")
    assert matches("regex", r"\pL", "é")
    assert matches("regex", ".", "é"), "a character, not a byte"


def test_half_a_character_in_an_address_is_matched_and_not_a_failure() -> None:
    assert matches("regex", "a.b", "a\ud800b")
    assert matches("glob", "a?b", "a\ud800b")
    assert not matches("regex", "ab", "a\ud800b")


# --- which are refused


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back references"),
        ("(", "RE2"),
        (r"a\Z", "RE2"),
        ("a++", "RE2"),
        ("a{,3}", "{n,m}"),
        ("a{1,9999999999}", "up to 1000"),
        ("a{2000}", "RE2"),
        ("(?:x{1000}){2}", "RE2"),
        (r"\pL{100}", "too large"),
        ("x{1000}" * 40, "too large"),
        (".{1000}", "too large"),
    ],
)
def test_a_refusal_names_the_field_and_the_rule(pattern: str, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    (error,) = faults_of({"url": [{"prefix": "/"}, {"regex": pattern}]}, "targeting")
    assert error.field == "targeting.url[1]"
    assert reason in error.reason
    assert capfd.readouterr().err == "", "RE2 writes nothing of its own"


@pytest.mark.parametrize("pattern", [r"a\{,3}", "a{0,3}", "a{3,}", "{a}", "[{}]"])
def test_braces_that_are_meant_are_taken(pattern: str) -> None:
    assert faults_of({"url": {"regex": pattern}}, "targeting") == []


@pytest.mark.parametrize("pattern", ["?" * PATTERN_CHARS, "*?" * (PATTERN_CHARS // 2), "?a" * (PATTERN_CHARS // 2)])
def test_the_largest_globs_are_taken(pattern: str) -> None:
    assert faults_of({"url": pattern}, "targeting") == []


def test_the_patterns_of_a_rule_are_bounded_together() -> None:
    large = [{"regex": f".*a.{{250}}{number}"} for number in range(3)]
    assert patterns.regex(large[0]["regex"]).steps * 3 > RULE_PROGRAM_STEPS
    errors = faults_of({"any": [{"url": [each]} for each in large]}, "targeting")
    assert [error.field for error in errors] == ["targeting.any[2].url[0]"]
    small = [{"regex": f"https://[a-z.]+/(sale|new)/{number}.*"} for number in range(50)]
    assert faults_of({"url": small, "referrer": small}, "targeting") == []


# --- a rule that an earlier version took


def banner(number: int, targeting: dict[str, Any]) -> Banner:
    return Banner(
        id=number, tenant_id=7, public_id=UUID(int=number), campaign_id=None, name="n", title=None, description=None,
        image_url=None, cta_link=None, asset_url=None, x_times=1, y_hours=1, z_duration_sec=1, is_active=True,
        publish_at=None, expires_at=None, schedule_status="active", placement_ids=[], version=1, created_at=NOW,
        updated_at=NOW, archived_at=None, deleted_at=None, targeting=targeting,
    )  # fmt: skip


@pytest.mark.parametrize("stored", [r"https://a\.example/.*\Z", "(?:ab)++", "a{2000}", r"(?x)a b", r"\u0041"])
def test_a_stored_pattern_that_is_not_read_any_more_matches_no_user_and_harms_no_other_banner(stored: str) -> None:
    re.compile(stored)
    rules: list[dict[str, Any]] = [{"url": {"regex": stored}}, {"not": {"url": {"regex": stored}}}, {"url": "*"}]
    snapshot = Snapshot(7, 1, tuple(banner(number, rule) for number, rule in enumerate(rules, 1)), {}, {}, {})
    with capture_logs() as lines:
        plan = Plan(snapshot)
    allowed = {
        entry.banner.id for entry in plan.entries if plan.index.allows(entry.bit, {"url": "https://a.example/1"})
    }
    left = plan.index.narrowed((1 << len(plan.entries)) - 1, {"url": "https://a.example/1"})
    assert {entry.banner.id for entry in plan.entries if left >> entry.bit & 1} & allowed == {3}
    assert [(line["event"], line["tenant_id"], line["banner_id"], line["field"]) for line in lines] == [
        ("banners.targeting_unreadable", 7, str(UUID(int=1)), "targeting.url"),
        ("banners.targeting_unreadable", 7, str(UUID(int=2)), "targeting.not.url"),
    ]


# --- what they cost


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("regex", "a?" * 60 + "a" * 60),
        ("regex", "(?:a?){24}b"),
        ("regex", "(?:a?){50}a*b"),
        ("regex", "(?:a|aa|aaa|a|aa)" * 12 + "b"),
        ("regex", "(a+)+b"),
        ("regex", "(?:a*)*b"),
        ("regex", ".*a.*a.*a.*b"),
        ("regex", ".*a[ab]{200}b"),
        ("glob", "*a" * 140 + "*b"),
        ("glob", "*" + "a" * 149 + "b" + "a" * 148 + "*"),
        ("glob", "*" + "a?" * 140 + "b*"),
        ("prefix", "a" * PATTERN_CHARS),
    ],
)
def test_no_pattern_takes_more_than_linear_time(kind: str, pattern: str) -> None:
    """Even without the limit of an address: the tree is asked as a decision asks it."""
    assert faults_of({"url": {kind: pattern}}, "targeting") == []
    rule = read({"url": {kind: pattern}}, "salt")
    assert growth(lambda size: {"url": "a" * size}, rule.holds, 100 * ADDRESS_CHARS) is None
    assert growth(lambda size: {"url": "ab" * (size // 2)}, rule.holds, 100 * ADDRESS_CHARS) is None
