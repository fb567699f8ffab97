"""An OTLP endpoint is set: the spans of real requests arrive there, and what they hold is nobody's secret."""

from __future__ import annotations

import aiohttp
from aiohttp import web

from tests.kit.processes import free_port, process

TRACES = ("0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736")


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
            headers = {"Authorization": "Bearer hunter2", "traceparent": f"00-{TRACES[0]}-b7ad6b7169203331-01"}
            async with client.get(f"{base}/admin/tenant?key=hunter2", headers=headers) as r:
                assert r.status == 401
            assert (await api.log(event="request", route="/admin/tenant"))["trace_id"] == TRACES[0]
            headers = {"traceparent": f"00-{TRACES[1]}-b7ad6b7169203331-01"}
            async with client.post(f"{base}/api/banners/events/click", data=b"hunter2", headers=headers) as r:
                assert r.status == 415  # a hot route
            assert await api.stop() == 0  # an orderly stop sends what is left
    finally:
        await runner.cleanup()
    assert {path for path, _ in came} == {"/v1/traces"}
    sent = b"".join(body for _, body in came)
    assert b"GET /admin/tenant" in sent
    assert b"POST /api/banners/events/click" in sent
    assert all(bytes.fromhex(trace) in sent for trace in TRACES), "the spans continue the callers' traces"
    assert b"hunter2" not in sent
