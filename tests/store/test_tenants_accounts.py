"""Users and sessions: logging in and out, guessing, the last owner, expiry."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import (
    Conflict,
    NotFound,
    Throttled,
    Unauthorized,
)
from handbill.tenants import accounts as accounts_module
from handbill.tenants.logins import FAILURES_PER_ADDRESS, FAILURES_PER_PAIR, WINDOW_S
from handbill.tenants.model import (
    NewUser,
    UserPatch,
)
from handbill.tenants.passwords import Passwords
from handbill.tenants.service import TenantService
from tests.kit.clocks import FakeClock
from tests.store.tenants_room import ACTOR, PASSWORD, service

ADDRESS = "192.0.2.7"


@pytest.fixture
async def tenants(database: Database, redis: Redis) -> AsyncIterator[TenantService]:
    found = service(database, redis)
    await found.start()
    yield found
    await found.stop()


# --- users and sessions


async def test_login_logout_and_a_changed_password(
    tenants: TenantService, tenant: int, unique: Callable[[str], str]
) -> None:
    email = f"{unique('Ada')}@Example.com"
    user = await tenants.accounts.create_user(
        tenant, NewUser(email=email, password=PASSWORD, role="owner"), actor=ACTOR
    )
    assert user.email == email.lower()
    session = await tenants.accounts.login(email, PASSWORD, address=ADDRESS)
    found = await tenants.directory.session(session.token)
    assert found is not None
    assert (found.tenant_id, found.role, found.user_id) == (tenant, "owner", user.user_id)
    await tenants.accounts.logout(found)
    assert await tenants.directory.session(session.token) is None
    session = await tenants.accounts.login(email.upper(), PASSWORD, address=ADDRESS)
    await tenants.accounts.set_password(tenant, user.user_id, "another long password", actor=ACTOR)
    assert await tenants.directory.session(session.token) is None
    with pytest.raises(Unauthorized):
        await tenants.accounts.login(email, PASSWORD, address=ADDRESS)
    assert await tenants.accounts.login(email, "another long password", address=ADDRESS) is not None
    with pytest.raises(Unauthorized):
        await tenants.accounts.login(f"{unique('nobody')}@example.com", PASSWORD, address=ADDRESS)
    log = repr((await tenants.audit_page(tenant, None, 200)).items)
    assert PASSWORD not in log
    assert "argon2" not in log


async def test_failed_logins_are_limited_per_client_and_never_per_account(
    tenants: TenantService, tenant: int, unique: Callable[[str], str]
) -> None:
    email, other = (f"{unique('eve')}@example.com" for _ in range(2))
    for one in (email, other):
        await tenants.accounts.create_user(tenant, NewUser(email=one, password=PASSWORD), actor=ACTOR)
    login = tenants.accounts.login
    for _ in range(FAILURES_PER_PAIR):
        with pytest.raises(Unauthorized):
            await login(email, "wrong", address="2001:db8::1")
    with pytest.raises(Throttled) as refused:
        await login(email, PASSWORD, address="2001:db8::2")  # the same network of one client
    assert refused.value.retry_after
    assert 0 < refused.value.retry_after <= WINDOW_S
    assert await login(email, PASSWORD, address="2001:db8:0:1::1") is not None, "another client is not kept out"
    assert await login(other, PASSWORD, address="2001:db8::1") is not None, "nor is another user of the same client"
    for number in range(9 * FAILURES_PER_PAIR - 1):  # the refused try counted as well
        with pytest.raises(Unauthorized):
            await login(email, "wrong", address=f"2001:db8:0:{number + 16:x}::1")
    with pytest.raises(Throttled):  # a /48 is one client, too, with ten times as many tries
        await login(email, "wrong", address="2001:db8:0:ffff::1")
    assert await login(email, PASSWORD, address="2001:db8:1::1") is not None


async def test_a_client_that_tries_many_addresses_is_limited(
    tenants: TenantService, tenant: int, unique: Callable[[str], str]
) -> None:
    email, client = f"{unique('ada')}@example.com", f"198.51.100.{unique('n')}"
    await tenants.accounts.create_user(tenant, NewUser(email=email, password=PASSWORD), actor=ACTOR)
    for number in range(FAILURES_PER_ADDRESS):
        with pytest.raises(Unauthorized):
            await tenants.accounts.login(f"{number}@{email}", "wrong", address=client)
        if number % 10 == 0:
            await tenants.accounts.login(email, PASSWORD, address=client)  # a good login neither counts nor forgives
    with pytest.raises(Throttled):
        await tenants.accounts.login(email, PASSWORD, address=client)
    assert await tenants.accounts.login(email, PASSWORD, address=ADDRESS) is not None


async def test_nobody_keeps_a_browser_out_that_logged_in_before(
    tenants: TenantService, tenant: int, unique: Callable[[str], str]
) -> None:
    """Also not from its own network, nor where a proxy hides every client's address."""
    email, client = f"{unique('ada')}@example.com", unique("proxy")
    accounts = tenants.accounts
    await accounts.create_user(tenant, NewUser(email=email, password=PASSWORD), actor=ACTOR)
    browser = accounts.browser_token(email.upper())
    for _ in range(FAILURES_PER_PAIR):
        with pytest.raises(Unauthorized):
            await accounts.login(email, "wrong", address=client)
    foreign = accounts.browser_token("mallory@example.com")
    for sent in (None, foreign, browser[:-1], browser.swapcase(), "", "é" * len(browser), "=" * len(browser)):
        with pytest.raises(Throttled):
            await accounts.login(email, PASSWORD, address=client, browser=sent)
    assert await accounts.login(email, PASSWORD, address=client, browser=browser) is not None
    for _ in range(FAILURES_PER_PAIR):
        with pytest.raises(Unauthorized):
            await accounts.login(email, "wrong", address=client, browser=browser)
    with pytest.raises(Throttled):  # a stolen token helps nobody to guess
        await accounts.login(email, PASSWORD, address=client, browser=browser)
    again = accounts.browser_token(email)
    assert await accounts.login(email, PASSWORD, address=client, browser=again) is not None


async def test_one_address_in_several_tenants_is_found_by_its_password(
    tenants: TenantService, make_tenant: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    """To refuse an address that another tenant has would tell of that tenant's users."""
    numbers = [await make_tenant() for _ in range(3)]
    email = f"{unique('ada')}@example.com"
    passwords = [PASSWORD, PASSWORD + "2", PASSWORD + "2"]
    for number, password in zip(numbers, passwords, strict=True):
        await tenants.accounts.create_user(number, NewUser(email=email, password=password), actor=ACTOR)
    with pytest.raises(Conflict) as taken:
        await tenants.accounts.create_user(numbers[0], NewUser(email=email.upper(), password=PASSWORD), actor=ACTOR)
    assert taken.value.code == "EMAIL_TAKEN"
    slugs = [(await tenants.get_tenant(number))[0].slug for number in numbers]
    assert (await tenants.accounts.login(email, PASSWORD, address=ADDRESS)).tenant_id == numbers[0]
    with pytest.raises(Conflict) as several:
        await tenants.accounts.login(email, passwords[1], address=ADDRESS)
    assert several.value.code == "TENANT_NEEDED"
    assert slugs[0] not in several.value.detail, "only those that the password opens are named"
    for number, slug in zip(numbers[1:], slugs[1:], strict=True):
        opened = await tenants.accounts.login(email, passwords[1], address=ADDRESS, tenant_slug=slug)
        assert opened.tenant_id == number
    with pytest.raises(Unauthorized):
        await tenants.accounts.login(email, passwords[1], address=ADDRESS, tenant_slug=slugs[0])


async def test_the_time_of_an_answer_does_not_tell_how_many_accounts_an_address_has(
    database: Database,
    redis: Redis,
    make_tenant: Callable[..., Any],
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    tenants = service(database, redis, clock, login_step_s=0.5)
    single, several = (f"{unique('ada')}@example.com" for _ in range(2))
    for number in [await make_tenant() for _ in range(3)]:
        await tenants.accounts.create_user(number, NewUser(email=several, password=f"{PASSWORD} {number}"), actor=ACTOR)
    await tenants.accounts.create_user(await make_tenant(), NewUser(email=single, password=PASSWORD), actor=ACTOR)
    matches = Passwords.matches

    async def slow(self: Passwords, known: str | None, password: str, **options: bool) -> bool:
        clock.advance(ms=90)
        return await matches(self, known, password, **options)

    async def wait(seconds: float) -> None:
        clock.advance(seconds=seconds)

    monkeypatch.setattr(Passwords, "matches", slow)
    monkeypatch.setattr(accounts_module, "sleep", wait)
    taken = set()
    for email, password in ((single, PASSWORD), (single, "wrong"), (several, "wrong"), ("nobody@example.com", "wrong")):
        started = clock.monotonic()
        with contextlib.suppress(Unauthorized):
            await tenants.accounts.login(email, password, address=unique("client"))
        taken.add(round(clock.monotonic() - started, 3))
    assert taken == {0.5}
    await tenants.stop()


async def test_an_owner_always_stays(
    tenants: TenantService, make_tenant: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    one, other = await make_tenant(), await make_tenant()
    email = f"{unique('ada')}@example.com"
    first = await tenants.accounts.create_user(one, NewUser(email=email, password=PASSWORD, role="owner"), actor=ACTOR)
    assert [(found.tenant_id, found.user_id) for found in await tenants.accounts.find(email)] == [(one, first.user_id)]
    for attempt in (
        tenants.accounts.change_user(one, first.user_id, UserPatch(role="viewer"), actor=ACTOR),
        tenants.accounts.delete_user(one, first.user_id, actor=ACTOR),
    ):
        with pytest.raises(Conflict) as refused:
            await attempt
        assert refused.value.code == "LAST_OWNER"
    second = await tenants.accounts.create_user(
        one, NewUser(email=f"{unique('bob')}@example.com", password=PASSWORD, role="owner"), actor=ACTOR
    )
    outcomes = await asyncio.gather(
        tenants.accounts.change_user(one, first.user_id, UserPatch(role="viewer"), actor=ACTOR),
        tenants.accounts.change_user(one, second.user_id, UserPatch(role="viewer"), actor=ACTOR),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1, "two owners demote each other: one stays"
    with pytest.raises(NotFound):
        await tenants.accounts.get_user(other, first.user_id)


async def test_a_session_ends_by_itself(
    database: Database, redis: Redis, tenant: int, unique: Callable[[str], str]
) -> None:
    clock = FakeClock()
    tenants = service(database, redis, clock)
    email = f"{unique('ada')}@example.com"
    await tenants.accounts.create_user(tenant, NewUser(email=email, password=PASSWORD), actor=ACTOR)
    session = await tenants.accounts.login(email, PASSWORD, address=ADDRESS)
    clock.advance(hours=12, ms=-1)
    assert await tenants.directory.session(session.token)
    clock.advance(ms=1)
    assert await tenants.directory.session(session.token) is None
    clock.advance(ms=1)
    assert (await tenants.sweep())["sessions"] >= 1
    await tenants.stop()
