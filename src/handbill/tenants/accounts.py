"""Users and sessions: who may log in, as what, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from msgspec import UNSET, structs

from handbill.infra.postgres import Database, Tx, UniqueViolation
from handbill.infra.redis.keys import Keys
from handbill.kit import etags
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Conflict, Forbidden, NotFound, Throttled, Unauthorized
from handbill.kit.ids import Ids
from handbill.kit.pages import Page, page
from handbill.kit.telemetry import metrics
from handbill.tenants import keys, store
from handbill.tenants.audit import Audit
from handbill.tenants.cursors import after_id, id_of
from handbill.tenants.model import NewUser, Principal, Session, User, UserPatch
from handbill.tenants.passwords import Passwords

FAILURES_ALLOWED = 10
FAILURES_WINDOW_S = 900
ALL = 1_000_000


class Counting(Protocol):
    """The part of Redis that counts failed logins."""

    async def many(self, commands: Any) -> list[Any]: ...


class Accounts:
    def __init__(
        self,
        database: Database,
        redis: Counting,
        audit: Audit,
        passwords: Passwords,
        changed: Callable[[int], Awaitable[None]],
        clock: Clock,
        ids: Ids,
        *,
        redis_keys: Keys,
        session_hours: int = 12,
    ) -> None:
        self._database = database
        self._redis = redis
        self._redis_keys = redis_keys
        self._audit = audit
        self._passwords = passwords
        self._changed = changed
        self._clock = clock
        self._ids = ids
        self._session_life = timedelta(hours=session_hours)

    # --- users

    async def create_user(self, tenant_id: int, new: NewUser, *, actor: str) -> User:
        hashed = await self._passwords.hash(new.password)
        try:
            async with self._database.tenant(tenant_id) as tx:
                user = await store.create_user(tx, tenant_id, self._ids.new(), new, hashed, self._clock.now())
                await self._note(tx, tenant_id, actor, "user.create", user.user_id, None, user)
        except UniqueViolation:
            raise Conflict(
                "A user with this e-mail address exists in this installation; nothing was changed. "
                "Use another address, for instance with a +tag.",
                code="EMAIL_TAKEN",
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

    async def find(self, email: str) -> tuple[int, UUID] | None:
        """Tenant and user of an address, for the operator's command line."""
        async with self._database.lookup() as tx:
            return await store.find_user(tx, email)

    async def change_user(
        self, tenant_id: int, user_id: UUID, patch: UserPatch, *, actor: str, if_version: int | None = None
    ) -> User:
        """A new name, role or password. A new password or role ends the user's other sessions."""
        hashed = await self._passwords.hash(patch.password) if patch.password is not UNSET else None
        async with self._database.tenant(tenant_id) as tx:
            owners = await store.lock_owners(tx, tenant_id)
            before = _there(await store.read_user(tx, tenant_id, user_id, lock=True))
            etags.check(if_version, before.version)
            wanted = before
            if patch.name is not UNSET:
                wanted = structs.replace(wanted, name=patch.name)
            if patch.role is not UNSET:
                wanted = structs.replace(wanted, role=patch.role)
            if wanted.role != "owner":
                _keep_one(owners, user_id)
            after = await store.update_user(tx, tenant_id, wanted, hashed, self._clock.now())
            if hashed is not None or before.role != after.role:
                await store.delete_sessions_of(tx, tenant_id, user_id)
            await self._note(tx, tenant_id, actor, "user.change", user_id, before, after, password=hashed is not None)
        await self._changed(tenant_id)
        return after

    async def set_password(self, tenant_id: int, user_id: UUID, password: str, *, actor: str) -> User:
        return await self.change_user(tenant_id, user_id, UserPatch(password=password), actor=actor)

    async def delete_user(self, tenant_id: int, user_id: UUID, *, actor: str) -> None:
        async with self._database.tenant(tenant_id) as tx:
            owners = await store.lock_owners(tx, tenant_id)
            before = _there(await store.read_user(tx, tenant_id, user_id, lock=True))
            _keep_one(owners, user_id)
            await store.delete_user(tx, tenant_id, user_id)
            await self._note(tx, tenant_id, actor, "user.delete", user_id, before, None)
        await self._changed(tenant_id)

    # --- sessions

    async def login(self, email: str, password: str) -> Session:
        """A fresh session. A wrong address and a wrong password look the same and take equally long."""
        counter = self._redis_keys.plain("login", keys.digest(email.lower()).hex()[:32])
        await self._count_attempt(counter)
        async with self._database.lookup() as tx:
            found = await store.find_user(tx, email)
        known = None
        if found is not None:
            async with self._database.tenant(found[0]) as tx:
                known = await store.read_password(tx, *found)
        if not await self._passwords.matches(known, password) or found is None:
            metrics.TENANTS_LOGINS.labels("refused").inc()
            raise Unauthorized("E-mail address and password do not match.", code="BAD_LOGIN")
        session = await self._open(*found)
        await self._forget_attempts(counter)
        metrics.TENANTS_LOGINS.labels("good").inc()
        return session

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

    async def _open(self, tenant_id: int, user_id: UUID) -> Session:
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

    async def _count_attempt(self, counter: str) -> None:
        """Ten tries per address in a quarter of an hour, good ones not counted. Fails open while Redis is away."""
        try:
            _, tries = await self._redis.many(
                [("SET", counter, 0, "EX", FAILURES_WINDOW_S, "NX"), ("INCR", counter)],
            )
        except Busy:
            metrics.TENANTS_LIMIT_OPEN.inc()
            return
        if int(tries) > FAILURES_ALLOWED:
            metrics.TENANTS_LOGINS.labels("throttled").inc()
            raise Throttled(
                "Too many failed logins for this address; wait before the next try.",
                code="LOGIN_THROTTLED",
                retry_after=FAILURES_WINDOW_S,
            )

    async def _forget_attempts(self, counter: str) -> None:
        try:
            await self._redis.many([("DEL", counter)])
        except Busy:
            metrics.TENANTS_LIMIT_OPEN.inc()

    async def _note(
        self,
        tx: Tx,
        tenant_id: int,
        actor: str,
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
            tx, tenant_id, actor=actor, action=action, object=f"user {user_id}", before=before, after=after
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
