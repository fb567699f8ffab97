"""Guarantee 7 under fire: workers killed among single messages, answers lost, requests repeated; no key twice."""

from __future__ import annotations

import signal
from collections import Counter

from handbill.fake_graph.model import Config, Faults
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.model import JobOptions
from handbill.jobs.queue import Queues
from handbill.messaging.links import NewConnection
from handbill.messaging.service import KeeperPolicy
from handbill.settings import load
from handbill.wiring import messaging
from handbill.wiring.house import House
from tests.kit.crashes import crashing
from tests.kit.engines import Engines
from tests.kit.graph import WABA, graph, many_numbers
from tests.kit.processes import process
from tests.kit.reach import SECRET, Book, free_numbers
from tests.kit.single_messages import asked, hello
from tests.kit.waiting import eventually

REQUESTS, JOBS = 90, 30
NUMBERS = many_numbers(3)
FAULTS = Faults(latency_ms=20, jitter_ms=20, lost_answer=0.04, dropped=0.03, bare_5xx=0.02, bare_5xx_taken=0.02)
DEATHS = (("graph:POST", 12), ("pg:settle", 9), ("pg:record_attempts", 10), ("pg:claim_singles", 9))
"""In the middle of requests, before outcomes are recorded, around attempts and claims."""

_SENDING = Sql("select count(*)::int from messaging.messages where tenant_id = $1 and state = 'sending'", "sending")
_LEASES = Sql("update messaging.numbers set single_until = '-infinity' where tenant_id = $1", "leases")


async def test_no_key_is_sent_twice_and_each_has_one_outcome(
    handbill_env: dict[str, str], engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    await free_numbers(engines.postgres_url)
    async with graph(Config(numbers=NUMBERS, faults=FAULTS)) as fake:
        env = handbill_env | {
            "HANDBILL_TENANTS__SEAL_KEY": "a seal key for tests",
            "HANDBILL_MESSAGING__GRAPH_URL": fake.url,
            "HANDBILL_MESSAGING__CLAIM_S": "1",
            "HANDBILL_MESSAGING__LEASE_S": "1",
            "HANDBILL_MESSAGING__UNANSWERED_S": "40",
            "HANDBILL_JOBS__SWEEP_GRACE_S": "1",
        }
        house = House(load(env))
        await house.start("tool")
        try:
            room = messaging.service(house, Book())
            new = NewConnection("Main", WABA, [one.id for one in NUMBERS], "good", SECRET)
            await room.connections.connect(tenant, new, actor="test")
            await room.connections.set_pace(tenant, 0, actor="test")

            async def request_all() -> None:
                for number in range(REQUESTS):
                    await room.singles.send(tenant, hello(f"+4917111{number:05d}"), asked(f"key-{number}"))

            await request_all()
            queue = Queues(redis).queue("message_dispatch")
            template = {"name": "hello_world", "language": "en_US"}
            for number in range(JOBS):
                data = {"to": f"+4917222{number:05d}", "template": template}
                opts = JobOptions(job_id=f"fire-{tenant}-{number}", attempts=10)
                await queue.add("send", data, opts=opts, tenant_id=tenant)
            in_flight = 0
            for only, at in DEATHS:
                async with crashing("worker", "--only", "relay,jobs,cron", at=at, only=only, env=env) as worker:
                    assert await worker.exit() == -signal.SIGKILL, worker.tail()
                async with database.worker() as tx:
                    in_flight += await tx.fetchval(_SENDING, tenant)
                    await tx.execute(_LEASES, tenant)
                room.keeper.policy = KeeperPolicy(claim_s=0, answer_s=0)
                await room.keeper.sweep()
                await request_all()  # callers whose connection broke ask again

            async with process("worker", "--only", "relay,jobs,cron", env=env) as worker:

                async def dealt_with() -> bool:
                    proof = await room.singles.verify(tenant)
                    return proof.messages == REQUESTS + JOBS and proof.open == 0

                await eventually(dealt_with, timeout=120)
                assert await worker.stop() == 0, worker.tail()
            proof = await room.singles.verify(tenant)
            log = await fake.log()
            room.keeper.policy = KeeperPolicy(unknown_h=0)
            await room.keeper.sweep()
            ended = await room.singles.verify(tenant)
            await room.stop()
        finally:
            await house.stop()
    requests = Counter(line["to"] for line in log)
    assert max(requests.values()) == 1, "no refusal here asks for a second try, so each key makes one request at most"
    taken = {line["to"] for line in log if line["outcome"] in ("accepted", "lost")}
    assert proof.holds, proof.faults
    assert (proof.messages, proof.skipped) == (REQUESTS + JOBS, 0)
    assert proof.sent <= len(taken) <= proof.sent + proof.unknown
    assert (ended.holds, ended.unknown, ended.open) == (True, 0, 0), ended.faults
    assert ended.sent + ended.failed == REQUESTS + JOBS
    print(f"{in_flight} in flight at {len(DEATHS)} deaths, {proof.unknown} unknown")
