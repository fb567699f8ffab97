"""Single tracked events a second over HTTP, durable before they are answered.

The limit is the same server and the same requests, on a route that reads the body and answers 202 before anything of
ours is asked; what our own lane reaches without work is in the detail. The engines are the embedded ones as shipped:
every append is on disk before its events are acknowledged.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import aiohttp
import msgspec
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benches import _track_server
from benches._bench import Options, Result, alternating, main, require, rounded, say
from benches._load import Report, Request, client_address, load
from benches._shop import Shop, house, shops
from handbill.wiring.house import House
from tests.kit.processes import free_port, program
from tests.kit.stack import stack

BAR = "ratio >= 0.50"
PATH = "/api/banners/events/impression"
REQUESTS = 20_000
CONNECTIONS = 128
WARM_S = 1.0
AGENT = (
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Mobile Safari/537.36"
)


def requests(made: Sequence[Shop], path: str) -> list[Request]:
    """Events as a tracker in a page sends them, each from its own address."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    found = []
    for number in range(REQUESTS):
        shop = made[number % len(made)]
        body = msgspec.json.encode(
            {
                "bannerPublicId": shop.banners[number // len(made) % len(shop.banners)],
                "placementPublicId": shop.placement,
                "campaignPublicId": shop.campaign,
                "correlationId": f"01j9x-{number:08d}-5f0e2c",
                "sessionId": f"sess-{number % 5_000}",
                "deviceType": "mobile",
                "countryCode": "DE",
                "pageUrl": "https://shop.example/spring/shoes?page=2",
                "referrerUrl": "https://search.example/",
                "occurredAt": now,
            }
        )
        head = {"X-Forwarded-For": client_address(number), "Content-Type": "application/json", "User-Agent": AGENT}
        found.append(Request("POST", path, head, body))
    return found


async def accepted(port: int) -> int:
    """What the server itself counted as accepted."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as reply:
        page = await reply.text()
    families = text_string_to_metric_families(page)
    samples = (sample for family in families for sample in family.samples)
    return int(sum(one.value for one in samples if one.name == "handbill_events_accepted_total"))


async def kept(built: House) -> int:
    """What the journal holds, over all lanes."""
    return sum([(await built.journal.lag(lane, "0-0")).events for lane, _ in built.lanes.all()])


async def body(options: Options) -> Result:
    port, metrics_port = free_port(), free_port()
    reports: list[Report] = []
    cpu: dict[str, list[float]] = {PATH: [], _track_server.LIMIT: [], _track_server.LANE: []}
    env = {
        "HANDBILL_API__PORT": str(port),
        "HANDBILL_API__METRICS_PORT": str(metrics_port),
        "HANDBILL_API__TRUSTED_PROXIES": "127.0.0.0/8",
        "HANDBILL_EVENTS__BACKPRESSURE_THRESHOLD": "1000000000",  # nobody counts here: the journal only grows
    }
    async with stack() as built, house(built) as ours:
        made = await shops(ours)
        tracked, bare = requests(made, PATH), requests(made, _track_server.LIMIT)
        async with program(sys.executable, "-m", "benches._track_server", env=built.env(**env)) as server:
            await server.log(event="api-ready")

            family = psutil.Process(server.pid)

            async def measure(what: Sequence[Request]) -> float:
                before = sum(family.cpu_times()[:2])
                report = await load(
                    port, what, seconds=3 if options.quick else 10, warm=WARM_S, connections=CONNECTIONS
                )
                require(report.failed == 0, f"{report.failed} were refused: {dict(report.statuses)} {report.sample}")
                spent = sum(family.cpu_times()[:2]) - before
                cpu[what[0].path].append(spent / report.requests * report.seconds / (report.seconds + WARM_S) * 1e6)
                say(f"{what[0].path}: {report.rate:,.0f}/s, p99 {report.p99_ms:.1f} ms, {cpu[what[0].path][-1]:.0f} us")
                if what is tracked:
                    reports.append(report)
                return report.rate

            rounds = await alternating(lambda: measure(tracked), lambda: measure(bare))
            lane = await measure(requests(made, _track_server.LANE))
            await settled(ours, metrics_port)
            require(await server.stop() == 0, "the server did not stop in order")
        total = await kept(ours)
        answered = sum(report.requests for report in reports)
        require(total >= answered, f"{answered} events were acknowledged, {total} are in the journal")
    detail = {
        "p50_ms": rounded(min(report.p50_ms for report in reports)),
        "p99_ms": rounded(max(report.p99_ms for report in reports)),
        "server_cpu_us": rounded(statistics.median(cpu[PATH])),
        "limit_cpu_us": rounded(statistics.median(cpu[_track_server.LIMIT])),
        "lane": rounded(lane),
        "connections": CONNECTIONS,
        "body_bytes": len(tracked[0].body),
        "tenants": len(made),
        "client_addresses": REQUESTS,
        "generator": reports[0].generator,
        "in_journal": total,
        **rounds.detail(),
    }
    return Result(rounds.value, "events/s", rounds.limit, detail)


async def settled(ours: House, metrics_port: int) -> None:
    """Once the last requests are through: as many events are in the journal as the server says it accepted."""
    for _ in range(100):
        said, found = await accepted(metrics_port), await kept(ours)
        if said == found:
            return
        await asyncio.sleep(0.1)
    require(False, f"the server accepted {said} events, the journal has {found}")


if __name__ == "__main__":
    main("track", body)
