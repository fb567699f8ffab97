"""Decision tokens: what was signed is read back, and nothing else is."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode

from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.stamps import Stamps
from handbill.banners.tokens import Tokens

KEY = b"k" * 32
TOKENS = Tokens(KEY, ttl_s=60)
NOW = 1_790_000_000_123


@given(
    st.integers(1, 2**31 - 1), st.integers(1, 2**30 - 1), st.integers(0, 2**30 - 1),
    st.sampled_from([b"", b"a", b"variant-b", b"x" * 32]), st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_what_was_signed_is_read_back(
    tenant: int, banner: int, placement: int, variant: bytes, proved: bool, lease: int
) -> None:
    user = TOKENS.user(tenant, "user-42")
    token = TOKENS.mint(tenant, banner, placement, variant, NOW, user, proved, lease).decode()
    found = TOKENS.read(token)
    assert found is not None
    assert (found.tenant_id, found.banner_id, found.placement_id) == (tenant, banner, placement or None)
    assert (found.variant, found.user) == (variant.decode() or None, user)
    assert (found.proved, found.lease) == (proved, lease)
    assert (found.decided_ms, found.expires_ms) == (NOW, NOW + 60_000)
    assert len(token) <= 120
    assert "user-42" not in token


@given(st.integers(0, 71), st.sampled_from("AZaz09-_"))
def test_no_changed_token_is_read(place: int, letter: str) -> None:
    token = TOKENS.mint(7, 8, 9, b"", NOW, TOKENS.user(7, "u"), True).decode()
    changed = token[:place] + letter + token[place + 1 :]
    found = TOKENS.read(changed)
    assert found is None or changed == token


def test_strangers_tokens_and_nonsense_are_none() -> None:
    token = TOKENS.mint(7, 8, 9, b"", NOW, TOKENS.user(7, "u"), True).decode()
    assert Tokens(b"another key").read(token) is None
    for nonsense in ("", "a", "ä", token[:-1], token + "A", "A" * 500, token.replace(token[0], "="), " " + token):
        assert TOKENS.read(nonsense) is None


def test_the_signature_is_the_standards_hmac() -> None:
    from hashlib import blake2b

    token = TOKENS.mint(7, 8, 9, b"", NOW, TOKENS.user(7, "u"), True)
    raw = urlsafe_b64decode(token + b"=" * (-len(token) % 4))
    key = blake2b(KEY, person=b"handbill-token", digest_size=64).digest()
    assert raw[-17:] == hmac.digest(key, raw[:-17], "sha256")[:17]


def test_a_users_digest_is_the_tenants_own() -> None:
    assert TOKENS.user(7, "u") != TOKENS.user(8, "u")
    assert TOKENS.user(7, "u") != TOKENS.user(7, "v")


def test_stamps() -> None:
    stamps = Stamps()
    assert stamps.written(NOW) == b"2026-09-21T14:13:20.123Z"
    assert stamps.written(NOW - 123) == b"2026-09-21T14:13:20.000Z"
