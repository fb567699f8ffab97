"""The sample gateway file: whatever happens behind it, whoever asks for banners gets a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from handbill.client import AsyncClient
from tests.kit.optional import need
from tests.kit.processes import ROOT, free_port, program
from tests.kit.waiting import eventually


class Behind:
    """An API that answers as it is told."""

    def __init__(self) -> None:
        self.status = 200
        self.port = free_port()

        self.scripts: list[str] = []
        """What compression each request for the script asked for."""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/handbill.js":
            encoding = request.headers.get("Accept-Encoding", "")
            self.scripts.append(encoding)
            headers = {"Vary": "Accept-Encoding", "Cache-Control": "public, max-age=300"}
            return web.Response(text=encoding, headers=headers)
        return web.json_response({"path": request.path, "banners": ["x"]}, status=self.status)


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    made = Behind()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", made.port).start()
    yield made
    await runner.cleanup()


@pytest.fixture
async def gateway(behind: Behind, short_tmp: Path) -> AsyncIterator[str]:
    nginx, port = need("nginx"), free_port()
    text = (ROOT / "deploy/gateway/nginx.conf").read_text(encoding="utf-8")
    assert "127.0.0.1:8080" in text
    assert "listen 8000;" in text
    conf = short_tmp / "nginx.conf"
    conf.write_text(
        text.replace("127.0.0.1:8080", f"127.0.0.1:{behind.port}").replace("listen 8000;", f"listen 127.0.0.1:{port};")
    )
    options = f"daemon off; master_process off; pid {short_tmp}/pid;"
    async with program(nginx, "-p", str(short_tmp), "-e", "stderr", "-c", str(conf), "-g", options) as running:
        url = f"http://127.0.0.1:{port}"

        async def up() -> bool:
            assert running.child.returncode is None, running.tail()
            try:
                async with aiohttp.ClientSession() as http, http.get(f"{url}/ping") as reply:
                    return reply.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(up, what="nginx answers")
        yield url


async def test_an_api_that_fails_is_an_empty_list(gateway: str, behind: Behind) -> None:
    async with aiohttp.ClientSession() as http, AsyncClient(gateway, write_key="hbw_x", timeout_s=30) as client:

        async def gets(method: str, path: str, status: int, body: object = ...) -> None:
            """Until this is the answer: on a slow machine the gateway may lose patience with our own server."""

            async def same() -> bool:
                async with http.request(method, gateway + path) as reply:
                    found = await reply.json(content_type=None)
                assert reply.status == status, found
                return body is ... or found == body

            await eventually(same, what=f"{method} {path} is {status}")

        await gets("GET", "/banners", 200, {"path": "/banners", "banners": ["x"]})
        for status in (500, 502, 503, 504):
            behind.status = status
            await gets("GET", "/banners", 200, {"banners": [], "user_id": None})
            await gets("POST", "/v1/decide", 200, {"user_id": None, "decided_at": None, "decisions": []})
            assert await client.decide(user_id="ada") == []
            await gets("POST", "/views", status)  # a report that was not taken must be told so
        behind.status = 404
        await gets("GET", "/banners", 404)
        async with http.get(f"{gateway}/admin/banners") as reply:
            assert reply.status == 404


async def test_the_script_is_kept_for_each_way_of_asking_for_compression(gateway: str, behind: Behind) -> None:
    async def get(encoding: str) -> tuple[str, str]:
        headers = {"Accept-Encoding": encoding}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as http,
            http.get(f"{gateway}/handbill.js", headers=headers) as reply,
        ):
            assert reply.status == 200
            return reply.headers["X-Cache"], await reply.text()

    asked = ("gzip, deflate, br", "br;q=1, gzip;q=0.8", "", "gzip;q=0")
    assert {encoding: (await get(encoding))[1] for encoding in asked} == {encoding: encoding for encoding in asked}
    assert {(await get(encoding))[0] for encoding in asked} == {"HIT"}
    assert len(behind.scripts) == len(asked)
