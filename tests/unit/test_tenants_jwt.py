"""User tokens: pinned algorithms, times by our clock, the memory of verified ones, and key sets by URL."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from handbill.kit.bounds import CacheLimit
from handbill.kit.errors import Busy, Invalid, Unauthorized
from handbill.tenants import jwks, jwt
from handbill.tenants.model import JwtRules
from tests.kit.clocks import FakeClock

SECRET = b"s" * 32
RULES = JwtRules(kind="hs256", leeway_s=0)


def seconds(clock: FakeClock) -> int:
    return clock.now_ms() // 1000


def token(clock: FakeClock, key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **claims: Any) -> str:
    body = {"sub": "user-1", "exp": seconds(clock) + 60, **claims}
    return pyjwt.encode(body, key, algorithm, headers={"kid": kid} if kid else None)


def public(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    kind = pyjwt.get_algorithm_by_name(algorithm)
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "alg": algorithm, "use": "sig"}


def test_a_good_token_names_its_subject() -> None:
    clock = FakeClock()
    found = jwt.verify(token(clock), RULES, secret=SECRET, keys=None, clock=clock)
    assert found.subject == "user-1"
    assert found.expires_ms == (seconds(clock) + 60) * 1000


def test_what_does_not_hold_is_refused() -> None:
    clock = FakeClock()
    now = seconds(clock)
    wrong = [
        token(clock, b"x" * 32),
        token(clock, exp=now),
        token(clock, exp="soon"),
        token(clock, exp=10**15),
        token(clock, nbf=now + 30),
        token(clock, sub=""),
        token(clock, sub=7),
        token(clock, algorithm="HS512", key=b"s" * 64),
        pyjwt.encode({"sub": "user-1", "exp": now + 60}, "", "none"),
        pyjwt.encode({"sub": "user-1"}, SECRET, "HS256"),
        token(clock)[:-2] + "xx",
        "not.a.token",
        "",
        "a" * 9000,
    ]
    for one in wrong:
        with pytest.raises(Unauthorized) as refused:
            jwt.verify(one, RULES, secret=SECRET, keys=None, clock=clock)
        assert refused.value.code == "BAD_TOKEN"
    with pytest.raises(Unauthorized):
        jwt.verify(token(clock), JwtRules(), secret=SECRET, keys=None, clock=clock)


def test_audience_and_issuer_count_where_they_are_set() -> None:
    clock = FakeClock()
    rules = JwtRules(kind="hs256", audience="shop", issuer="acme")
    good = token(clock, aud="shop", iss="acme")
    assert jwt.verify(good, rules, secret=SECRET, keys=None, clock=clock).subject == "user-1"
    for bad in (token(clock), token(clock, aud="other", iss="acme"), token(clock, aud="shop", iss="x")):
        with pytest.raises(Unauthorized):
            jwt.verify(bad, rules, secret=SECRET, keys=None, clock=clock)
    assert jwt.verify(token(clock, aud="anything"), RULES, secret=SECRET, keys=None, clock=clock) is not None


def test_the_leeway_is_small_and_exact() -> None:
    clock = FakeClock()
    rules = JwtRules(kind="hs256", leeway_s=10)
    late = token(clock, exp=seconds(clock) - 9)
    assert jwt.verify(late, rules, secret=SECRET, keys=None, clock=clock) is not None
    with pytest.raises(Unauthorized):
        jwt.verify(token(clock, exp=seconds(clock) - 10), rules, secret=SECRET, keys=None, clock=clock)


def test_a_public_key_is_never_a_shared_secret() -> None:
    clock = FakeClock()
    key = ec.generate_private_key(ec.SECP256R1())
    keyset = {"keys": [public(key, "a", "ES256")]}
    rules = JwtRules(kind="jwks", jwks=keyset)
    assert jwt.verify(token(clock, key, "ES256", "a"), rules, secret=None, keys=keyset, clock=clock) is not None
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = pyjwt.utils.base64url_encode(json.dumps({"alg": "HS256", "kid": "a"}).encode())
    body = pyjwt.utils.base64url_encode(json.dumps({"sub": "user-1", "exp": seconds(clock) + 60}).encode())
    mark = pyjwt.utils.base64url_encode(pyjwt.get_algorithm_by_name("HS256").sign(head + b"." + body, pem[:64] * 1))
    forged = (head + b"." + body + b"." + mark).decode()
    for bad in (forged, token(clock, SECRET, "HS256", "a"), token(clock, key, "ES256", "b")):
        with pytest.raises(Unauthorized):
            jwt.verify(bad, rules, secret=SECRET, keys=keyset, clock=clock)


def test_the_memory_forgets_at_expiry_and_stays_bounded() -> None:
    clock = FakeClock()
    memory = jwt.Memory(clock, CacheLimit(3, 1 << 20))
    kept = jwt.Verified("user-1", clock.now_ms() + 1000)
    memory.keep(1, 1, "token", kept)
    assert memory.find(1, 1, "token") is kept
    assert memory.find(2, 1, "token") is None
    assert memory.find(1, 2, "token") is None
    clock.advance(seconds=1)
    assert memory.find(1, 1, "token") is None
    for number in range(10):
        memory.keep(1, 1, str(number), kept)
    assert len(memory) == 3


class Web:
    """A key set's host that can be changed and switched off."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.asked = 0
        self.up = True

    async def get(self, url: str) -> bytes:
        self.asked += 1
        if not self.up:
            raise Busy("away")
        return json.dumps({"keys": self.keys}).encode()


async def test_a_key_set_is_fetched_anew_for_an_unseen_key_and_outlives_its_host() -> None:
    clock = FakeClock()
    one, two = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
    web = Web(public(one, "one", "RS256"))
    keysets = jwks.KeySets(web, clock)
    assert len((await keysets.get("https://a", "one"))["keys"]) == 1
    await keysets.get("https://a", "one")
    assert web.asked == 1
    web.keys.append(public(two, "two", "ES256"))
    await keysets.get("https://a", "two")
    assert web.asked == 1, "not twice within a minute, whatever is asked for"
    clock.advance(seconds=61)
    assert len((await keysets.get("https://a", "two"))["keys"]) == 2
    web.up = False
    clock.advance(hours=1)
    assert len((await keysets.get("https://a", "two"))["keys"]) == 2
    with pytest.raises(Busy):
        await keysets.get("https://b", "two")


def test_a_key_set_with_a_secret_in_it_is_refused() -> None:
    for bad in (
        b"[]",
        b"{}",
        b'{"keys": 1}',
        b'{"keys": [{"kty": "oct", "k": "AA"}]}',
        b'{"keys": [{"kty":"RSA","d":"x"}]}',
    ):
        with pytest.raises(Invalid):
            jwks.parse(bad)


GOOD = public(ec.generate_private_key(ec.SECP256R1()), "good", "ES256")
WRONG_KEYS = [
    ({**GOOD, "alg": "none"}, "alg"),
    ({**GOOD, "alg": "NoNe"}, "alg"),
    ({**GOOD, "alg": "HS256"}, "alg"),
    ({**GOOD, "alg": "ES512"}, "alg"),
    ({**GOOD, "alg": ""}, "alg"),
    ({**GOOD, "alg": ["ES256"]}, "alg"),
    ({**GOOD, "alg": "RS256"}, ""),
    ({**GOOD, "x": "AA"}, ""),
    ({**GOOD, "x": 1}, ""),
    ({**GOOD, "kty": None}, ""),
    ({"kty": "RSA", "n": "AQAB", "e": "AQAB"}, ""),
    ({"kty": "OKP", "crv": "X25519", "x": "AAAA"}, ""),
    ({"kty": "RSA", "alg": "RS256"}, ""),
    ({}, ""),
]


@pytest.mark.parametrize(("wrong", "member"), WRONG_KEYS)
def test_a_key_that_cannot_be_used_is_refused_by_its_field_and_ignored_in_a_fetched_set(
    wrong: dict[str, Any], member: str
) -> None:
    keys = {"keys": [GOOD, wrong]}
    with pytest.raises(Invalid) as refused:
        jwks.check(keys, "settings.jwt.jwks")
    assert refused.value.code == "INVALID"
    assert [fault.field for fault in refused.value.faults] == [f"settings.jwt.jwks.keys.1.{member}".rstrip(".")]
    assert jwks.parse(json.dumps(keys).encode()) == {"keys": [GOOD]}
    clock = FakeClock()
    signed = token(clock, kid="stored")
    with pytest.raises(Unauthorized):  # a set that was saved before keys were checked
        jwt.verify(signed, JwtRules(kind="jwks"), secret=None, keys={"keys": [{**wrong, "kid": "stored"}]}, clock=clock)


def test_a_curve_that_we_do_not_verify_with_is_refused() -> None:
    key = json.loads(pyjwt.get_algorithm_by_name("ES512").to_jwk(ec.generate_private_key(ec.SECP521R1()).public_key()))
    with pytest.raises(Invalid) as refused:
        jwks.check({"keys": [key]}, "settings.jwt.jwks")
    assert [fault.field for fault in refused.value.faults] == ["settings.jwt.jwks.keys.0.crv"]


def test_keys_for_encryption_may_be_in_a_set() -> None:
    keys = {"keys": [GOOD, {"kty": "RSA", "use": "enc", "alg": "RSA-OAEP", "n": "AQAB", "e": "AQAB"}]}
    jwks.check(keys, "settings.jwt.jwks")
    assert jwks.parse(json.dumps(keys).encode()) == {"keys": [GOOD]}


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=8)
    | st.sampled_from(["AQAB", GOOD["x"]]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
jwk = st.fixed_dictionaries(
    {},
    optional={
        "kty": st.sampled_from(["RSA", "EC", "OKP"]) | anything,
        "alg": st.sampled_from([*jwks.PUBLIC_KEY_ALGORITHMS, "none", "HS256", "ES256K"]) | anything,
        "crv": st.sampled_from(["P-256", "P-384", "P-521", "secp256k1", "Ed25519", "Ed448", "X25519"]) | anything,
        **dict.fromkeys(("n", "e", "x", "y", "kid", "use", "key_ops"), anything),
    },
)


@given(jwk)
def test_no_key_makes_anything_but_a_refusal(entry: dict[str, Any]) -> None:
    clock = FakeClock()
    with contextlib.suppress(jwks.UnusableKey):
        jwks.load_key(entry)
    with contextlib.suppress(Invalid):
        jwks.check({"keys": [entry]}, "settings.jwt.jwks")
    with contextlib.suppress(Invalid):
        jwks.parse(json.dumps({"keys": [entry]}).encode())
    with pytest.raises(Unauthorized):
        jwt.verify(token(clock), JwtRules(kind="jwks"), secret=None, keys={"keys": [entry]}, clock=clock)


async def test_a_failed_fetch_is_remembered_for_its_url_only() -> None:
    clock = FakeClock()
    web = Web(GOOD)
    web.up = False
    keysets = jwks.KeySets(web, clock)
    for _ in range(3):
        with pytest.raises(Busy):
            await keysets.get("https://old.example", None)
    assert web.asked == 1
    web.up = True
    assert len((await keysets.get("https://new.example", None))["keys"]) == 1, "a corrected URL is asked at once"
    clock.advance(seconds=10)
    assert len((await keysets.get("https://old.example", None))["keys"]) == 1
