"""A real Chromium, a shop's page on one address, the real API on another, and a look into what was counted.

The page and the API have different ports, so every call goes across origins, as it will in a shop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from importlib.resources import files
from typing import Any

import aiohttp
import asyncpg
import jwt
import pytest
from aiohttp import web
from playwright.async_api import Browser, Page, async_playwright

from handbill.api.served_files import static_script
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import JwtRules, NewKey, SettingsPatch, TenantPatch
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.optional import need
from tests.kit.processes import process
from tests.kit.recording_api import RecordingApi, recording_api
from tests.kit.waiting import eventually

SEAL = "a seal key for tests"
SECRET = "the shop's own secret, thirty-two bytes long"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# A headless browser says so in its name, and the server would mark it as a bot.
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0 Safari/537.36"
PATIENCE_MS = 60_000

PAGE = """<!doctype html><title>A shop</title><link rel="icon" href="data:,">
<p>Tea.</p><div id="slot" data-handbill="home"></div><div id="below"></div><script src="/handbill.js"></script>
<script>
  const told = [];
  for (const name of ["decided", "shown", "viewable", "closed", "report", "sent", "empty"])
    document.addEventListener("handbill:" + name, (e) => told.push({name, at: performance.now(), ...e.detail}));
  const drawn = [];  // looked at in the very moment: a test may come too late for a banner of one second
  document.addEventListener("handbill:shown", ({ target }) => {
    const card = target.firstElementChild.shadowRoot.querySelector(".card");
    drawn.push({ text: card.innerText, href: card.querySelector("a").href });
  });
  const open = (options) => { window.hb = new Handbill(options); return hb; };
</script>"""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    path = need("chromium")
    async with async_playwright() as p:
        found = await p.chromium.launch(executable_path=path, args=ARGUMENTS, timeout=PATIENCE_MS)
        yield found
        await found.close()


MakePage = Callable[..., Awaitable[Page]]


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """The shop's own server: a page with a slot, and the script as the API serves it."""
    script = static_script(files("handbill.client").joinpath("handbill.js").read_bytes()).body

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def plain(request: web.Request) -> web.Response:
        """A page with nothing but the two lines that the documentation asks for."""
        query = request.query
        more = f'data-url="{query["url"]}" data-pageviews' if "url" in query else ""
        tag = f'<script src="{query["src"]}" data-write-key="{query["key"]}" data-user="bea" {more} defer>'
        names = query.get("slots", "home").split(",")
        slots = "".join(f'<div id="slot" data-handbill="{name}"></div>' for name in names)
        body = f'<!doctype html><link rel="icon" href="data:,">{tag}</script>{slots}'
        return web.Response(text=body, content_type="text/html")

    async def js(_: web.Request) -> web.Response:
        return web.Response(body=script, content_type="text/javascript", charset="utf-8")

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/plain", plain)
    app.router.add_get("/handbill.js", js)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@pytest.fixture
async def visit(browser: Browser, site: str) -> MakePage:
    """`await visit()` opens the shop as somebody new; `await visit(page)` again as the same."""

    async def make(page: Page | None = None, **context: Any) -> Page:
        if page is None:
            page = await (await browser.new_context(user_agent=AGENT, **context)).new_page()
            page.set_default_timeout(PATIENCE_MS)
        await page.goto(site)
        return page

    return make


@pytest.fixture
async def recorder() -> AsyncIterator[RecordingApi]:
    need("chromium")
    async with recording_api() as made:
        yield made


@dataclass
class Shop:
    """A tenant with a placement, over a running API and the worker that counts."""

    url: str
    write_key: str
    secret_key: str
    tenant: int
    postgres_url: str
    placement: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    async def banner(self, **fields: Any) -> str:
        """A banner of the shop's only placement, once the API shows it."""
        told = {
            "x_times": 2,
            "y_hours": 24,
            "z_duration_sec": 1,
            "title": "Lantern week",
            "cta_link": "/pots",
            **fields,
        }
        made = await self.ask("POST", "/admin/banners", json={**told, "placement_ids": [self.placement]})
        query = f"/banners?user_id=somebody&write_key={self.write_key}"

        async def shown() -> bool:
            return made["banner_id"] in (await self.ask("GET", query, key=False))["banners"]

        await eventually(shown, what="the banner is shown")
        return str(made["banner_id"])

    async def ask(self, method: str, path: str, *, key: bool = True, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.secret_key}"} if key else {}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.request(method, self.url + path, **options) as reply,
        ):
            assert reply.status < 300, await reply.text()
            return await reply.json()

    def proved(self, user: str) -> dict[str, Any]:
        """Options of somebody who signed in: the shop's own token says who they are."""
        claims = {"sub": user, "exp": datetime.now(UTC) + timedelta(hours=1)}
        return {**self.options, "user": user, "token": jwt.encode(claims, SECRET, algorithm="HS256")}

    async def rows(self, table: str) -> list[dict[str, Any]]:
        """What was counted for this tenant, as it stands in PostgreSQL."""
        connection = await asyncpg.connect(self.postgres_url)
        try:
            found = await connection.fetch(f"select * from {table} where tenant_id = $1", self.tenant)
            return [dict(row) for row in found]
        finally:
            await connection.close()

    async def counted(self, table: str, count: int) -> list[dict[str, Any]]:
        """The rows, once there are so many. More than that are a fault."""

        async def enough() -> list[dict[str, Any]]:
            found = await self.rows(table)
            return found if len(found) >= count else []

        found: list[dict[str, Any]] = await eventually(enough, what=f"{count} rows in {table}")
        assert len(found) == count
        return found

    async def views(self, count: int) -> list[dict[str, Any]]:
        return await self.counted("caps.user_views", count)


@pytest.fixture
async def shop(
    handbill_env: dict[str, str], engines: Engines, database: Database, redis: Redis, tenant: int
) -> AsyncIterator[Shop]:
    need("chromium")  # before anything is started for nothing
    tenants = TenantService(database, redis, seal_key=sha256(SEAL.encode()).digest())
    write = await tenants.create_key(tenant, NewKey(kind="write", name="shop"), actor="test")
    secret = await tenants.create_key(tenant, NewKey(kind="secret", name="desk", scopes=["*"]), actor="test")
    patch = TenantPatch(settings=SettingsPatch(jwt=JwtRules(kind="hs256"), jwt_secret=SECRET))
    await tenants.change_tenant(tenant, patch, actor="test")
    await tenants.stop()
    env = {**handbill_env, "HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_API__KILL_TIMEOUT_S": "2"}
    async with process("api", env=env) as api, process("worker", "--only", "consume", env=env) as worker:
        await api.log(event="api-ready")
        await worker.log(event="worker-ready")
        url = f"http://127.0.0.1:{env['HANDBILL_API__PORT']}"
        made = Shop(url, write.key, secret.key, tenant, engines.postgres_url)
        made.options = {"url": url, "writeKey": write.key, "user": "ada", "timeoutMs": 30_000}
        place = await made.ask("POST", "/admin/placements", json={"name": "Home", "slug": "home"})
        made.placement = place["placement_id"]
        yield made
