"""Decision tokens: what was decided is read back, by nobody else, and nothing else is."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.stamps import Stamps
from handbill.banners.tokens import Token, Tokens
from handbill.kit.bounds import DECISION_TOKEN_MAX

KEY = b"k" * 32
TOKENS = Tokens(KEY, ttl_s=60)
NOW = 1_790_000_000_123
USER, SESSION = "0190163d-8694-739b-aea5-966c26f8ad91", "5f0c3b7a9d2e4816a1b2c3d4e5f60718"

ids = st.text(st.characters(exclude_categories=()), min_size=1, max_size=200)
numbers = st.integers(1, 2**30 - 1)
VARIANTS = st.sampled_from([b"", b"a", b"variant-b", b"x" * 32])
DEVICES = st.sampled_from([None, "mobile", "tablet", "desktop"])
COUNTRIES = st.sampled_from([None, "NL", "US"])


def minted(user: str = USER, session: str | None = SESSION, variant: bytes = b"", decided_ms: int = NOW) -> str:
    person = TOKENS.person(user, session, "mobile", "nl", proved=True)
    return TOKENS.mint(7, 8, 9, 10, variant, decided_ms, person, 11).decode()


def raw_of(token: str) -> bytes:
    return urlsafe_b64decode(token + "=" * (-len(token) % 4))


def spelled(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


@given(
    st.integers(1, 2**31 - 1), numbers, st.integers(0, 2**30 - 1), st.integers(0, 2**30 - 1), VARIANTS,
    st.integers(0, 2**41), ids, st.none() | ids, DEVICES, COUNTRIES, st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_what_was_decided_is_read_back(
    tenant: int,
    banner: int,
    placement: int,
    campaign: int,
    variant: bytes,
    decided_ms: int,
    user: str,
    session: str | None,
    device: str | None,
    country: str | None,
    proved: bool,
    lease: int,
) -> None:
    person = TOKENS.person(user, session, device, country, proved=proved)
    token = TOKENS.mint(tenant, banner, placement, campaign, variant, decided_ms, person, lease).decode()
    found = TOKENS.read(token)
    assert found is not None
    assert found == Token(
        tenant_id=tenant, banner_id=banner, placement_id=placement or None, variant=variant.decode() or None,
        decided_ms=decided_ms, expires_ms=decided_ms + 60_000, user=TOKENS.user(tenant, user), proved=proved,
        lease=lease, name=found.name, user_id=user, session_id=session, device_type=device, country=country,
        campaign_id=campaign or None,
    )  # fmt: skip
    assert len(token) <= DECISION_TOKEN_MAX
    assert token.isascii()
    assert not set(token) & set("+/=%&?# ")


def test_a_token_is_short_for_ordinary_ids_and_bounded_for_the_longest() -> None:
    assert len(minted(variant=b"variant-b")) <= 250
    assert len(minted("😀" * 200, "😀" * 200, b"x" * 32)) <= DECISION_TOKEN_MAX


def test_a_token_is_for_its_user_only() -> None:
    found = TOKENS.read(minted())
    assert found is not None
    assert (TOKENS.is_for(found, USER), TOKENS.is_for(found, "user-43")) == (True, False)


def test_unknown_devices_countries_and_an_empty_session_are_none() -> None:
    for device, country in (("watch", "Nepal"), (None, "ÄÖ"), (None, "")):
        person = TOKENS.person("u", "", device, country, proved=False)
        found = TOKENS.read(TOKENS.mint(7, 8, 0, 0, b"", NOW, person).decode())
        assert found is not None
        assert (found.session_id, found.device_type, found.country) == (None, None, None)


@given(st.text(min_size=8, max_size=200), st.text(min_size=8, max_size=200))
def test_nothing_of_the_person_can_be_read_in_a_token(user: str, session: str) -> None:
    token = minted(user, session, b"variant-b")
    raw = raw_of(token)
    for secret in (user.encode(), session.encode(), b"variant-b", b"NL", TOKENS.user(7, user)):
        if len(secret) >= 8:
            assert secret not in raw
            assert spelled(secret)[:-1] not in token


@given(st.integers(0), st.integers(0, 7), VARIANTS)
def test_no_changed_bit_is_read(place: int, bit: int, variant: bytes) -> None:
    raw = bytearray(raw_of(minted(variant=variant)))
    raw[place % len(raw)] ^= 1 << bit
    assert TOKENS.read(spelled(bytes(raw))) is None


@given(st.integers(1, 200), st.binary(min_size=1, max_size=40))
def test_nothing_that_was_cut_or_extended_is_read(cut: int, more: bytes) -> None:
    raw = raw_of(minted())
    assert TOKENS.read(spelled(raw[: -(cut % len(raw)) or -1])) is None
    assert TOKENS.read(spelled(raw[cut % len(raw) or 1 :])) is None
    assert TOKENS.read(spelled(raw + more)) is None
    assert TOKENS.read(spelled(more + raw)) is None


def test_tokens_of_another_installation_and_nonsense_are_none() -> None:
    token = minted()
    assert Tokens(b"another key").read(token) is None
    assert TOKENS.read(Tokens(b"another key").mint(7, 8, 9, 10, b"", NOW, b"\0" * 8).decode()) is None
    for nonsense in ("", "a", "ä", "IA", token[:-4], token + "AAAA", "A" * 500, "A" * 5_000, "=" + token, " " + token):
        assert TOKENS.read(nonsense) is None


def test_equal_decisions_have_equal_tokens_and_different_ones_do_not() -> None:
    token = minted()
    assert minted() == token
    different = [
        minted("another"), minted(session="another"), minted(session=None), minted(variant=b"b"),
        minted(decided_ms=NOW + 1),
    ]  # fmt: skip
    names = {found.name for each in (token, *different) if (found := TOKENS.read(each)) is not None}
    assert len({token, *different}) == len(names) == 1 + len(different)


@pytest.mark.parametrize("user", ["u", "us", "use"])  # so that the last letter has 0, 2 and 4 bits to spare
def test_a_token_has_one_name_however_it_is_spelled(user: str) -> None:
    token = minted(user, None)
    spellings = {token[:-1] + letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"}
    spellings |= {token + "=" * (-len(token) % 4), token.replace("-", "+").replace("_", "/")}
    same = [found for each in spellings if raw_of(each) == raw_of(token) and (found := TOKENS.read(each)) is not None]
    assert same
    assert len({found.name for found in same}) == 1
    assert all(TOKENS.read(each) is None for each in spellings if raw_of(each) != raw_of(token))


OLD = {  # minted by the release before tokens were encrypted, with this file's key and times
    "EQAAAAcAAAAIAAAACQAAAaDEUGx7AAAAPESzE4egMthzAAAATXZhcmlhbnQtYna7052co2ePn6IqlVy8T1WV": Token(
        7, 8, 9, "variant-b", NOW, NOW + 60_000, bytes.fromhex("44b31387a032d873"), True, 77,
        "2a879e356af926e3db92822b1575cb45",
    ),
    "EAAAAAcAAAAIAAAAAAAAAaDEUGx7AAAAPESzE4egMthzAAAAAOcYHmhzYoqYe1DVt3aVHDsu": Token(
        7, 8, None, None, NOW, NOW + 60_000, bytes.fromhex("44b31387a032d873"), False, 0,
        "20791f77b8b80e087d7966e7c91802bf",
    ),
}  # fmt: skip


@pytest.mark.parametrize("token", OLD)
def test_a_token_of_an_earlier_release_is_read_as_ever(token: str) -> None:
    found = TOKENS.read(token)
    assert found == OLD[token]
    assert found.user == TOKENS.user(7, "user-42")
    assert (TOKENS.is_for(found, "user-42"), TOKENS.is_for(found, "user-43")) == (True, False)
    assert (found.user_id, found.session_id, found.device_type, found.country, found.campaign_id) == (None,) * 5


@given(st.sampled_from(sorted(OLD)), st.integers(0), st.integers(0, 7))
def test_no_changed_token_of_an_earlier_release_is_read(token: str, place: int, bit: int) -> None:
    raw = bytearray(raw_of(token))
    raw[place % len(raw)] ^= 1 << bit
    assert TOKENS.read(spelled(bytes(raw))) is None
    assert Tokens(b"another key").read(token) is None


def test_a_users_digest_is_the_tenants_own() -> None:
    assert TOKENS.user(7, "u") != TOKENS.user(8, "u")
    assert TOKENS.user(7, "u") != TOKENS.user(7, "v")


def test_stamps() -> None:
    stamps = Stamps()
    assert stamps.written(NOW) == b"2026-09-21T14:13:20.123Z"
    assert stamps.written(NOW - 123) == b"2026-09-21T14:13:20.000Z"
