"""Keys, seals, scopes and audit redaction: no engine needed."""

from __future__ import annotations

import asyncio

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from handbill.kit.errors import Broken, Busy
from handbill.tenants import keys
from handbill.tenants.audit import HIDDEN, shown
from handbill.tenants.grants import Authority
from handbill.tenants.model import ROLE_SCOPES, Principal, Role
from handbill.tenants.passwords import WAITING, Passwords
from handbill.tenants.seals import Sealer, sealer_for


def principal(*scopes: str, role: str | None = None) -> Principal:
    return Principal(1, "session" if role else "secret_key", frozenset(scopes), "test", role=role)  # type: ignore[arg-type]


def test_a_key_is_recognised_and_its_hint_does_not_give_it_away() -> None:
    for prefix in (keys.WRITE, keys.SECRET, keys.SESSION):
        key = keys.make(prefix)
        assert keys.well_formed(key)
        assert key not in keys.hint(key)
        assert len(keys.hint(key)) < 12
    assert not keys.well_formed("hbs_short")
    assert not keys.well_formed(keys.make(keys.SECRET) + "\n")
    assert keys.make(keys.SECRET) != keys.make(keys.SECRET)


def test_the_csrf_token_belongs_to_its_session() -> None:
    one, other = keys.make(keys.SESSION), keys.make(keys.SESSION)
    assert keys.csrf_matches(one, keys.csrf_of(one))
    assert not keys.csrf_matches(one, keys.csrf_of(other))
    assert not keys.csrf_matches(one, None)
    assert not keys.csrf_matches(one, "é")


@given(st.binary(max_size=200), st.text(max_size=20))
def test_a_sealed_value_opens_only_in_its_place(clear: bytes, place: str) -> None:
    sealer = Sealer(b"k" * 32)
    sealed = sealer.seal(clear, place)
    assert sealer.open(sealed, place) == clear
    with pytest.raises(Broken):
        sealer.open(sealed, place + "x")
    with pytest.raises(Broken):
        Sealer(b"l" * 32).open(sealed, place)


def test_a_reply_opens_only_for_whoever_asked() -> None:
    sealed = sealer_for("hbs_one", "key").seal(b"reply", "reply 1")
    assert sealer_for("hbs_one", "key").open(sealed, "reply 1") == b"reply"
    with pytest.raises(Broken):
        sealer_for("hbs_two", "key").open(sealed, "reply 1")


async def test_passwords_match_only_themselves_and_a_flood_is_told_to_wait() -> None:
    passwords = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    known = await passwords.hash("one")
    assert await passwords.matches(known, "one")
    assert not await passwords.matches(known, "two")
    assert not await passwords.matches(None, "nobody has this password")
    assert not await passwords.matches("not a hash", "one")
    flood = [passwords.matches(known, "one") for _ in range(WAITING + 5)]
    *tries, browser = await asyncio.gather(
        *flood, passwords.matches(known, "one", known_browser=True), return_exceptions=True
    )
    assert tries.count(True) == WAITING
    assert sum(isinstance(one, Busy) for one in tries) == 5
    assert browser is True, "a browser that logged in before has a queue of its own"
    assert await passwords.matches(known, "one"), "the queue is empty again"


def test_roles() -> None:
    owner, operator, viewer = (principal(*ROLE_SCOPES[role], role=role) for role in ("owner", "operator", "viewer"))
    for scope in ("keys:write", "users:write", "tenants:write", "erasures:write"):
        assert owner.allows(scope)
        assert not operator.allows(scope)
        assert not viewer.allows(scope)
    assert operator.allows("banners:write")
    assert not viewer.allows("banners:write")
    assert viewer.allows("audit:read")


RESOURCES = st.sampled_from(["keys", "users", "banners", "audit"])
SCOPES = st.one_of(
    st.just("*"),
    st.builds(
        lambda resource, verb: f"{resource}:{verb}", RESOURCES | st.just("*"), st.sampled_from(["read", "write"])
    ),
)


@given(
    st.frozensets(SCOPES, max_size=4), st.frozensets(SCOPES, max_size=4), RESOURCES, st.sampled_from(["read", "write"])
)
def test_nobody_grants_more_than_they_hold(
    held: frozenset[str], given_away: frozenset[str], resource: str, verb: str
) -> None:
    giver, taker = principal(*held), principal(*given_away)
    if not Authority(held).missing(given_away) and taker.allows(f"{resource}:{verb}"):
        assert giver.allows(f"{resource}:{verb}")


@given(st.frozensets(SCOPES, max_size=4), st.sampled_from(["owner", "operator", "viewer"]))
def test_a_role_is_given_only_by_who_holds_all_of_it(held: frozenset[str], role: Role) -> None:
    authority = Authority(held)
    if not authority.missing(ROLE_SCOPES[role]):
        user = Principal(1, "session", ROLE_SCOPES[role], "u", role=role)
        for resource in ("keys", "users", "banners", "audit", "tenants"):
            for verb in ("read", "write"):
                assert not user.allows(f"{resource}:{verb}") or principal(*held).allows(f"{resource}:{verb}")
    for lesser in ("operator", "viewer"):
        assert Authority(ROLE_SCOPES[lesser], lesser).missing(ROLE_SCOPES[role]), "operators and viewers give no role"


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*sorted(HIDDEN), "name", "role"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*sorted(HIDDEN), "name", "nested"]), JSON, max_size=5))
def test_the_audit_log_never_holds_a_secret(value: dict[str, object]) -> None:
    def names(part: object) -> set[str]:
        if isinstance(part, dict):
            return set(part) | {name for inner in part.values() for name in names(inner)}
        if isinstance(part, list):
            return {name for inner in part for name in names(inner)}
        return set()

    assert not names(shown(value)) & HIDDEN
