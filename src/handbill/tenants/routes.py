"""The tenants' routes. Each names its scope in `opt`; the API shell refuses to start with a route that does not.

What crosses tenants (creating, suspending) has no route at all: it is the operator's work on the command line.
"""

from __future__ import annotations

from typing import Annotated, Any, cast
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, delete, get, patch, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import CookieParameter, FromPath, HeaderParameter, JSONBody, QueryParameter, SkipValidation
from msgspec import Meta

from handbill.kit.etags import etag, wanted_version
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.tenants import examples
from handbill.tenants.logins import BROWSER_TOKEN_DAYS
from handbill.tenants.model import (
    BROWSER_COOKIE,
    SESSION_COOKIE,
    AuditEntry,
    Email,
    Erasure,
    Export,
    Key,
    KeyMade,
    NewKey,
    NewUser,
    PersonExport,
    Principal,
    Session,
    Slug,
    Tenant,
    TenantPatch,
    TenantSettings,
    User,
    UserPatch,
)
from handbill.tenants.service import TenantService

Tenants = NamedDependency[SkipValidation[TenantService]]
Who = NamedDependency[SkipValidation[Principal]]
SecureCookies = NamedDependency[SkipValidation[bool]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of your last read, if it matters.")
]


class TenantView(msgspec.Struct, frozen=True):
    """The tenant and its settings, as one thing to read and to change."""

    tenant: Tenant
    """The tenant itself."""
    settings: TenantSettings


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    email: Email
    password: Annotated[str, Meta(min_length=1, max_length=1024)]
    """The password of the user."""
    cookie: bool = False
    """Also set the token as a cookie, for browsers."""
    tenant: Slug | None = None
    """The slug of the tenant, where the same login opens several."""


class Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old key works on beside the new one: at most thirty days."""

    overlap_s: Annotated[int, Meta(ge=0, le=2_592_000)] = 86_400
    """For how many seconds the old key works on; at most 30 days."""


class ErasureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose traces to remove: the id under which the tenant's events know the person."""

    subject: Annotated[str, Meta(min_length=1, max_length=200)]
    """The id under which events know the person."""


class WhoAmI(msgspec.Struct, frozen=True):
    kind: str
    """The kind of credential: a session or a key."""
    actor: str
    """Who you are in the audit log."""
    scopes: list[str]
    role: str | None = None
    """The role of the signed-in user; null for a key."""


class TenantRoutes(Controller):
    path = "/admin/tenant"
    tags = ("Tenant",)

    @get(operation_id="getTenant", opt={"scope": "tenants:read", "example": examples.TENANT})
    async def read(self, tenants: Tenants, principal: Who) -> Response[TenantView]:
        """The tenant and its settings. Secrets are not shown, only whether they are set."""
        tenant, settings = await tenants.get_tenant(principal.tenant_id)
        return Response(TenantView(tenant, settings), headers={"ETag": etag(tenant.version)})

    @patch(
        operation_id="changeTenant",
        opt={"scope": "tenants:write", "example": examples.TENANT, "body_example": examples.TENANT_PATCH},
    )
    async def change(
        self, tenants: Tenants, principal: Who, data: JSONBody[TenantPatch], if_match: IfMatch = None
    ) -> Response[TenantView]:
        """Change the name, the time zone or the settings. What is left out stays as it is."""
        tenant, settings = await tenants.change_tenant(
            principal.tenant_id, data, actor=principal.actor, if_version=wanted_version(if_match)
        )
        return Response(TenantView(tenant, settings), headers={"ETag": etag(tenant.version)})


class KeyRoutes(Controller):
    path = "/admin/keys"
    tags = ("Keys",)

    @get(operation_id="listKeys", opt={"scope": "keys:read", "example": examples.page(examples.KEY)})
    async def listed(
        self, tenants: Tenants, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Key]:
        """The tenant's keys, newest first. Secret keys show only their last letters."""
        return await tenants.key_page(principal.tenant_id, cursor, limit)

    @post(
        operation_id="createKey",
        opt={"scope": "keys:write", "example": examples.KEY_MADE, "body_example": examples.NEW_KEY},
    )
    async def create(self, tenants: Tenants, principal: Who, data: JSONBody[NewKey]) -> KeyMade:
        """Create a key. `key` is its clear text: a secret key is shown here and never again."""
        return await tenants.create_key(principal.tenant_id, data, actor=principal)

    @post(
        "/{key_id:uuid}/rotate",
        operation_id="rotateKey",
        opt={"scope": "keys:write", "example": examples.KEY_MADE, "body_example": {"overlap_s": 86400}},
    )
    async def rotate(
        self, tenants: Tenants, principal: Who, key_id: FromPath[UUID], data: JSONBody[Rotation]
    ) -> KeyMade:
        """Create the key's successor; the old key works on until the overlap ends."""
        return await tenants.rotate_key(principal.tenant_id, key_id, actor=principal, overlap_s=data.overlap_s)

    @delete(
        "/{key_id:uuid}",
        operation_id="revokeKey",
        status_code=200,
        opt={"scope": "keys:write", "example": examples.KEY_REVOKED},
    )
    async def revoke(self, tenants: Tenants, principal: Who, key_id: FromPath[UUID]) -> Key:
        """End a key at once. Revoking it again changes nothing."""
        return await tenants.revoke_key(principal.tenant_id, key_id, actor=principal)


class UserRoutes(Controller):
    path = "/admin/users"
    tags = ("Users",)

    @get(operation_id="listUsers", opt={"scope": "users:read", "example": examples.page(examples.USER)})
    async def listed(
        self, tenants: Tenants, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[User]:
        """The tenant's users."""
        return await tenants.accounts.user_page(principal.tenant_id, cursor, limit)

    @post(
        operation_id="createUser",
        opt={"scope": "users:write", "example": examples.USER, "body_example": examples.NEW_USER},
    )
    async def create(self, tenants: Tenants, principal: Who, data: JSONBody[NewUser]) -> User:
        """Create a user with a role that is no more than you hold. An e-mail address is unique in its tenant."""
        return await tenants.accounts.create_user(principal.tenant_id, data, actor=principal)

    @get("/{user_id:uuid}", operation_id="getUser", opt={"scope": "users:read", "example": examples.USER})
    async def read(self, tenants: Tenants, principal: Who, user_id: FromPath[UUID]) -> Response[User]:
        """One user."""
        user = await tenants.accounts.get_user(principal.tenant_id, user_id)
        return Response(user, headers={"ETag": etag(user.version)})

    @patch(
        "/{user_id:uuid}",
        operation_id="changeUser",
        opt={"scope": "users:write", "example": examples.USER, "body_example": {"role": "operator"}},
    )
    async def change(
        self,
        tenants: Tenants,
        principal: Who,
        user_id: FromPath[UUID],
        data: JSONBody[UserPatch],
        if_match: IfMatch = None,
    ) -> Response[User]:
        """Change a user's name, role or password. A new role or password ends the user's sessions."""
        user = await tenants.accounts.change_user(
            principal.tenant_id, user_id, data, actor=principal, if_version=wanted_version(if_match)
        )
        return Response(user, headers={"ETag": etag(user.version)})

    @delete("/{user_id:uuid}", operation_id="deleteUser", opt={"scope": "users:write"})
    async def remove(self, tenants: Tenants, principal: Who, user_id: FromPath[UUID]) -> None:
        """Remove a user and end its sessions. A tenant keeps at least one owner."""
        await tenants.accounts.delete_user(principal.tenant_id, user_id, actor=principal)


class RecordRoutes(Controller):
    path = "/admin"
    tags = ("Records",)

    @get("/audit", operation_id="listAudit", opt={"scope": "audit:read", "example": examples.page(examples.AUDIT)})
    async def audit(
        self, tenants: Tenants, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[AuditEntry]:
        """Who changed what, newest first. Secrets are left out."""
        return await tenants.audit_page(principal.tenant_id, cursor, limit)

    @get(
        "/erasures",
        operation_id="listErasures",
        opt={"scope": "erasures:read", "example": examples.page(examples.ERASURE)},
    )
    async def erasures(
        self, tenants: Tenants, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Erasure]:
        """Erasures and their reports, newest first."""
        return await tenants.erasures.list(principal.tenant_id, cursor, limit)

    @post(
        "/erasures",
        operation_id="eraseSubject",
        status_code=202,
        opt={"scope": "erasures:write", "example": examples.ERASURE, "body_example": {"subject": "user-42"}},
    )
    async def erase(self, tenants: Tenants, principal: Who, data: JSONBody[ErasureRequest]) -> Response[Erasure]:
        """Remove a person's identifiers and properties from every store. Counts stay. Safe to repeat.

        The worker does it: read how far it is at `Location`.
        """
        erasure = await tenants.erasures.request(principal.tenant_id, data.subject, actor=principal.actor)
        return Response(erasure, headers={"Location": f"/admin/erasures/{erasure.erasure_id}"})

    @get(
        "/erasures/{erasure_id:uuid}",
        operation_id="getErasure",
        opt={"scope": "erasures:read", "example": examples.ERASURE},
    )
    async def erasure(self, tenants: Tenants, principal: Who, erasure_id: FromPath[UUID]) -> Erasure:
        """One erasure: how far it is, and its report."""
        return await tenants.erasures.get(principal.tenant_id, erasure_id)

    @post(
        "/exports",
        operation_id="exportSubject",
        status_code=202,
        opt={"scope": "erasures:write", "example": examples.PERSON_EXPORT, "body_example": {"subject": "user-42"}},
    )
    async def export(self, tenants: Tenants, principal: Who, data: JSONBody[ErasureRequest]) -> Response[PersonExport]:
        """Collect everything kept about a person under any of their ids, at most 10,000 rows and 16 MiB in all.

        The worker does it: read how far it is at `Location`.
        """
        export = await tenants.exports.request(principal.tenant_id, data.subject, actor=principal.actor)
        return Response(export, headers={"Location": f"/admin/exports/{export.export_id}"})

    @get(
        "/exports/{export_id:uuid}",
        operation_id="getExport",
        opt={"scope": "erasures:write", "example": examples.PERSON_EXPORT},
    )
    async def person_export(self, tenants: Tenants, principal: Who, export_id: FromPath[UUID]) -> PersonExport:
        """One export: how far it is, and until when it is kept."""
        return await tenants.exports.get(principal.tenant_id, export_id)

    @get(
        "/exports/{export_id:uuid}/result",
        operation_id="getExportResult",
        opt={"scope": "erasures:write", "example": examples.EXPORT},
    )
    async def export_result(self, tenants: Tenants, principal: Who, export_id: FromPath[UUID]) -> Response[Export]:
        """What an export collected, for 24 hours. 409 `EXPORT_NOT_READY` before it is done."""
        body = await tenants.exports.result(principal.tenant_id, export_id)
        return cast(Response[Export], Response(body, media_type="application/json"))


class AuthRoutes(Controller):
    path = "/auth"
    tags = ("Login",)

    @post(
        "/login",
        operation_id="login",
        status_code=200,
        opt={"public": True, "example": examples.SESSION, "body_example": examples.LOGIN},
    )
    async def login(
        self,
        request: Request[Any, Any, Any],
        tenants: Tenants,
        data: JSONBody[Login],
        secure_cookies: SecureCookies,
        browser: Annotated[str | None, CookieParameter(name=BROWSER_COOKIE, max_length=200)] = None,
    ) -> Response[Session]:
        """Open a session. With `cookie` the token is set as a cookie too; changes then need the CSRF token.

        `tenant`, a slug, is needed only where your e-mail address and password open accounts in several tenants.
        """
        session = await tenants.accounts.login(
            data.email,
            data.password,
            address=request.scope["state"]["client_ip"],
            tenant_slug=data.tenant,
            browser=browser,
        )
        cookies: list[Cookie] = []
        if data.cookie:
            cookies.append(_cookie(session.token, secure=secure_cookies, expired=False))
            cookies.append(_browser_cookie(tenants.accounts.browser_token(data.email), secure=secure_cookies))
        return Response(session, cookies=cookies, headers={"Cache-Control": "no-store"})

    @post("/logout", operation_id="logout", status_code=204, opt={"signed_in": True})
    async def logout(self, tenants: Tenants, principal: Who, secure_cookies: SecureCookies) -> Response[None]:
        """End the session."""
        await tenants.accounts.logout(principal)
        return Response(None, status_code=204, cookies=[_cookie("", secure=secure_cookies, expired=True)])

    @get("/me", operation_id="whoAmI", opt={"signed_in": True, "example": examples.ME})
    async def me(self, principal: Who) -> WhoAmI:
        """Who the credentials belong to and what they allow."""
        return WhoAmI(principal.kind, principal.actor, sorted(principal.scopes), principal.role)


def _cookie(value: str, *, secure: bool, expired: bool) -> Cookie:
    options: dict[str, Any] = {"max_age": 0} if expired else {}
    return Cookie(key=SESSION_COOKIE, value=value, path="/", httponly=True, secure=secure, samesite="strict", **options)


def _browser_cookie(value: str, *, secure: bool) -> Cookie:
    """Outlives the session and gives no rights: it only exempts the browser from others' failed logins."""
    life = BROWSER_TOKEN_DAYS * 86_400
    return Cookie(
        key=BROWSER_COOKIE, value=value, path="/auth", httponly=True, secure=secure, samesite="strict", max_age=life
    )


handlers = [TenantRoutes, KeyRoutes, UserRoutes, RecordRoutes, AuthRoutes]
