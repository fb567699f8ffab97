"""Law 7 under fire: workers killed in mid-campaign, a provider that loses answers; nobody twice, nobody skipped."""

from __future__ import annotations

import signal
from collections import Counter

from handbill.fake_graph.model import Config, Faults
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.messaging.links import NewConnection
from handbill.messaging.plan import NewCampaign, UsedTemplate
from handbill.messaging.service import KeeperPolicy
from handbill.settings import load
from handbill.wiring import messaging
from handbill.wiring.house import House
from tests.kit.crashes import crashing
from tests.kit.engines import Engines
from tests.kit.graph import WABA, graph, many_numbers
from tests.kit.processes import process
from tests.kit.reach import SECRET, Book, free_numbers, people
from tests.kit.waiting import eventually

PEOPLE = 700
NUMBERS = many_numbers(4)
FAULTS = Faults(
    latency_ms=30, jitter_ms=30, lost_answer=0.01, dropped=0.005, bare_5xx=0.005, bare_5xx_taken=0.005, graph_5xx=0.02,
    throttled=0.01, codes={"131026": 0.01, "130472": 0.01},
)  # fmt: skip
DEATHS = (("graph:POST", 250), ("pg:settle", 31), ("pg:record_attempts", 42))
"""In the middle of requests, before outcomes are kept, around attempts."""

_SENDING = Sql("select count(*)::int from messaging.messages where tenant_id = $1 and state = 'sending'", "sending")


async def test_nobody_twice_nobody_skipped(
    handbill_env: dict[str, str], engines: Engines, database: Database, tenant: int
) -> None:
    await free_numbers(engines.postgres_url)
    async with graph(Config(numbers=NUMBERS, faults=FAULTS)) as fake:
        env = handbill_env | {
            "HANDBILL_TENANTS__SEAL_KEY": "a seal key for tests",
            "HANDBILL_MESSAGING__GRAPH_URL": fake.url,
            "HANDBILL_MESSAGING__CLAIM_S": "1",
            "HANDBILL_MESSAGING__LEASE_S": "1",
            "HANDBILL_MESSAGING__UNANSWERED_S": "40",
            "HANDBILL_MESSAGING__NUMBER_PAUSE_S": "1",
            "HANDBILL_JOBS__SWEEP_GRACE_S": "1",
        }
        house = House(load(env))
        await house.start("tool")
        try:
            room = messaging.service(house, Book(people(PEOPLE)))
            made = await room.connections.connect(tenant, _connection([number.id for number in NUMBERS]), actor="test")
            await room.connections.set_pace(tenant, 0, actor="test")
            new = NewCampaign("Fire", made.connection_id, UsedTemplate("hello_world", "en_US"), purpose="utility")
            campaign = await room.campaigns.create(tenant, new, actor="test")
            await room.campaigns.start(tenant, campaign.campaign_id, at=None, actor="test")
            await room.keeper.poll()
            assert await room.launcher.write(tenant, campaign.campaign_id) == PEOPLE

            in_flight = 0
            for only, at in DEATHS:
                async with crashing("worker", "--only", "relay,jobs,cron", at=at, only=only, env=env) as worker:
                    assert await worker.exit() == -signal.SIGKILL, worker.tail()
                async with database.worker() as tx:
                    in_flight += await tx.fetchval(_SENDING, tenant)
                # What was being written when it died is unknown, and stays so: the sweeper's answer, without the wait.
                room.keeper.policy = KeeperPolicy(claim_s=0, answer_s=0)
                await room.keeper.sweep()

            async with process("worker", "--only", "relay,jobs,cron", env=env) as worker:

                async def dealt_with() -> bool:
                    states = (await room.campaigns.outcomes(tenant, campaign.campaign_id)).states
                    return not {"pending", "claimed", "sending"} & set(states)

                await eventually(dealt_with, timeout=120)
                assert await worker.stop() == 0, worker.tail()
            await room.keeper.finish(tenant)
            proof = await room.campaigns.verify(tenant, campaign.campaign_id)
            _, audit = await fake("GET", "/_audit")
            log = await fake.log()
            room.keeper.policy = KeeperPolicy(unknown_h=0)
            await room.keeper.sweep()
            ended = await room.campaigns.verify(tenant, campaign.campaign_id)
            await room.stop()
        finally:
            await house.stop()
    taken = Counter(line["to"] for line in log if line["outcome"] in ("accepted", "lost"))
    assert max(taken.values()) == 1, "somebody was written to twice"
    assert audit["twice"] == 0
    assert proof.holds, proof.faults
    assert proof.state == "completed"
    assert proof.sent + proof.failed + proof.skipped + proof.unknown == proof.audience == PEOPLE
    assert proof.unknown <= in_flight + audit["silent"]
    assert proof.sent <= len(taken) <= proof.sent + proof.unknown
    assert max(audit["most_in_a_second"].values()) <= 80
    assert ended.holds, ended.faults
    assert ended.unknown == 0
    assert ended.failed == proof.failed + proof.unknown
    print(f"{in_flight} in flight at {len(DEATHS)} deaths, {audit['silent']} answers lost, {proof.unknown} unknown")


def _connection(numbers: list[str]) -> NewConnection:
    return NewConnection("Main", WABA, numbers, "good", SECRET)
