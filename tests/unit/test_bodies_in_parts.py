"""Large bodies are read in a thread, and no call of a pattern holds the interpreter for more than a part of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.events.dialects import reading
from handbill.kit import forms
from handbill.kit.bounds import SCAN_BYTES
from handbill.kit.untrusted_json import without_unstorable
from handbill.tenants import keys
from tests.kit.growth import growth

MIB = 1 << 20
PARTS = 40
"""Bytes of a part where the tests look at what happens between two of them."""
WHOLE = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+"?)|-?\b(?:Infinity|NaN)\b', re.DOTALL)
HALF = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F]..|u0000)|.)")
ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Recorder:
    """A pattern that notes how many bytes each call may look at."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self.spans: list[int] = []

    def _note(self, text: bytes, pos: int, endpos: int | None) -> tuple[bytes, int, int]:
        end = len(text) if endpos is None else min(endpos, len(text))
        self.spans.append(end - pos)
        return text, pos, end

    def finditer(self, text: bytes, pos: int = 0, endpos: int | None = None) -> Iterator[re.Match[bytes]]:
        return self._pattern.finditer(*self._note(text, pos, endpos))

    def match(self, text: bytes, pos: int = 0, endpos: int | None = None) -> re.Match[bytes] | None:
        return self._pattern.match(*self._note(text, pos, endpos))

    def sub(self, new: Any, text: bytes) -> bytes:
        self._note(text, 0, None)
        return self._pattern.sub(new, text)

    def subn(self, new: Any, text: bytes, count: int = 0) -> tuple[bytes, int]:
        self._note(text, 0, None)
        return self._pattern.subn(new, text, count=count)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], Recorder]:
    def record(module: Any, name: str) -> Recorder:
        recorder = Recorder(getattr(module, name))
        monkeypatch.setattr(module, name, recorder)
        return recorder

    return record


@pytest.mark.parametrize(
    "body",
    [
        b'[NaN,"' + b'\\"' * MIB,
        b'[NaN,"' + b"x" * MIB + b'"]',
        b"[NaN" + b",1" * MIB + b"]",
        b"[" + b'"",' * MIB + b"NaN]",
        b"[" + b"NaN," * MIB + b"1]",
    ],
)
def test_numbers_that_json_lacks_are_looked_for_in_parts(recorded: Callable[[Any, str], Recorder], body: bytes) -> None:
    patterns = [recorded(reading, name) for name in ("_NO_NUMBER", "_REST_OF_TEXT")]
    try:
        reading.decoded(ANY, body)
    except msgspec.DecodeError:
        assert body.endswith(b'\\"')
    spans = [span for pattern in patterns for span in pattern.spans]
    assert max(spans) <= SCAN_BYTES
    assert sum(spans) >= len(body)


@pytest.mark.parametrize("part", [b"hbw_", b"hbw_" + b"a" * 31 + b" ", b"x"])
def test_keys_are_looked_for_in_parts(recorded: Callable[[Any, str], Recorder], part: bytes) -> None:
    pattern = recorded(keys, "_IN_TEXT")
    assert list(keys.find_keys(part * (MIB // len(part)) + b"x")) == []
    assert max(pattern.spans) <= SCAN_BYTES + 36


def test_a_form_is_decoded_in_parts(recorded: Callable[[Any, str], Recorder]) -> None:
    pattern = recorded(forms, "_BAD_ESCAPE")
    assert forms.parse_form(b"data=" + b"%22" * MIB, 100) == {b"data": [b'"' * MIB]}
    assert max(pattern.spans) <= SCAN_BYTES


@pytest.mark.parametrize("part", [b'"",', b"NaN,", b"1,", b'"\\"",', b"\\ud800", b"\xff", b"-"])
def test_a_body_in_parts_takes_linear_time(part: bytes) -> None:
    def read(body: bytes) -> None:
        reading._with_null_for_no_numbers(reading.mended(body))

    assert growth(lambda size: b"[NaN," + part * (size // len(part)), read, 8 * MIB) is None


# --- what is read in parts is what would be read at once

values = st.sampled_from(
    [
        *(b"NaN", b"-NaN", b"Infinity", b"-Infinity", b"12", b'""', b'"NaN"', b'"\\"NaN, Infinity"', b'"\\\\"'),
        *(b'"' + b"x" * 60 + b'"', b'"' + b'\\"' * 40 + b'"', b'"' + b"\\\\" * 45 + b'"', b" " * 33, b"aNaN", b"-"),
    ]
)
bodies = st.lists(values, max_size=30).map(b",".join)


@given(bodies, st.sampled_from([b"", b'"', b'"NaN', b'"' + b"x" * 70, b'"\\', b"NaN", b'"' + b'\\"' * 60]))
def test_numbers_in_parts_are_those_of_the_whole(body: bytes, end: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "SCAN_BYTES", PARTS)
        assert reading._with_null_for_no_numbers(body + b"," + end) == WHOLE.sub(
            lambda found: found[1] or b"null", body + b"," + end
        )


@given(st.lists(st.sampled_from([b"a", "é€😀".encode(), b"\xff", b"\xe2\x82", b"\xf0\x9f", b"x" * 30])).map(b"".join))
def test_characters_in_parts_are_those_of_the_whole(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "SCAN_BYTES", PARTS)
        assert reading._readable(body) == body.decode("utf-8", "replace").encode()


@given(st.lists(st.sampled_from([rb"\ud800", rb"\ud83d\ude00", rb"\u0000", rb"\\", rb"\n", b"u0000", b"x"])))
def test_half_characters_are_replaced_where_they_are_no_pair(parts: list[bytes]) -> None:
    body = b"".join(parts)
    assert without_unstorable(body) == HALF.sub(lambda found: b"\\ufffd" if found[1] else found[0], body)


KEY = b"hbw_" + b"k" * 32
OTHER = b"hbs_" + b"o" * 32


@given(st.lists(st.sampled_from([KEY, OTHER, b"hbw_", b" ", b"x" * 31, b'"', KEY + b"x"]), max_size=20))
def test_keys_in_parts_are_those_of_the_whole(parts: list[bytes]) -> None:
    text = b"".join(parts)
    whole = [found.decode() for found in dict.fromkeys(keys._IN_TEXT.findall(text))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "SCAN_BYTES", PARTS)
        assert list(keys.find_keys(text)) == whole


@given(st.lists(st.sampled_from([b"%22", b"%", b"%4", b"+", b"x" * 17, b"\\", b"%e9"]), max_size=60).map(b"".join))
def test_a_form_in_parts_is_that_of_the_whole(text: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "SCAN_BYTES", PARTS)
        assert forms._unquoted(text) == unquote_to_bytes(text.replace(b"+", b" "))
