"""Two API processes on one port, as `api.processes = 2` starts them; and what browsers on other sites see of them."""

from __future__ import annotations

import aiohttp

from tests.kit.processes import process
from tests.kit.waiting import eventually

TRACK = "/api/banners/events/impression"
ORIGIN = {"Origin": "https://shop.example"}


async def test_two_processes_share_the_port(handbill_env: dict[str, str]) -> None:
    env = {**handbill_env, "HANDBILL_API__PROCESSES": "2"}
    base = f"http://127.0.0.1:{env['HANDBILL_API__PORT']}"
    async with process("api", env=env) as one, process("api", env=env) as other:
        await one.log(event="api-ready")
        await other.log(event="api-ready")
        marks: set[str] = set()

        async def both() -> bool:
            """A new connection each time: the kernel deals them out. The first half of an id is the process's mark."""
            marks.add((await _ask("GET", f"{base}/health"))[1]["x-request-id"].partition("-")[0])
            return len(marks) == 2

        await eventually(both, what="both processes have answered")
        await _browsers(base)
        await _ready(base)
        assert await one.stop() == 0
        for _ in range(20):  # whoever is left has the port to itself
            status, headers = await _ask("GET", f"{base}/health")
            assert (status, headers["x-request-id"].partition("-")[0] in marks) == (200, True)


async def _browsers(base: str) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    status, headers = await _ask("OPTIONS", base + TRACK, headers={**ORIGIN, **asked})
    assert status == 204
    assert headers["access-control-allow-origin"] == "*"
    assert "POST" in headers["access-control-allow-methods"]
    assert "content-type" in headers["access-control-allow-headers"]
    status, headers = await _ask("POST", base + TRACK, headers={**ORIGIN, "Content-Type": "text/plain"}, data=b"{}")
    assert (status, headers["access-control-allow-origin"]) == (400, "*")  # errors are readable from there, too
    status, headers = await _ask("GET", base + "/admin/tenant", headers=ORIGIN)
    assert (status, "access-control-allow-origin" in headers) == (401, False)  # an operator's page is no one else's
    status, headers = await _ask("GET", base + TRACK)
    assert (status, headers["allow"]) == (405, "OPTIONS, POST")


async def _ready(base: str) -> None:
    async with aiohttp.ClientSession() as client, client.get(f"{base}/ready") as reply:
        assert reply.status == 200
        parts = (await reply.json())["parts"]
    assert parts["journal"]["ok"]
    assert not parts["journal"]["vital"]


async def _ask(method: str, url: str, **options: object) -> tuple[int, dict[str, str]]:
    async with aiohttp.ClientSession() as client, client.request(method, url, **options) as reply:  # type: ignore[arg-type]
        await reply.read()
        return reply.status, {name.lower(): value for name, value in reply.headers.items()}
