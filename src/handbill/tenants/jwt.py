"""A tenant's user tokens: verified once, remembered by digest until they expire.

The algorithms are pinned by the tenant's rules and never taken from the token: an HS256 tenant accepts only HS256, a
JWKS tenant only public-key algorithms, so that a public key can never be used as a shared secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jwt as pyjwt
import msgspec

from handbill.kit.bounds import ID_MAX, TOKEN_MAX, USER_TOKENS, CacheLimit
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.kit.errors import Fault, Invalid, Unauthorized
from handbill.tenants import jwks
from handbill.tenants.model import JwtRules


class Verified(msgspec.Struct, frozen=True):
    """What a good token says: whose it is and until when."""

    subject: str
    expires_ms: int


class Memory:
    """Verified tokens by (tenant, rules' version, digest): a bounded table, the least recently used out first."""

    def __init__(self, clock: Clock, limit: CacheLimit = USER_TOKENS) -> None:
        self._clock = clock
        self._verified: LruCache[tuple[int, int, bytes], Verified] = LruCache(limit)

    def find(self, tenant_id: int, version: int, token: str) -> Verified | None:
        key = (tenant_id, version, _digest(token))
        verified: Verified | None = self._verified.get(key)
        if verified is not None and verified.expires_ms <= self._clock.now_ms():
            del self._verified[key]
            return None
        return verified

    def keep(self, tenant_id: int, version: int, token: str, verified: Verified) -> None:
        self._verified[(tenant_id, version, _digest(token))] = verified

    def __len__(self) -> int:
        return len(self._verified)

    @property
    def currsize(self) -> float:
        return self._verified.currsize


def check_rules(rules: JwtRules) -> None:
    """Raises Invalid for rules that contradict themselves."""
    if rules.required and rules.kind == "none":
        raise Invalid(
            "Tokens cannot be required while there is nothing to check them with; nothing was changed.",
            faults=[Fault("settings.jwt.required", "needs a kind: hs256 with a secret, or jwks with a key set")],
        )
    if rules.kind == "jwks" and (rules.jwks is None) == (rules.jwks_url is None):
        raise Invalid(
            "A key set is given either as it is or by its URL.",
            faults=[Fault("settings.jwt", "needs exactly one of jwks and jwks_url")],
        )


def check_length(token: str) -> None:
    """Raises Unauthorized for a token that is too long to be hashed or parsed."""
    if len(token) > TOKEN_MAX:
        raise _refused(f"it is longer than {TOKEN_MAX} characters")


def key_id(token: str) -> str | None:
    """The `kid` a token claims to be signed with; only used to choose among the tenant's own keys."""
    check_length(token)
    try:
        kid = pyjwt.get_unverified_header(token).get("kid")
    except pyjwt.InvalidTokenError:
        raise _refused("it is not a signed token") from None
    return kid if isinstance(kid, str) else None


def verify(
    token: str, rules: JwtRules, *, secret: bytes | None, keys: Mapping[str, Any] | None, clock: Clock
) -> Verified:
    """The token's subject if everything holds: signature, pinned algorithm, expiry, audience and issuer where set."""
    kid = key_id(token)
    if rules.kind == "hs256":
        if secret is None:
            raise _refused("the tenant has no secret yet")
        return _decode(token, secret, ["HS256"], rules, clock)
    if rules.kind == "jwks":
        key = _choose(keys or {}, kid)
        return _decode(token, key.key, [key.algorithm_name], rules, clock)
    raise _refused("the tenant accepts no user tokens")


def _choose(keys: Mapping[str, Any], kid: str | None) -> pyjwt.PyJWK:
    entries = [entry for entry in keys.get("keys", ()) if isinstance(entry, dict) and jwks.is_for_signatures(entry)]
    if kid is not None:
        entries = [entry for entry in entries if entry.get("kid") == kid]
    if len(entries) != 1:
        raise _refused("none of the tenant's keys fits it")
    try:
        return jwks.load_key(entries[0])
    except jwks.UnusableKey:
        raise _refused("the tenant's key cannot be read") from None


def _decode(token: str, key: Any, algorithms: list[str], rules: JwtRules, clock: Clock) -> Verified:
    try:
        claims = pyjwt.decode(
            token,
            key,
            algorithms=algorithms,
            audience=rules.audience,
            issuer=rules.issuer,
            # Times are checked below, by our own clock.
            options={
                "require": ["exp", "sub"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_aud": rules.audience is not None,
            },
        )
    except (pyjwt.PyJWTError, ValueError, TypeError) as error:
        raise _refused(type(error).__name__) from None
    now = clock.now_ms() / 1000
    expires, not_before, subject = claims["exp"], claims.get("nbf", 0), claims["sub"]
    if not isinstance(expires, int | float) or not isinstance(not_before, int | float) or not abs(expires) < 1e12:
        raise _refused("its times are not numbers")
    if now >= expires + rules.leeway_s:
        raise _refused("it has expired")
    if now < not_before - rules.leeway_s:
        raise _refused("it is not valid yet")
    if not isinstance(subject, str) or not 1 <= len(subject) <= ID_MAX:
        raise _refused(f"its subject is not 1 to {ID_MAX} characters")
    return Verified(subject, int((expires + rules.leeway_s) * 1000))


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=16).digest()


def _refused(reason: str) -> Unauthorized:
    return Unauthorized(f"The user's token was refused: {reason}.", code="BAD_TOKEN")
