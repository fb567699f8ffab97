"""How deep a document is, counted in its bytes, and what is refused before it is parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.targeting.reader import faults_of
from handbill.insights.answers import _object as shown
from handbill.kit.bounds import JSON_DEPTH, RULE_DEPTH
from handbill.kit.errors import Invalid
from handbill.kit.untrusted_json import check_json, is_deep
from handbill.segments.rules import read as read_rule
from tests.kit.growth import doubling

texts = st.text('[]{}",\\a\u00e9', max_size=6)
documents = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=40,
)


def depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max((depth(one) for one in inside), default=0)


@given(documents, st.integers(0, 6))
def test_levels_are_counted_outside_of_texts(document: Any, limit: int) -> None:
    for ascii_only in (True, False):
        body = json.dumps(document, ensure_ascii=ascii_only).encode()
        assert is_deep(body, limit) == (depth(document) > limit)


@pytest.mark.parametrize("part", [b"[", b"[]", b"[[]", b"]", b'"",', b'"\\"', b'"[', b"\\", b"[" * 100 + b"]" * 100])
def test_levels_are_counted_in_linear_time(part: bytes) -> None:
    bodies = [b"[[" * 60 + part * (size // len(part)) for size in (1 << 18, 1 << 19, 1 << 20)]
    assert doubling([lambda body=body: is_deep(body) for body in bodies]) is None  # type: ignore[misc]


def test_what_cannot_be_read_has_a_code() -> None:
    check_json(b"[" * JSON_DEPTH + b"]" * JSON_DEPTH)
    check_json('{"a":"\u00e9[[["}'.encode())
    for body, code in ((b"[" * (JSON_DEPTH + 1), "JSON_TOO_DEEP"), (b'{"a":"\xff"}', "BAD_JSON")):
        with pytest.raises(Invalid) as caught:
            check_json(body)
        assert (caught.value.status, caught.value.code) == (400, code)


def test_rules_are_refused_far_before_the_stack_ends_and_name_the_place() -> None:
    rule: dict[str, Any] = {"country": "NL"}
    for _ in range(JSON_DEPTH - 2):
        rule = {"not": rule}
    (fault,) = faults_of(rule, "targeting")
    assert fault.field == "targeting" + ".not" * RULE_DEPTH
    assert fault.reason == f"is nested deeper than {RULE_DEPTH}"
    (fault,) = read_rule(rule, {})[1].faults
    assert fault.field == "rule" + ".not" * RULE_DEPTH


def test_stored_properties_that_are_too_deep_are_shown_as_text() -> None:
    deep = '{"a":' * 500 + "1" + "}" * 500
    assert shown(deep) == {"$unreadable": deep[:1000]}
    assert shown('{"a":[[1]]}') == {"a": [[1]]}
