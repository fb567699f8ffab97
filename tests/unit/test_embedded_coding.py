"""Content encodings of the ClickHouse face."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.infra.embedded.face import coding
from handbill.infra.embedded.face.faults import Fault

ENCODINGS = st.sampled_from(["", *coding.OFFERED])


@given(ENCODINGS, st.lists(st.binary(max_size=500), max_size=6))
def test_what_is_encoded_piece_by_piece_decodes_whole(name: str, pieces: list[bytes]) -> None:
    encoder = coding.encoder(name)
    encoded = b"".join([encoder.encode(piece) for piece in pieces] + [encoder.finish()])
    assert coding.decode(encoded, name, 10_000) == b"".join(pieces)


@pytest.mark.parametrize("name", ["lz4", "zstd", "gzip"])
def test_frames_one_after_the_other_are_one_body(name: str) -> None:
    """The driver compresses each block of an insert on its own."""
    frames = []
    for block in (b"first", b"second"):
        encoder = coding.encoder(name)
        frames.append(encoder.encode(block) + encoder.finish())
    assert coding.decode(b"".join(frames), name, 100) == b"firstsecond"


@pytest.mark.parametrize("name", coding.OFFERED)
def test_a_bomb_is_refused_at_its_limit(name: str) -> None:
    encoder = coding.encoder(name)
    bomb = encoder.encode(bytes(1_000_000)) + encoder.finish()
    with pytest.raises(Fault) as caught:
        coding.decode(bomb, name, 10_000)
    assert caught.value.status == 413


@pytest.mark.parametrize("name", [*coding.OFFERED, "br"])
def test_a_damaged_or_unknown_body_is_the_callers_fault(name: str) -> None:
    with pytest.raises(Fault) as caught:
        coding.decode(b"certainly not compressed", name, 10_000)
    assert caught.value.status == 400


def test_a_body_that_ends_too_early_is_no_shorter_body() -> None:
    whole = gzip.compress(b"x" * 1000)
    for name, cut in (("gzip", whole[:-9]), ("lz4", coding.Lz4().encode(b"x" * 1000))):
        with pytest.raises(Fault) as caught:
            coding.decode(cut, name, 10_000)
        assert caught.value.status == 400


def test_compression_must_be_asked_for() -> None:
    assert coding.choose("br, zstd;q=1, lz4", allowed=True) == "zstd"
    assert coding.choose("lz4", allowed=False) == ""
    assert coding.choose("identity", allowed=True) == ""
