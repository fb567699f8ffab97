"""Who asks on the public routes: the tenant by its write key, the user by the tenant's token or, unproved, as sent.

A server of the tenant sends a secret key instead, and speaks for any user.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

import msgspec

from handbill.kit.bounds import ID_MAX, QUERY_FIELDS_MAX, QUERY_MAX
from handbill.kit.errors import Fault, Invalid, NotFound, Unauthorized
from handbill.kit.fast import FastRequest
from handbill.tenants.model import SECRET_KEY_PREFIX, Principal
from handbill.tenants.service import Directory

SPEAKS_FOR_USERS = "events:write"
"""The scope with which a secret key says who its users are."""


class UserTokenRequired(Unauthorized):
    """The tenant takes nothing for a user without proof of who it is."""

    code = "USER_TOKEN_REQUIRED"


class Caller(msgspec.Struct, frozen=True):
    """`subject` is the user a token proved; None when only a key was sent. `trusted`: it speaks for any user."""

    tenant_id: int
    subject: str | None
    trusted: bool = False

    @property
    def is_proved(self) -> bool:
        """Whether it is sure for whom this caller speaks."""
        return self.trusted or self.subject is not None


def query_of(request: FastRequest) -> dict[str, str]:
    """The query's parameters; of one sent twice the last stands. Raises Invalid when there are too many."""
    if len(request.query) > QUERY_MAX:
        raise _bad_query(f"must have at most {QUERY_MAX} bytes")
    try:
        parsed = parse_qs(request.query.decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:
        raise _bad_query(f"must have at most {QUERY_FIELDS_MAX} parameters") from None
    return {name: values[-1] for name, values in parsed.items()}


def text_of(query: Mapping[str, str], name: str, most: int = ID_MAX) -> str | None:
    """One parameter, None where it is not sent. Raises Invalid when it is too long."""
    value = query.get(name)
    if value is not None and len(value) > most:
        raise Invalid(
            f"`{name}` is too long; nothing was decided.", faults=[Fault(name, f"must have at most {most} characters")]
        )
    return value


def _bad_query(reason: str) -> Invalid:
    return Invalid(f"The query {reason}.", faults=[Fault("query", reason)])


async def caller(
    directory: Directory, request: FastRequest, tenant_id: int | None = None, *, needs_proof: bool = True
) -> Caller:
    """The key names the tenant; where the tenant is known already (by a banner), a token alone is enough.

    Raises UserTokenRequired for a publishable key alone, where the tenant requires users' tokens. A route that knows
    another proof says that it does not need this one, and calls `require_user_token` itself.
    """
    secret = await secret_key(directory, request)
    principal = await _by_key(directory, request) or secret
    if principal is not None:
        if secret is not None and principal.tenant_id != secret.tenant_id:
            raise Unauthorized("The secret key and the write key belong to different tenants; nothing was done.")
        if tenant_id is not None and principal.tenant_id != tenant_id:
            # Another tenant's banner: to this key it does not exist.
            raise NotFound("There is no such banner; nothing was counted.", code="BANNER_NOT_FOUND")
        tenant_id = principal.tenant_id
    token = _bearer(request) if secret is None else None
    if tenant_id is None or (principal is None and token is None):
        raise Unauthorized("Send the tenant's write key in X-Write-Key, and the user's token where there is one.")
    if token is not None:
        user = await directory.user_token(tenant_id, token)
        return Caller(tenant_id, user.subject)
    who = Caller(tenant_id, None, trusted=secret is not None and secret.allows(SPEAKS_FOR_USERS))
    if needs_proof:
        await require_user_token(directory, who)
    return who


async def require_user_token(directory: Directory, who: Caller, *, proved: bool = False) -> None:
    """Raises UserTokenRequired where the tenant requires users' tokens, and nothing says surely who the user is."""
    if not proved and not who.is_proved and (await directory.profile(who.tenant_id)).settings.jwt.required:
        raise UserTokenRequired(
            "This tenant requires users' tokens: send the user's in Authorization: Bearer, or from a server a secret "
            f"key with the scope {SPEAKS_FOR_USERS}. Nothing was done."
        )


async def secret_key(directory: Directory, request: FastRequest) -> Principal | None:
    """Whoever sent a secret key as its bearer token; None where it sent none. Raises Unauthorized for a bad one."""
    if b"authorization" not in request.headers:
        return None
    token = _bearer(request)
    if token is None or not token.startswith(SECRET_KEY_PREFIX):
        return None
    principal = await directory.secret_key(token)
    if principal is None:
        raise Unauthorized("The secret key is not known, or not valid any more.")
    return principal


async def _by_key(directory: Directory, request: FastRequest) -> Principal | None:
    sent = request.headers.get(b"x-write-key", b"").decode("latin-1")
    if not sent and b"write_key=" in request.query:
        sent = query_of(request).get("write_key", "")
    if not sent:
        return None
    if sent.startswith(SECRET_KEY_PREFIX):
        raise Unauthorized(
            "This is a secret key: a server sends it in Authorization: Bearer. X-Write-Key takes a write key (hbw_...)."
        )
    principal = await directory.write_key(sent)
    if principal is None:
        raise Unauthorized("The write key is not known, or not valid any more.")
    return principal


def _bearer(request: FastRequest) -> str | None:
    scheme, _, token = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
