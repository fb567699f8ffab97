"""The API shell's small parts: cursors, ETags, faults, client addresses, CORS."""

from __future__ import annotations

import contextlib
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.api.clients import Clients, request_id
from handbill.api.cors import Cors
from handbill.kit import etags, pages
from handbill.kit.errors import Invalid, PreconditionFailed
from handbill.kit.faults import faults_of


@given(st.text(max_size=40), st.integers(-(2**53), 2**53))
def test_a_cursor_comes_back_as_it_was(text: str, number: int) -> None:
    assert pages.decode(pages.encode(text, number), [str, int]) == [text, number]


@given(st.text(max_size=60))
def test_a_foreign_cursor_is_refused_and_never_breaks(cursor: str) -> None:
    with contextlib.suppress(Invalid):  # any other error fails the test
        assert len(pages.decode(cursor, [str])) == 1


@given(st.lists(st.integers(), unique=True, max_size=30).map(sorted), st.integers(1, 7))
def test_pages_put_together_are_the_list(rows: list[int], limit: int) -> None:
    read: list[int] = []
    cursor: str | None = None
    while True:
        after = pages.decode(cursor, [int])[0] if cursor else None
        rest = [row for row in rows if after is None or row > int(after)]
        page = pages.page(rest[: limit + 1], limit, lambda row: (row,))
        read += page.items
        cursor = page.next
        if cursor is None:
            break
    assert read == rows


def test_the_page_size_is_bounded() -> None:
    assert pages.limited(None) == 50
    for bad in (0, 201, -1):
        with pytest.raises(Invalid):
            pages.limited(bad)


def test_if_match() -> None:
    assert etags.wanted_version(etags.etag(7)) == 7
    assert etags.wanted_version(None) is None
    assert etags.wanted_version("*") is None
    for bad in ("7", '"7"', 'W/"v7"', ""):
        with pytest.raises(Invalid):
            etags.wanted_version(bad)
    etags.check(None, 3)
    etags.check(3, 3)
    with pytest.raises(PreconditionFailed):
        etags.check(2, 3)


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=1)]
    name: str


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    title: Annotated[str, msgspec.Meta(min_length=1)]
    inner: Inner | None = None
    many: list[Inner] = []


def test_every_fault_is_named() -> None:
    faults = faults_of(b'{"title": "", "inner": {"size": 0, "extra": 1}, "other": 2}', Outer)
    assert {fault.field for fault in faults} == {"title", "inner.size", "inner.name", "inner.extra", "other"}
    reasons = {
        fault.field: fault.reason for fault in faults_of(b'{"titel": "x", "zzz": 1, "inner": {"nam": "a"}}', Outer)
    }
    assert reasons["titel"] == "is not a known field; did you mean `title`?"
    assert reasons["inner.nam"] == "is not a known field; did you mean `name`?"
    assert reasons["zzz"] == "is not a known field; known are inner, many, title"
    listed = [fault.reason for fault in faults_of(b'{"title": "x", "zzz": 1, "yyy": 2}', Outer)]
    assert listed == ["is not a known field; known are inner, many, title", "is not a known field"]
    assert (
        faults_of(b'{"title": "x", "many": [{"size": 1, "name": "a"}, {"size": 2}]}', Outer)[0].field == "many[1].name"
    )
    assert faults_of(b'{"title": "x"}', Outer) == []
    assert faults_of(b"{", Outer)[0].reason.startswith("not valid JSON")
    assert faults_of(b"[1]", Outer)[0].field == ""


def test_forwarded_addresses_are_believed_only_from_trusted_proxies() -> None:
    nobody = Clients([])
    assert nobody.address("10.0.0.1", b"1.2.3.4") == "10.0.0.1"
    clients = Clients(["10.0.0.0/8", "fd00::/8"])
    assert clients.address("10.0.0.1", b"1.2.3.4") == "1.2.3.4"
    assert clients.address("10.0.0.1", b"6.6.6.6, 1.2.3.4, 10.0.0.2") == "1.2.3.4"
    assert clients.address("9.9.9.9", b"1.2.3.4") == "9.9.9.9"
    assert clients.address("10.0.0.1", b"nonsense") == "10.0.0.1"
    assert clients.address("fd00::1", b"2001:db8::1") == "2001:db8::1"


def test_only_the_end_of_a_long_list_of_forwarded_addresses_is_looked_at() -> None:
    clients = Clients(["10.0.0.0/8"])
    near = b", 1.2.3.4, 10.0.0.2"
    assert clients.address("10.0.0.1", b"6.6.6.6" * 50_000 + near) == "1.2.3.4"
    ours = b",".join([b"10.1.1.1"] * 50_000)
    assert clients.address("10.0.0.1", b"6.6.6.6," + ours) == "10.1.1.1", "no farther than the limit"
    for padding in range(1, 20):
        found = clients.address("10.0.0.1", b"6.6.6.6," + ours + b"," + b"10.2.2.2" + b" " * padding)
        assert found == "10.1.1.1", "the first one that is left may be half of an address, and is left out"
    assert clients.address("10.0.0.1", b"fe80::1%" + b"x" * 60_000) == "10.0.0.1"
    assert len(clients._is_trusted.cache) <= 5


@given(st.binary(max_size=80))
def test_a_request_id_is_sane_whatever_was_sent(sent: bytes) -> None:
    found = request_id(sent)
    assert 1 <= len(found) <= 64
    assert all(letter.isalnum() or letter in "._:-" for letter in found)


def test_cors_names_the_origin_or_nothing() -> None:
    assert Cors(["*"]).headers(None) == []
    assert (b"access-control-allow-origin", b"*") in Cors(["*"]).preflight(b"https://shop.example")
    some = Cors(["https://shop.example/"])
    assert (b"access-control-allow-origin", b"https://shop.example") in some.headers(b"https://shop.example")
    assert some.preflight(b"https://evil.example") == []
