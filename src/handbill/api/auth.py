"""Who is asking, and may they? Every route says in `opt` what it needs, and a route that says nothing is refused.

opt={"scope": "keys:write"}    a secret key with the scope, or a user whose role has it
opt={"signed_in": True}        any secret key or session
opt={"write_key": True}        a publishable key, from a browser on any site
opt={"public": True}           anybody
"""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from handbill.kit.errors import Broken, Forbidden, Unauthorized, Unsupported
from handbill.tenants.model import SECRET_KEY_PREFIX, SESSION_COOKIE, WRITE_KEY_PREFIX, Principal
from handbill.tenants.service import Directory, csrf_matches

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
DECLARATIONS = frozenset({"scope", "signed_in", "write_key", "public"})


class Auth(ASGIMiddleware):
    """Litestar middleware: runs once the route is known, before anything of the body is read."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        connection: ASGIConnection[Any, Any, Any, Any] = ASGIConnection(scope)
        method = str(scope.get("method"))
        await self._admit(connection, scope["route_handler"].opt, method)
        _check_media_type(connection, method)
        await next_app(scope, receive, send)

    async def _admit(self, connection: ASGIConnection[Any, Any, Any, Any], opt: dict[str, Any], method: str) -> None:
        if opt.get("public") or method == "OPTIONS" or connection.scope["path"].startswith("/schema"):
            return
        principal, credential = await self._principal(connection, method, write_key=bool(opt.get("write_key")))
        if not opt.get("signed_in") and not opt.get("write_key"):
            needed = opt.get("scope")
            if needed is None:
                raise Broken("This route does not say who may use it; it is closed until it does.")
            if not principal.allows(needed):
                raise Forbidden(
                    f"This needs the scope {needed}, which your {_thing(principal)} does not have.",
                    code="SCOPE_MISSING",
                )
        connection.scope["state"]["principal"] = principal
        connection.scope["state"]["credential"] = credential

    async def _principal(
        self, connection: ASGIConnection[Any, Any, Any, Any], method: str, *, write_key: bool
    ) -> tuple[Principal, str]:
        sent = connection.headers.get("authorization", "")
        scheme, _, token = sent.partition(" ")
        token = token.strip()
        found: Principal | None = None
        if write_key and not sent:
            token = connection.headers.get("x-write-key", "")
            found = await self._directory.write_key(token)
        elif scheme.lower() == "bearer":
            found = await self._bearer(token, write_key=write_key)
        elif not sent and (token := connection.cookies.get(SESSION_COOKIE, "")):
            found = await self._directory.session(token)
            if found is not None and method not in _SAFE:
                _check_csrf(token, connection.headers.get("x-csrf-token"))
        if found is None:
            raise Unauthorized(_refusal(token, connection.headers.get("x-write-key")))
        return found, token

    async def _bearer(self, token: str, *, write_key: bool) -> Principal | None:
        if write_key:
            return await self._directory.write_key(token)
        if token.startswith(SECRET_KEY_PREFIX):
            return await self._directory.secret_key(token)
        return await self._directory.session(token)


def _refusal(token: str, write_key: str | None) -> str:
    """Why a request without a valid key or session was refused, and which kind of key is wanted."""
    wanted = "This operation takes a secret key (hbs_...) or a session's token in Authorization: Bearer."
    if token.startswith(WRITE_KEY_PREFIX) or (not token and write_key and write_key.startswith(WRITE_KEY_PREFIX)):
        return f"What was sent is a write key, which only tracks and decides. {wanted}"
    if not token and write_key:
        return f"X-Write-Key takes write keys (hbw_...), for tracking and decisions. {wanted}"
    return f"No valid key or session was sent with the request. {wanted}"


def _check_csrf(token: str, sent: str | None) -> None:
    if not csrf_matches(token, sent):
        raise Forbidden("A change by cookie must repeat the session's CSRF token in X-CSRF-Token.", code="CSRF")


def _check_media_type(connection: ASGIConnection[Any, Any, Any, Any], method: str) -> None:
    """Bodies are JSON unless the route says otherwise; a form that a foreign page could send is refused here."""
    opt = connection.scope["route_handler"].opt
    sent = connection.headers.get("content-type")
    empty = connection.headers.get("content-length", "0") == "0" and "transfer-encoding" not in connection.headers
    if method in _SAFE or sent is None or empty or opt.get("any_media"):
        return
    kind = sent.partition(";")[0].strip().lower()
    taken = opt.get("raw_body", ("application/json",))
    if kind not in taken and not ("application/json" in taken and kind.endswith("+json")):
        raise Unsupported(f"The body must be {' or '.join(taken)}; nothing was read.")


def _thing(principal: Principal) -> str:
    return "key" if principal.kind == "secret_key" else "role"
