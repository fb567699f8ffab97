"""The demo tenant: made where it is wanted, its secret printed once, all of it switched off by one setting."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest

from handbill.ops import demo
from handbill.settings import load
from handbill.tenants.model import NewTenant
from handbill.wiring.house import build
from tests.e2e._up import ready, settings_of
from tests.kit.processes import free_port, handbill, process
from tests.kit.stack import stack


def without_clickhouse(home: Path) -> dict[str, str]:
    """Settings of `up` with PostgreSQL and Redis embedded; ClickHouse is away, which saves seconds."""
    return {**settings_of(home), "HANDBILL_CLICKHOUSE__URL": f"http://127.0.0.1:{free_port()}"}


async def printed(env: dict[str, str]) -> str:
    """What a person reads of a start."""
    async with process("up", env=env) as up:
        await up.says("Ctrl-C stops everything", timeout=150)
        assert await up.stop() == 0, up.tail()
        return up.output


@pytest.mark.timeout(300)
async def test_the_secret_is_printed_once_and_one_setting_turns_everything_off(short_tmp: Path) -> None:
    home = short_tmp / "home"
    env, file = without_clickhouse(home), home / "secrets" / "demo.json"
    first = await printed(env)
    keys = json.loads(file.read_text())
    assert keys["secret_key"] in first
    assert keys["write_key"] in first
    later = await printed(env)
    assert keys["secret_key"] not in later
    assert str(file) in later
    assert keys["write_key"] in later, "pages use the write key: it is no secret"

    async with process("up", "--json", "--json-logs", env=env) as up:
        assert (await ready(up))["demo"] == keys, "programs read the keys at every start"
        assert await up.stop() == 0, up.tail()

    file.write_text("not to be read")
    off = await printed({**env, "HANDBILL_DEMO": "off"})
    assert "demo" not in off.lower()
    assert file.read_text() == "not to be read"
    api = f"http://127.0.0.1:{env['HANDBILL_API__PORT']}"
    async with process("up", "--json", "--json-logs", env={**env, "HANDBILL_DEMO": "off"}) as up:
        facts = await ready(up)
        assert (facts["demo"], facts["demo_page"]) == (None, None)
        async with aiohttp.ClientSession() as http:
            for path in ("/demo", "/demo/demo.css", "/demo/lanterns.svg"):
                async with http.get(api + path) as reply:
                    assert (reply.status, (await reply.json())["code"]) == (404, "NOT_FOUND"), path
            async with http.get(f"{api}/handbill.js") as reply:
                assert reply.status == 200
        assert await up.stop() == 0, up.tail()


@pytest.mark.timeout(300)
async def test_an_empty_installation_stays_empty_with_the_demo_off(short_tmp: Path) -> None:
    env = {**without_clickhouse(short_tmp / "home"), "HANDBILL_DEMO": "off"}
    async with process("up", "--json", "--json-logs", env=env) as up:
        assert (await ready(up))["demo"] is None
        code, listed = await handbill("tenant", "ls", "--json", env={"HANDBILL_HOME": env["HANDBILL_HOME"]})
        assert (code, json.loads(listed)) == (0, [])
        assert await up.stop() == 0, up.tail()
    assert not (short_tmp / "home" / "secrets" / "demo.json").exists()


async def test_an_external_database_gets_a_demo_tenant_only_when_asked(short_tmp: Path) -> None:
    async with stack() as built:
        home = built.home / "house"
        env = built.env(HANDBILL_TENANTS__SEAL_KEY="a seal key for tests")
        (home / "secrets").mkdir(parents=True)
        auto, on, off = (load({**env, "HANDBILL_DEMO": each}) for each in ("auto", "on", "off"))
        house = build(auto)
        await house.start("tool")
        try:
            assert await demo.ensure(auto, home, embedded=False) is None
            assert await demo.ensure(off, home, embedded=True) is None
            assert await house.tenants.list_tenants() == []

            await house.tenants.create_tenant(NewTenant(name="Shop", slug="shop"), actor="test")
            assert await demo.ensure(auto, home, embedded=True) is None, "only on an installation without tenants"

            made = await demo.ensure(on, home, embedded=False)
            assert made is not None
            assert made.is_new
            assert (home / "secrets" / "demo.json").stat().st_mode & 0o077 == 0
            again = await demo.ensure(on, home, embedded=False)
            assert again == demo.DemoTenant(made.demo, is_new=False)
            number = (await house.tenants.find_tenant("demo")).tenant_id
            keys = len(await house.tenants.list_keys(number))

            (home / "secrets" / "demo.json").unlink()
            for settings in (auto, on):
                assert await demo.ensure(settings, home, embedded=True) is None, (
                    "a tenant of that name may be anybody's"
                )
            assert len(await house.tenants.list_keys(number)) == keys

            (home / "secrets" / "demo.begun").touch()  # as a start leaves it that was killed before the keys were made
            finished = await demo.ensure(on, home, embedded=False)
            assert finished is not None
            assert finished.is_new
            assert not (home / "secrets" / "demo.begun").exists()
        finally:
            await house.stop()
