"""`/health` over HTTP: 503 while a required background task of the API process hangs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest

from handbill.api.server import serve
from handbill.kit import task_health
from handbill.kit.task_health import TaskHealth
from handbill.settings import load
from handbill.wiring.house import House
from tests.kit.clocks import FakeClock
from tests.kit.processes import free_port
from tests.kit.waiting import soon


@pytest.fixture
async def api(handbill_env: dict[str, str]) -> AsyncIterator[tuple[str, str]]:
    """The public address of an API in this process, and the one for its operators."""
    interval, metrics_port = sys.getswitchinterval(), free_port()
    settings = load({**handbill_env, "HANDBILL_API__METRICS_PORT": str(metrics_port)})
    ready = asyncio.Event()
    serving = asyncio.create_task(serve(House(settings), settings, ready=ready.set))
    starting = asyncio.create_task(ready.wait())
    await soon(asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED))
    assert not serving.done(), serving.exception()
    yield f"http://127.0.0.1:{settings.api.port}", f"http://127.0.0.1:{metrics_port}"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    sys.setswitchinterval(interval)


async def test_health_is_503_while_a_required_task_hangs(api: tuple[str, str]) -> None:
    public, operators = api
    clock = FakeClock()
    hanging = TaskHealth("hanging", clock=clock)
    optional = TaskHealth("optional", clock=clock, required=False)
    async with aiohttp.ClientSession() as client:

        async def ask(address: str) -> tuple[int, str]:
            async with client.get(f"{address}/health") as reply:
                return reply.status, await reply.text()

        assert await ask(public) == (200, '{"status":"ok"}')
        for health in (hanging, optional):
            task_health.register(health)
        try:
            assert (await ask(public))[0] == 200
            clock.advance(seconds=41)
            assert await ask(public) == (503, '{"status":"stuck"}'), "its name is nobody's business"
            status, body = await ask(operators)
            assert status == 503
            assert "hanging" in body
            async with client.get(f"{public}/ready") as reply:
                assert reply.status == 503
                assert (await reply.json())["parts"]["tasks"]["ok"] is False
            hanging.heartbeat()
            assert (await ask(public))[0] == 200, "the optional one hangs still"
        finally:
            for health in (hanging, optional):
                task_health.unregister(health)
