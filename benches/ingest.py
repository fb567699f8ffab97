"""Product events a second over HTTP in our own dialect, batches of 100, durable before they are answered.

The limit is the same server and the same requests, on a route that makes the events of a batch, as the dialect does,
and answers 202 without keeping them; what typed JSON alone would do is in the detail. Quota and rate of the tenants are
switched on and never reached; the engines are the embedded ones as shipped.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import psutil

from benches import _ingest_server
from benches._bench import Options, Result, alternating, main, require, rounded, say
from benches._load import Report, Request, client_address, load
from benches._shop import ACTOR, house
from benches.track import AGENT, kept, settled
from handbill.tenants.model import NewKey, NewTenant
from handbill.wiring.house import House
from tests.kit.processes import free_port, program
from tests.kit.stack import stack

BAR = "ratio >= 0.40, goal 50k/s"
PATH = "/v1/events"
EVENTS = 100
REQUESTS = 400
TENANTS = 8
CONNECTIONS = 32
WARM_S = 1.0


async def keys(built: House) -> list[str]:
    """The write keys of several tenants: one alone would be told to spill, which is not what most events do."""
    made = []
    for number in range(TENANTS):
        new = NewTenant(name=f"Shop {number}", slug=f"shop-{number}")
        tenant = (await built.tenants.create_tenant(new, actor=ACTOR)).tenant_id
        key = await built.tenants.create_key(tenant, NewKey(kind="write", name="site"), actor=ACTOR)
        made.append(key.key)
    return made


def requests(made: Sequence[str], path: str) -> list[Request]:
    """Batches as a server sends them: twenty people, some of whom set a property."""
    chance = random.Random(7)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    found = []
    for number in range(REQUESTS):
        events = [_event(chance, f"{number}-{place}", now) for place in range(EVENTS)]
        body = msgspec.json.encode({"sent_at": now, "events": events})
        head = {
            "X-Forwarded-For": client_address(number),
            "X-Api-Key": made[number % len(made)],
            "Content-Type": "application/json",
            "User-Agent": AGENT,
        }
        found.append(Request("POST", path, head, body))
    return found


def _event(chance: random.Random, name: str, now: str) -> dict[str, object]:
    event: dict[str, object] = {
        "event": chance.choice(("$pageview", "product_viewed", "cart_opened", "order_placed")),
        "distinct_id": f"user-{chance.randrange(20_000)}",
        "event_id": f"01j9x0c2-{name}-5f0e2c7a",
        "timestamp": now,
        "properties": {"product": f"p-{chance.randrange(500)}", "price": 19.9, "currency": "EUR", "in_stock": True},
        "context": {"session_id": f"s-{chance.randrange(5_000)}", "url": "https://shop.example/spring/shoes"},
    }
    if chance.random() < 0.1:
        event["user_properties"] = {"$set": {"plan": "pro", "city": "Graz"}}
    return event


async def body(options: Options) -> Result:
    port, metrics_port = free_port(), free_port()
    reports: list[Report] = []
    cpu: dict[str, list[float]] = {PATH: [], _ingest_server.LIMIT: [], _ingest_server.JSON: []}
    env = {
        "HANDBILL_API__PORT": str(port),
        "HANDBILL_API__METRICS_PORT": str(metrics_port),
        "HANDBILL_API__TRUSTED_PROXIES": "127.0.0.0/8",
        "HANDBILL_EVENTS__BACKPRESSURE_THRESHOLD": "1000000000",  # nobody counts here: the journal only grows
        "HANDBILL_EVENTS__QUOTA_PER_DAY": "1000000000",
        "HANDBILL_EVENTS__RATE_PER_SECOND": "1000000",
    }
    async with stack() as built, house(built) as ours:
        made = await keys(ours)
        sent, bare = requests(made, PATH), requests(made, _ingest_server.LIMIT)
        async with program(sys.executable, "-m", "benches._ingest_server", env=built.env(**env)) as server:
            await server.log(event="api-ready")
            family = psutil.Process(server.pid)

            async def measure(what: Sequence[Request]) -> float:
                before = sum(family.cpu_times()[:2])
                report = await load(port, what, seconds=3 if options.quick else 6, warm=WARM_S, connections=CONNECTIONS)
                require(report.failed == 0, f"{report.failed} were refused: {dict(report.statuses)} {report.sample}")
                spent = sum(family.cpu_times()[:2]) - before
                events = report.requests * EVENTS
                cpu[what[0].path].append(spent / events * report.seconds / (report.seconds + WARM_S) * 1e6)
                rate = report.rate * EVENTS
                each = cpu[what[0].path][-1]
                say(f"{what[0].path}: {rate:,.0f}/s, p99 {report.p99_ms:.1f} ms, {each:.1f} us an event")
                if what is sent:
                    reports.append(report)
                return rate

            rounds = await alternating(lambda: measure(sent), lambda: measure(bare))
            plain = await measure(requests(made, _ingest_server.JSON))
            await settled(ours, metrics_port)
            require(await server.stop() == 0, "the server did not stop in order")
        total = await kept(ours)
        answered = sum(report.requests for report in reports) * EVENTS
        require(total >= answered, f"{answered} events were acknowledged, {total} are in the journal")
    detail = {
        "p50_ms": rounded(min(report.p50_ms for report in reports)),
        "p99_ms": rounded(max(report.p99_ms for report in reports)),
        "server_cpu_us": rounded(statistics.median(cpu[PATH])),
        "limit_cpu_us": rounded(statistics.median(cpu[_ingest_server.LIMIT])),
        "typed_json": rounded(plain),
        "events_per_request": EVENTS,
        "connections": CONNECTIONS,
        "body_bytes": len(sent[0].body),
        "tenants": TENANTS,
        "generator": reports[0].generator,
        "in_journal": total,
        **rounds.detail(),
    }
    return Result(rounds.value, "events/s", rounds.limit, detail)


if __name__ == "__main__":
    main("ingest", body)
