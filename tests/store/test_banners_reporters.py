"""How many reports may come from one address, and with one secret key."""

from __future__ import annotations

from typing import Any

import pytest

from handbill.banners.reporters import Reporters
from handbill.banners.throttle import Throttle, ThrottlePolicy
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import NotFound, Throttled
from handbill.kit.fast import FastRequest
from handbill.tenants.model import NewKey
from tests.kit.clocks import FakeClock
from tests.kit.loop import loop

OF_ADDRESS = ThrottlePolicy(limit=4, burst=2)
OF_KEY = ThrottlePolicy(limit=6, burst=3, code="KEY_THROTTLED", who="with this key")


async def test_addresses_and_secret_keys_have_a_limit_of_each_kind_of_report(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as made:
        throttles = [Throttle(redis, made.keys, clock, policy) for policy in (OF_ADDRESS, OF_KEY)]
        reporters = Reporters(made.tenants.directory, throttles[0], throttles[1], clock)

        async def secret(name: str) -> str:
            return (
                await made.tenants.create_key(tenant, NewKey(kind="secret", name=name, scopes=["*"]), actor="test")
            ).key

        async def passed(what: str, address: str, key: str | None = None) -> tuple[int, str]:
            """How many of ten pass, and why the next one does not."""
            headers = {b"authorization": f"Bearer {key}".encode()} if key is not None else {}
            for count in range(10):
                try:
                    await reporters.admit(FastRequest("POST", "/", b"", headers, b"", address, "r"), what)
                except Throttled as error:
                    return count, error.code
            return 10, ""

        assert await passed("click", "1.1.1.1") == (2, "IP_THROTTLED")
        assert await passed("impression", "1.1.1.1") == (2, "IP_THROTTLED"), "each kind of report has its own"
        assert await passed("click", "2.2.2.2") == (2, "IP_THROTTLED")
        one, other = await secret("one"), await secret("other")
        assert await passed("click", "1.1.1.1", one) == (3, "KEY_THROTTLED"), "whatever its address has sent"
        assert await passed("click", "3.3.3.3", one) == (0, "KEY_THROTTLED"), "wherever it comes from"
        assert await passed("view", "3.3.3.3", one) == (3, "KEY_THROTTLED")
        assert await passed("click", "3.3.3.3", other) == (3, "KEY_THROTTLED")
        for bad in ("hbs_" + "x" * 32, one[:-1] + ("a" if one[-1] != "a" else "b"), "a.user.token"):
            assert await passed("click", "1.1.1.1", bad) == (0, "IP_THROTTLED"), "a key that is none lifts nothing"


async def test_a_secret_key_reports_for_the_banners_of_its_own_tenant_only(
    database: Database, redis: Redis, tenant: int, make_tenant: Any
) -> None:
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as made:
        throttle = Throttle(redis, made.keys, clock)
        reporters = Reporters(made.tenants.directory, throttle, throttle, clock)
        made_key = await made.tenants.create_key(tenant, NewKey(kind="secret", name="own", scopes=["*"]), actor="test")
        other = await make_tenant()
        headers = {b"authorization": f"Bearer {made_key.key}".encode()}
        request = FastRequest("POST", "/", b"", headers, b"", "1.1.1.1", "r")
        for user in (None, "ada"):
            await reporters.check_user(request, tenant, user, None)
            with pytest.raises(NotFound) as refused:
                await reporters.check_user(request, other, user, None)
            assert refused.value.code == "BANNER_NOT_FOUND"
