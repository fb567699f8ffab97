"""An OTLP endpoint is set: the spans of real requests arrive there, and what they hold is nobody's secret."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from tests.kit.processes import free_port, process


async def test_requests_leave_spans_at_the_collector(handbill_env: dict[str, str]) -> None:
    came: list[tuple[str, bytes]] = []

    async def collect(request: web.Request) -> web.Response:
        came.append((request.path, await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/{tail:.*}", collect)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        env = handbill_env | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        async with process("api", env=env) as api, aiohttp.ClientSession() as client:
            await api.log(event="api-ready")
            base = f"http://127.0.0.1:{env['HANDBILL_API__PORT']}"
            async with client.get(f"{base}/admin/tenant?key=hunter2", headers={"Authorization": "Bearer hunter2"}) as r:
                assert r.status == 401
            async with client.post(f"{base}/api/banners/events/click", data=b"hunter2") as r:  # a hot route
                assert r.status == 415
            assert await api.stop() == 0  # an orderly stop sends what is left
    finally:
        await runner.cleanup()
    assert {path for path, _ in came} == {"/v1/traces"}
    sent = b"".join(body for _, body in came)
    assert b"GET /admin/tenant" in sent
    assert b"POST /api/banners/events/click" in sent
    assert b"hunter2" not in sent
