"""Users and sessions: who may log in, as what, and for how long."""

from __future__ import annotations

import math
from asyncio import sleep
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

from msgspec import UNSET, structs

from handbill.infra.postgres import Database, Tx, UniqueViolation
from handbill.kit import etags
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Forbidden, HandbillError, NotFound, Unauthorized
from handbill.kit.ids import Ids
from handbill.kit.pages import Page, page
from handbill.kit.telemetry import metrics
from handbill.tenants import keys, store
from handbill.tenants.audit import Audit
from handbill.tenants.cursors import after_id, id_of
from handbill.tenants.grants import actor_name, current_authority
from handbill.tenants.logins import LoginLimits
from handbill.tenants.model import Actor, NewUser, Principal, Session, User, UserPatch
from handbill.tenants.passwords import Passwords

ACCOUNTS_PER_LOGIN = 4
"""So many accounts with one e-mail address are tried by a login that does not name its tenant."""
LOGIN_STEP_S = 0.5
"""Logins are answered after whole steps: the time taken does not tell how many accounts an address has."""
ALL = 1_000_000


class Accounts:
    def __init__(
        self,
        database: Database,
        limits: LoginLimits,
        audit: Audit,
        passwords: Passwords,
        changed: Callable[[int], Awaitable[None]],
        clock: Clock,
        ids: Ids,
        *,
        session_hours: int,
        login_step_s: float,
    ) -> None:
        self._database = database
        self._limits = limits
        self._audit = audit
        self._passwords = passwords
        self._changed = changed
        self._clock = clock
        self._ids = ids
        self._session_life = timedelta(hours=session_hours)
        self._login_step_s = login_step_s

    # --- users

    async def create_user(self, tenant_id: int, new: NewUser, *, actor: Actor) -> User:
        """A new user of this tenant. The same e-mail address may belong to a user of another tenant."""
        hashed = await self._passwords.hash(new.password)
        now = self._clock.now()
        try:
            async with self._database.tenant(tenant_id) as tx:
                authority = await current_authority(tx, tenant_id, actor, now)
                authority.require_role(new.role, f"create a user with the role {new.role}")
                authority.require_no_expiry("create a user")
                user = await store.create_user(tx, tenant_id, self._ids.new(), new, hashed, now)
                await self._note(tx, tenant_id, actor, "user.create", user.user_id, None, user)
        except UniqueViolation:
            raise Conflict(
                "A user of this tenant has this e-mail address; nothing was changed.", code="EMAIL_TAKEN"
            ) from None
        return user

    async def list_users(self, tenant_id: int) -> list[User]:
        async with self._database.tenant(tenant_id) as tx:
            return await store.list_users(tx, tenant_id, None, ALL)

    async def user_page(self, tenant_id: int, cursor: str | None, limit: int) -> Page[User]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_users(tx, tenant_id, after_id(cursor), limit + 1)
        return page(rows, limit, lambda row: id_of(row.user_id))

    async def get_user(self, tenant_id: int, user_id: UUID) -> User:
        async with self._database.tenant(tenant_id) as tx:
            return _there(await store.read_user(tx, tenant_id, user_id))

    async def find(self, email: str, tenant_slug: str | None = None) -> list[store.Account]:
        """The users with an e-mail address, for the operator's command line."""
        async with self._database.lookup() as tx:
            return await store.find_accounts(tx, email, tenant_slug, ALL)

    async def change_user(
        self, tenant_id: int, user_id: UUID, patch: UserPatch, *, actor: Actor, if_version: int | None = None
    ) -> User:
        """A new name, role or password. A new password or role ends the user's other sessions."""
        hashed = await self._passwords.hash(patch.password) if patch.password is not UNSET else None
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            owners = await store.lock_owners(tx, tenant_id)
            before = _there(await store.read_user(tx, tenant_id, user_id, lock=True))
            wanted = before
            if patch.name is not UNSET:
                wanted = structs.replace(wanted, name=patch.name)
            if patch.role is not UNSET:
                wanted = structs.replace(wanted, role=patch.role)
            if hashed is not None or wanted.role != before.role:
                authority = await current_authority(tx, tenant_id, actor, now)
                authority.require_role(before.role, f"change a user with the role {before.role}")
                authority.require_role(wanted.role, f"give the role {wanted.role}")
                authority.require_no_expiry("give a role or set a password")
            etags.check(if_version, before.version)
            if wanted.role != "owner":
                _keep_one(owners, user_id)
            after = await store.update_user(tx, tenant_id, wanted, hashed, now)
            if hashed is not None or before.role != after.role:
                await store.delete_sessions_of(tx, tenant_id, user_id)
            await self._note(tx, tenant_id, actor, "user.change", user_id, before, after, password=hashed is not None)
        await self._changed(tenant_id)
        return after

    async def set_password(self, tenant_id: int, user_id: UUID, password: str, *, actor: Actor) -> User:
        return await self.change_user(tenant_id, user_id, UserPatch(password=password), actor=actor)

    async def delete_user(self, tenant_id: int, user_id: UUID, *, actor: Actor) -> None:
        async with self._database.tenant(tenant_id) as tx:
            owners = await store.lock_owners(tx, tenant_id)
            before = _there(await store.read_user(tx, tenant_id, user_id, lock=True))
            authority = await current_authority(tx, tenant_id, actor, self._clock.now())
            authority.require_role(before.role, f"delete a user with the role {before.role}")
            _keep_one(owners, user_id)
            await store.delete_user(tx, tenant_id, user_id)
            await self._note(tx, tenant_id, actor, "user.delete", user_id, before, None)
        await self._changed(tenant_id)

    # --- sessions

    async def login(
        self,
        email: str,
        password: str,
        *,
        address: str,
        tenant_slug: str | None = None,
        browser: str | None = None,
    ) -> Session:
        """A fresh session. A wrong e-mail address and a wrong password look the same and take equally long.

        `address` is the client's; `browser` the token of an earlier login of the same browser. `tenant_slug` is needed
        only by somebody with the same password in several tenants.
        """
        attempt = await self._limits.begin(email, address, browser)
        started = self._clock.monotonic()
        try:
            account = await self._authenticate(email, password, tenant_slug, attempt.known_browser)
        except HandbillError:
            metrics.TENANTS_LOGINS.labels("refused").inc()
            await self._finish_step(started)
            raise
        session = await self._open(account)
        await self._limits.succeed(attempt)
        metrics.TENANTS_LOGINS.labels("good").inc()
        await self._finish_step(started)
        return session

    async def _authenticate(
        self, email: str, password: str, tenant_slug: str | None, known_browser: bool
    ) -> store.Account:
        """The account that the password opens. Each one is tried, so that the time does not depend on which it is."""
        async with self._database.lookup() as tx:
            accounts = await store.find_accounts(tx, email, tenant_slug, ACCOUNTS_PER_LOGIN)
        matching = []
        for account in accounts:
            async with self._database.tenant(account.tenant_id) as tx:
                known = await store.read_password(tx, account.tenant_id, account.user_id)
            if await self._passwords.matches(known, password, known_browser=known_browser):
                matching.append(account)
        if not accounts:
            await self._passwords.matches(None, password, known_browser=known_browser)
        if len(matching) > 1:
            slugs = ", ".join([await self._slug(account.tenant_id) for account in matching])
            raise Conflict(
                f"Your e-mail address and password open accounts in several tenants; send `tenant`, one of {slugs}.",
                code="TENANT_NEEDED",
            )
        if not matching:
            raise Unauthorized(
                "E-mail address and password do not match. With accounts in several tenants, send `tenant` too.",
                code="BAD_LOGIN",
            )
        return matching[0]

    async def _slug(self, tenant_id: int) -> str:
        async with self._database.tenant(tenant_id) as tx:
            tenant = await store.read_tenant(tx, tenant_id)
        return tenant.slug if tenant is not None else ""

    async def _finish_step(self, started: float) -> None:
        """Waits until a whole number of steps has passed."""
        if self._login_step_s > 0:
            taken = self._clock.monotonic() - started
            await sleep(math.ceil(taken / self._login_step_s) * self._login_step_s - taken)

    def browser_token(self, email: str) -> str:
        """What a browser keeps after a login, so that others' failed logins cannot keep it out."""
        return self._limits.browser_token(email)

    async def logout(self, principal: Principal) -> None:
        if principal.session_id is None:
            return
        async with self._database.tenant(principal.tenant_id) as tx:
            if await store.delete_session(tx, principal.tenant_id, principal.session_id):
                await self._audit.write(
                    tx,
                    principal.tenant_id,
                    actor=principal.actor,
                    action="session.close",
                    object=f"session {principal.session_id}",
                )
        await self._changed(principal.tenant_id)

    async def _open(self, account: store.Account) -> Session:
        tenant_id, user_id = account.tenant_id, account.user_id
        token, now, session_id = keys.make(keys.SESSION), self._clock.now(), self._ids.new()
        expires_at = now + self._session_life
        async with self._database.tenant(tenant_id) as tx:
            user = _there(await store.read_user(tx, tenant_id, user_id))
            tenant = await store.read_tenant(tx, tenant_id)
            if tenant is None or tenant.status == "suspended":
                raise Forbidden("The tenant is suspended; no session was opened.", code="TENANT_SUSPENDED")
            await store.create_session(tx, tenant_id, session_id, user_id, keys.digest(token), now, expires_at)
            await self._audit.write(
                tx, tenant_id, actor=f"user {user_id}", action="session.open", object=f"session {session_id}"
            )
        return Session(token, keys.csrf_of(token), expires_at, tenant_id, user)

    async def _note(
        self,
        tx: Tx,
        tenant_id: int,
        actor: Actor,
        action: str,
        user_id: UUID,
        before: User | None,
        after: User | None,
        *,
        password: bool = False,
    ) -> None:
        if password:
            action += "+password"
        await self._audit.write(
            tx, tenant_id, actor=actor_name(actor), action=action, object=f"user {user_id}", before=before, after=after
        )


def _there(user: User | None) -> User:
    if user is None:
        raise NotFound("There is no such user in this tenant.", code="USER_NOT_FOUND")
    return user


def _keep_one(owners: list[UUID], leaving: UUID) -> None:
    if owners == [leaving]:
        raise Conflict(
            "This is the tenant's last owner; nothing was changed. Make another user an owner first.",
            code="LAST_OWNER",
        )
