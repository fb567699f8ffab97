"""Nobody hands on more than they hold: scopes, roles and expiry of whatever a key or user makes, resets or ends."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Conflict, Forbidden, Unauthorized
from handbill.tenants.model import ROLE_SCOPES, KeyMade, NewKey, NewUser, Principal, Role, UserPatch, allows
from handbill.tenants.service import TenantService
from tests.kit.clocks import FakeClock
from tests.store.tenants_room import ACTOR, PASSWORD, service

ADDRESS = "192.0.2.1"
RESOURCES = ("keys", "users", "tenants", "banners", "audit", "erasures")
EVERY_SCOPE = [f"{name}:{verb}" for name in RESOURCES for verb in ("read", "write")]


class Installation:
    """A tenant with an owner and an unlimited key, and what it takes to act as somebody."""

    def __init__(self, tenants: TenantService, tenant_id: int, clock: FakeClock, unique: Callable[[str], str]) -> None:
        self.tenants = tenants
        self.tenant_id = tenant_id
        self.clock = clock
        self.unique = unique

    def hours(self, number: float) -> datetime:
        return self.clock.now() + timedelta(hours=number)

    async def key(self, *scopes: str, expires_at: datetime | None = None) -> tuple[Principal, KeyMade]:
        made = await self.tenants.create_key(self.tenant_id, new_key(*scopes, expires_at=expires_at), actor=ACTOR)
        return await self.principal(made), made

    async def principal(self, made: KeyMade) -> Principal:
        found = await self.tenants.directory.secret_key(made.key)
        assert found is not None
        return found

    def user(self, role: Role) -> NewUser:
        return NewUser(email=f"{self.unique('user')}@example.com", password=PASSWORD, role=role)

    async def session(self, new: NewUser) -> Principal:
        opened = await self.tenants.accounts.login(new.email, new.password, address=ADDRESS)
        found = await self.tenants.directory.session(opened.token)
        assert found is not None
        return found


def new_key(*scopes: str, expires_at: datetime | None = None) -> NewKey:
    return NewKey(kind="secret", name="k", scopes=list(scopes), expires_at=expires_at)


@pytest.fixture
async def here(
    database: Database, redis: Redis, tenant: int, unique: Callable[[str], str]
) -> AsyncIterator[Installation]:
    clock = FakeClock()
    tenants = service(database, redis, clock)
    yield Installation(tenants, tenant, clock, unique)
    await tenants.stop()


async def refused(attempt: Awaitable[Any], code: str) -> None:
    with pytest.raises(Forbidden) as found:
        await attempt
    assert found.value.code == code


async def test_rotation_keeps_the_expiry(here: Installation) -> None:
    ends = here.hours(1)
    key, made = await here.key("banners:read", "keys:write", expires_at=ends)
    successor = await here.tenants.rotate_key(here.tenant_id, made.info.key_id, actor=key)
    assert successor.info.expires_at == ends
    here.clock.advance(hours=1)
    for ended in (made, successor):
        assert await here.tenants.directory.secret_key(ended.key) is None


async def test_a_key_that_was_rotated_is_not_rotated_again(here: Installation) -> None:
    """Its end is now that of the overlap: a second successor would end with it, or last longer than its maker."""
    _, made = await here.key("banners:read")
    successor = await here.tenants.rotate_key(here.tenant_id, made.info.key_id, actor=ACTOR)
    with pytest.raises(Conflict) as again:
        await here.tenants.rotate_key(here.tenant_id, made.info.key_id, actor=ACTOR)
    assert again.value.code == "KEY_ROTATED"
    assert str(successor.info.key_id) in again.value.detail
    assert (await here.tenants.rotate_key(here.tenant_id, successor.info.key_id, actor=ACTOR)).info.expires_at is None


async def test_an_expiring_key_makes_nothing_that_outlives_it(here: Installation) -> None:
    tenants, tenant_id = here.tenants, here.tenant_id
    key, _ = await here.key("*", expires_at=here.hours(1))
    for late in (None, here.hours(1) + timedelta(milliseconds=1)):
        await refused(
            tenants.create_key(tenant_id, new_key("banners:read", expires_at=late), actor=key), "EXPIRES_TOO_LATE"
        )
    write = NewKey(kind="write", name="w")
    await refused(tenants.create_key(tenant_id, write, actor=key), "EXPIRES_TOO_LATE")
    made = await tenants.create_key(tenant_id, new_key("*", expires_at=here.hours(1)), actor=key)
    assert made.info.expires_at == here.hours(1)
    _, lasting = await here.key("banners:read")
    await refused(tenants.rotate_key(tenant_id, lasting.info.key_id, actor=key), "EXPIRES_TOO_LATE")
    viewer = here.user("viewer")
    await refused(tenants.accounts.create_user(tenant_id, viewer, actor=key), "EXPIRES_TOO_LATE")
    user = await tenants.accounts.create_user(tenant_id, viewer, actor=ACTOR)
    for patch in (UserPatch(password="another password"), UserPatch(role="operator")):
        await refused(tenants.accounts.change_user(tenant_id, user.user_id, patch, actor=key), "EXPIRES_TOO_LATE")
    assert await here.session(viewer) is not None


@pytest.mark.parametrize("scopes", [("users:write",), ("users:write", "*:read"), ("*:read", "*:write")])
async def test_a_key_for_users_neither_makes_nor_takes_over_an_owner(
    here: Installation, scopes: tuple[str, ...]
) -> None:
    tenants, tenant_id = here.tenants, here.tenant_id
    accounts = tenants.accounts
    owner, other = here.user("owner"), here.user("owner")
    owner_id = (await accounts.create_user(tenant_id, owner, actor=ACTOR)).user_id
    await accounts.create_user(tenant_id, other, actor=ACTOR)
    viewer_id = (await accounts.create_user(tenant_id, here.user("viewer"), actor=ACTOR)).user_id
    key, _ = await here.key(*scopes)
    await refused(accounts.create_user(tenant_id, here.user("owner"), actor=key), "SCOPE_MISSING")
    await refused(accounts.set_password(tenant_id, owner_id, "taken over by me", actor=key), "SCOPE_MISSING")
    await refused(accounts.change_user(tenant_id, owner_id, UserPatch(role="viewer"), actor=key), "SCOPE_MISSING")
    await refused(accounts.change_user(tenant_id, viewer_id, UserPatch(role="owner"), actor=key), "SCOPE_MISSING")
    await refused(accounts.delete_user(tenant_id, owner_id, actor=key), "SCOPE_MISSING")
    assert await here.session(owner) is not None
    renamed = await accounts.change_user(tenant_id, owner_id, UserPatch(name="Ada"), actor=key)
    assert renamed.name == "Ada"


async def test_a_weaker_key_neither_revokes_nor_rotates_a_stronger_one(here: Installation) -> None:
    _, strong = await here.key("*")
    weak, own = await here.key("banners:read", "keys:write")
    _, peer = await here.key("banners:read")
    for verb in (here.tenants.revoke_key, here.tenants.rotate_key):
        await refused(verb(here.tenant_id, strong.info.key_id, actor=weak), "SCOPE_MISSING")
    assert await here.tenants.directory.secret_key(strong.key)
    assert (await here.tenants.revoke_key(here.tenant_id, peer.info.key_id, actor=weak)).revoked_at
    assert (await here.tenants.revoke_key(here.tenant_id, own.info.key_id, actor=weak)).revoked_at


async def test_what_was_revoked_a_moment_ago_grants_nothing(here: Installation) -> None:
    """A process may have a key or session in its cache for some seconds: PostgreSQL is asked before a grant."""
    tenants, tenant_id = here.tenants, here.tenant_id
    owner = here.user("owner")
    user = await tenants.accounts.create_user(tenant_id, owner, actor=ACTOR)
    await tenants.accounts.create_user(tenant_id, here.user("owner"), actor=ACTOR)
    key, made = await here.key("*")
    session = await here.session(owner)
    other = await here.session(owner)
    await tenants.revoke_key(tenant_id, made.info.key_id, actor=ACTOR)
    await tenants.accounts.logout(session)
    for actor in (key, session, msgspec.structs.replace(key, tenant_id=tenant_id + 1)):
        with pytest.raises(Unauthorized):
            await tenants.create_key(tenant_id, new_key("*"), actor=actor)
        with pytest.raises(Unauthorized):
            await tenants.accounts.create_user(tenant_id, here.user("owner"), actor=actor)
    await tenants.accounts.change_user(tenant_id, user.user_id, UserPatch(role="viewer"), actor=ACTOR)
    with pytest.raises(Unauthorized):
        await tenants.create_key(tenant_id, new_key("*"), actor=other)


@pytest.mark.parametrize("seed", range(10))
async def test_all_that_comes_from_a_key_holds_no_more_than_the_key(here: Installation, seed: int) -> None:
    """Any sequence of grants, by the key or by anything made from it, stays inside the key's scopes and expiry."""
    draw = random.Random(seed)
    tenants, tenant_id = here.tenants, here.tenant_id
    owner = here.user("owner")
    owner_id = (await tenants.accounts.create_user(tenant_id, owner, actor=ACTOR)).user_id
    _, strong = await here.key("*")
    held = [*draw.sample([*EVERY_SCOPE, "*:read", "*:write"], draw.randint(1, 6)), "keys:write", "users:write"]
    expiry = draw.choice([None, here.hours(draw.randint(1, 48))])
    root, root_made = await here.key(*held, expires_at=expiry)
    bound = {scope for scope in EVERY_SCOPE if root.allows(scope)}
    actors, made_keys, users = [root], [root_made, strong], [(owner_id, owner)]
    created = 0

    async def step() -> None:
        nonlocal created
        actor = draw.choice(actors)
        match draw.randrange(6):
            case 0:
                scopes = draw.sample([*EVERY_SCOPE, "*", "*:read", "*:write"], draw.randint(0, 3))
                ends = draw.choice([None, here.hours(draw.randint(1, 60))])
                made = await tenants.create_key(tenant_id, new_key(*scopes, expires_at=ends), actor=actor)
            case 1:
                chosen = draw.choice(made_keys).info.key_id
                made = await tenants.rotate_key(tenant_id, chosen, actor=actor, overlap_s=draw.randint(60, 600_000))
            case 2:
                chosen = draw.choice(made_keys).info.key_id
                if chosen != root_made.info.key_id:
                    await tenants.revoke_key(tenant_id, chosen, actor=actor)
                return
            case 3:
                new = here.user(draw.choice(["owner", "operator", "viewer"]))
                users.append(((await tenants.accounts.create_user(tenant_id, new, actor=actor)).user_id, new))
                actors.append(await here.session(new))
                created += 1
                return
            case 4:
                role: Role = draw.choice(["owner", "operator", "viewer"])
                await tenants.accounts.change_user(tenant_id, draw.choice(users)[0], UserPatch(role=role), actor=actor)
                return
            case _:
                user_id, new = draw.choice(users)
                await tenants.accounts.set_password(tenant_id, user_id, PASSWORD + "2", actor=actor)
                actors.append(await here.session(msgspec.structs.replace(new, password=PASSWORD + "2")))
                return
        made_keys.append(made)
        actors.append(await here.principal(made))
        created += 1

    for _ in range(40):
        try:
            await step()
        except (Conflict, Forbidden, Unauthorized):
            continue
    if expiry is None:
        assert created, "the sequence made nothing: it proves nothing"
    for key in await tenants.list_keys(tenant_id):
        if key.key_id == strong.info.key_id:
            assert key.revoked_at is None
            assert key.expires_at is None
            continue
        scopes = frozenset(key.scopes)
        assert {scope for scope in EVERY_SCOPE if allows(scopes, None, scope)} <= bound
        assert expiry is None or (key.expires_at is not None and key.expires_at <= expiry)
    for user in await tenants.accounts.list_users(tenant_id):
        if user.user_id == owner_id:
            assert user.role == "owner"
            continue
        assert expiry is None
        assert {scope for scope in EVERY_SCOPE if allows(ROLE_SCOPES[user.role], user.role, scope)} <= bound
    assert await here.session(owner) is not None
