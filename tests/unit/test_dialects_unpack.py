"""Packed bodies: known by their bytes, never larger than the limit, never half read."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handbill.events.dialects import segment
from handbill.events.dialects.reading import PAYLOAD_BYTES
from handbill.events.dialects.unpack import unpack
from handbill.kit.errors import HandbillError, Invalid, TooLarge, Unsupported
from tests.kit.dialects import PACKERS, read, request

LIMIT = 100_000
calm = settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the parsers


@calm
@given(st.binary(max_size=2_000), st.sampled_from(sorted(PACKERS)))
def test_what_was_packed_is_unpacked(inside: bytes, packer: str) -> None:
    body = b"{" + inside
    assert unpack(PACKERS[packer](body), LIMIT, b"deflate" if packer == "deflate" else b"") == body


def test_the_bytes_are_believed_and_not_the_header() -> None:
    assert unpack(b'{"a":1}', LIMIT, b"gzip") == b'{"a":1}'
    assert unpack(PACKERS["gzip"](b"{}"), LIMIT, b"zstd") == b"{}"
    assert unpack(PACKERS["gzip"](b"[1,") + PACKERS["gzip"](b"2]"), LIMIT) == b"[1,2]"


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_the_limit_is_kept_to_the_byte(packer: str) -> None:
    pack = PACKERS[packer]
    hint = b"deflate" if packer == "deflate" else b""
    assert len(unpack(pack(b"[" * LIMIT), LIMIT, hint)) == LIMIT
    with pytest.raises(TooLarge):
        unpack(pack(b"[" * (LIMIT + 1)), LIMIT, hint)


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_a_bomb_is_refused_before_it_goes_off(packer: str) -> None:
    bomb = PACKERS[packer](b" " * 60_000_000)
    hint = b"deflate" if packer == "deflate" else b""
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            unpack(bomb, LIMIT, hint)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_a_body_cut_short_is_an_error(packer: str) -> None:
    whole = PACKERS[packer](b'{"batch":[' + b'{"type":"track","userId":"u","event":"e"},' * 50 + b"1]}")
    headers = {b"content-encoding": b"deflate"} if packer == "deflate" else {}
    with pytest.raises(HandbillError) as caught:
        read(request("/v1/batch", whole[: len(whole) // 2], headers=headers))
    assert caught.value.status == 400


def test_a_packing_without_a_reader_is_named() -> None:
    with pytest.raises(Unsupported):
        unpack(b"\x8b\x02\x80", LIMIT, b"br")


def test_a_list_of_millions_does_not_become_millions_of_objects() -> None:
    for junk in (b"1,", b"{},", b'"",'):
        body = b'{"events":[' + junk * (4_900_000 // len(junk)) + b"0]}"
        tracemalloc.start()
        try:
            with pytest.raises(Invalid):
                read(request("/v1/events", body))
            assert tracemalloc.get_traced_memory()[1] < 30_000_000, junk
        finally:
            tracemalloc.stop()


def test_one_event_too_large_leaves_its_neighbours() -> None:
    body = b'{"batch":[{"event":"a","distinct_id":"u"},{"event":"b","distinct_id":"u","properties":{"x":"%b"}}]}'
    parsed = read(request("/batch/", body % (b"x" * PAYLOAD_BYTES)))
    assert [(note.index, note.reason.value) for note in parsed.dropped] == [(1, "EVENT_TOO_LARGE")]
    own = body.replace(b"batch", b"events") % (b"x" * PAYLOAD_BYTES)
    assert [note.reason.value for note in read(request("/v1/events", own)).dropped] == ["EVENT_TOO_LARGE"]
    message = b'{"type":"track","event":"a","userId":"u","properties":{"x":"%b"}}' % (b"x" * segment.MESSAGE_BYTES)
    parsed = read(request("/v1/batch", b'{"batch":[' + message + b"]}"))
    assert [note.reason.value for note in parsed.dropped] == ["EVENT_TOO_LARGE"]
