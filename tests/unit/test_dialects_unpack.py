"""Packed bodies: known by their bytes, never larger than the limit, never half read."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from urllib.parse import parse_qs, urlencode

import lz4.frame
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handbill.events.dialects import segment
from handbill.events.dialects.reading import PAYLOAD_BYTES
from handbill.events.dialects.unpack import finish, unpack, unpacking
from handbill.kit.bounds import FRAMES, GZIP_MEMBER_BYTES, GZIP_MEMBERS
from handbill.kit.errors import HandbillError, Invalid, TooLarge, Unsupported
from handbill.kit.forms import parse_form
from handbill.kit.inflate import OUTPUT_BYTES, STEP_BYTES
from tests.kit.dialects import PACKERS, read, request
from tests.kit.growth import doubling

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


@pytest.mark.parametrize("packer", sorted(PACKERS))
@pytest.mark.parametrize("size", [STEP_BYTES, OUTPUT_BYTES - 1, OUTPUT_BYTES, OUTPUT_BYTES + 1, 3 * OUTPUT_BYTES])
def test_steps_change_nothing(packer: str, size: int) -> None:
    hint = b"deflate" if packer == "deflate" else b""
    for body in (b"{" * size, bytes(33 + number * number % 91 for number in range(size))):
        assert unpack(PACKERS[packer](b"{" + body), 1 << 20, hint) == b"{" + body


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_a_body_stops_once_when_it_is_larger_than_a_small_one(packer: str) -> None:
    hint = b"deflate" if packer == "deflate" else b""
    body = b"{" * 70_000
    assert next(unpacking(PACKERS[packer](body), 100_000, hint, inline=65_536)) is None
    with pytest.raises(StopIteration) as done:
        next(unpacking(PACKERS[packer](body), 100_000, hint, inline=70_000))
    assert done.value.value == body
    stopped = unpacking(PACKERS[packer](body), 100_000, hint, inline=100)
    next(stopped)
    assert finish(stopped) == body
    assert next(unpacking(body, 100_000, inline=65_536)) is None, "a plain body has its size at once"


EMPTY_GZIP = gzip.compress(b"", mtime=0)
EMPTY_ZSTD = zstandard.ZstdCompressor().compress(b"")
ZSTD_SKIPPED = b"\x5a\x2a\x4d\x18\0\0\0\0"


def test_members_that_hold_nothing_are_counted() -> None:
    whole = gzip.compress(b"{}", mtime=0)
    assert unpack(whole + EMPTY_GZIP * (GZIP_MEMBERS - 1), LIMIT) == b"{}"
    assert unpack(EMPTY_ZSTD * (FRAMES - 1) + PACKERS["zstd"](b"{}"), LIMIT) == b"{}"
    assert unpack(PACKERS["zstd"](b"{") + ZSTD_SKIPPED * 9 + PACKERS["zstd"](b"}"), LIMIT) == b"{}"
    assert unpack(PACKERS["lz4"](b"{") * FRAMES, LIMIT) == b"{" * FRAMES
    for bad in (
        whole + EMPTY_GZIP * GZIP_MEMBERS,
        EMPTY_GZIP * 200_000,
        EMPTY_ZSTD * (FRAMES + 1),
        PACKERS["zstd"](b"{}") + ZSTD_SKIPPED * FRAMES,
        PACKERS["lz4"](b"{") * (FRAMES + 1),
    ):
        with pytest.raises(Invalid, match="more members") as caught:
            unpack(bad, LIMIT)
        assert (caught.value.status, caught.value.code) == (400, "BAD_JSON")
    large = gzip.compress(b"x" * GZIP_MEMBER_BYTES, mtime=0)  # as programs do that pack in blocks
    assert len(unpack(large * GZIP_MEMBERS * 3, 20_000_000)) == 3 * GZIP_MEMBERS * GZIP_MEMBER_BYTES


def test_what_stands_behind_the_last_member_is_passed_over() -> None:
    assert unpack(gzip.compress(b"{}") + b"\0" * 40_000, LIMIT) == b"{}"
    assert unpack(gzip.compress(b"{}") + b"\0" * 40_000 + gzip.compress(b" "), LIMIT) == b"{} "
    assert unpack(gzip.compress(b"{}") + b"more", LIMIT) == b"{}"
    assert unpack(PACKERS["zlib"](b"{}") + gzip.compress(b"{}"), LIMIT) == b"{}"


def empty_blocks(count: int) -> bytes:
    """A zlib stream of stored blocks without a byte in them."""
    return b"\x78\x01" + b"\x00\x00\x00\xff\xff" * count + b"\x01\x00\x00\xff\xff\x00\x00\x00\x01"


def lz4_blocks(count: int) -> bytes:
    """One frame of many small blocks."""
    packer = lz4.frame.LZ4FrameCompressor(auto_flush=True)
    return bytes(packer.begin() + b"".join(packer.compress(b"{") for _ in range(count)) + packer.flush())


COSTLY: dict[str, tuple[Callable[[int], bytes], int]] = {
    "gzip members": (lambda n: gzip.compress(b"x" * GZIP_MEMBER_BYTES, mtime=0) * n, 5_000),
    "empty gzip members": (lambda n: EMPTY_GZIP * n, 1_000_000),
    "empty deflate blocks": (empty_blocks, 4_000_000),
    "one gzip member": (lambda n: gzip.compress(b"{" * n, 1, mtime=0), 20_000_000),
    "zstd frames that hold nothing": (lambda n: PACKERS["zstd"](b"{") + ZSTD_SKIPPED * n, 2_000_000),
    "empty zstd blocks": (lambda n: b"\x28\xb5\x2f\xfd\x00\x58" + b"\0\0\0" * n + b"\1\0\0", 6_000_000),
    "lz4 blocks": (lz4_blocks, 200_000),
}


def unpacked_or_refused(body: bytes) -> None:
    try:
        unpack(body, 20 << 20)
    except Invalid:
        return


@pytest.mark.parametrize("name", sorted(COSTLY))
def test_twice_the_input_takes_twice_the_time(name: str) -> None:
    made, most = COSTLY[name]
    bodies = [made(most // 4), made(most // 2), made(most)]
    assert len(bodies[-1]) <= 20 << 20
    assert doubling([lambda body=body: unpacked_or_refused(body) for body in bodies]) is None  # type: ignore[misc]


@pytest.mark.parametrize("part", [b"%", b"%41", b"%41a", b"+", b"\\", b"&", b"=", b"a"])
def test_forms_are_read_in_linear_time(part: bytes) -> None:
    def read_form(body: bytes) -> None:
        try:
            parse_form(b"data=" + body, max_fields=100)
        except ValueError:
            return

    most = (8 << 20) // len(part)
    bodies = [part * size for size in (most // 4, most // 2, most)]
    assert doubling([lambda body=body: read_form(body) for body in bodies]) is None  # type: ignore[misc]


@calm
@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=9)), max_size=5), st.binary(max_size=30))
def test_forms_are_read_as_the_standard_library_reads_them(fields: list[tuple[str, str]], junk: bytes) -> None:
    for text in (urlencode(fields).encode(), junk, b"a=%4" + junk + b"&b=\\x41%5C"):
        wanted = parse_qs(
            text.decode("latin-1"), max_num_fields=100, encoding="latin-1"
        )  # as bytes, it takes ASCII only
        assert parse_form(text, max_fields=100) == {
            name.encode("latin-1"): [value.encode("latin-1") for value in values] for name, values in wanted.items()
        }
    with pytest.raises(ValueError, match="fields"):
        parse_form(b"a=1&" * 100 + b"b=1", max_fields=100)


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
