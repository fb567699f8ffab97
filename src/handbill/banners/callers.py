"""Who asks on the public routes: the tenant by its write key, the user by the tenant's token or, unproved, as sent."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

import msgspec

from handbill.kit.bounds import ID_MAX, QUERY_FIELDS_MAX, QUERY_MAX
from handbill.kit.errors import Fault, Invalid, NotFound, Unauthorized
from handbill.kit.fast import FastRequest
from handbill.tenants.model import Principal
from handbill.tenants.service import Directory


class Caller(msgspec.Struct, frozen=True):
    """`subject` is the user a token proved; None when only a publishable key was sent."""

    tenant_id: int
    subject: str | None


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


async def caller(directory: Directory, request: FastRequest, tenant_id: int | None = None) -> Caller:
    """The write key names the tenant; where the tenant is known already (by a banner), a token alone is enough."""
    principal = await _by_key(directory, request)
    if principal is not None:
        if tenant_id is not None and principal.tenant_id != tenant_id:
            # Another tenant's banner: to this key it does not exist.
            raise NotFound("There is no such banner; nothing was counted.", code="BANNER_NOT_FOUND")
        tenant_id = principal.tenant_id
    token = _bearer(request)
    if tenant_id is None or (principal is None and token is None):
        raise Unauthorized("Send the tenant's write key in X-Write-Key, and the user's token where there is one.")
    if token is None:
        return Caller(tenant_id, None)
    user = await directory.user_token(tenant_id, token)
    return Caller(tenant_id, user.subject)


async def _by_key(directory: Directory, request: FastRequest) -> Principal | None:
    sent = request.headers.get(b"x-write-key", b"").decode("latin-1")
    if not sent and b"write_key=" in request.query:
        sent = query_of(request).get("write_key", "")
    if not sent:
        return None
    principal = await directory.write_key(sent)
    if principal is None:
        raise Unauthorized("The write key is not known, or not valid any more.")
    return principal


def _bearer(request: FastRequest) -> str | None:
    scheme, _, token = request.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None
