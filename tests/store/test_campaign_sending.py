"""A campaign from its audience to the provider's log: everybody once, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

from aiohttp import web

from handbill.fake_graph.model import Config, Faults
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.messaging.service import KeeperPolicy, MessagingPolicy
from tests.kit.crashes import Died, dying_at
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, Hook, graph
from tests.kit.reach import SECRET, Book, Room, people, room
from tests.kit.waiting import eventually


async def test_a_campaign_reaches_everybody_once(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url, Book(people(150))) as at:
        connection = await at.connect(tenant)
        async with at.running():
            campaign = await at.started(tenant, connection)

            async def over() -> bool:
                return await at.state(tenant, campaign.campaign_id) == "completed"

            await eventually(over)
        assert await at.states(tenant, campaign.campaign_id) == {"accepted": 150}
        proof = await at.service.campaigns.verify(tenant, campaign.campaign_id)
        assert proof.holds, proof.faults
        assert proof.sent == proof.audience == 150
        _, audit = await fake("GET", "/_audit")
        assert audit["taken"] == 150
        assert audit["twice"] == 0
        assert max(audit["most_in_a_second"].values()) <= 80


class Door(Hook):
    """The webhook's way in without a server of ours: signature, keeping, all of it but HTTP's own part."""

    def __init__(self, at: Room, connection: UUID) -> None:
        super().__init__()
        self._at, self._connection = at, connection

    async def _post(self, request: web.Request) -> web.Response:
        kept = await self._at.service.incoming.keep(
            self._connection, await request.read(), request.headers.get("X-Hub-Signature-256")
        )
        return web.Response(status=200 if kept else 403)


async def test_lost_answers_are_lifted_by_their_webhooks(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    faults = Faults(
        lost_answer=0.25, bare_5xx_taken=0.1, repeated=0.3, webhook_delay_ms=30, webhook_jitter_ms=200, unread=0.3,
        delivered_missing=0.2,
    )  # fmt: skip
    config = Config(faults=faults, app_secret=SECRET)
    async with graph(config) as fake, room(database, redis, engines.postgres_url, fake.url, Book(people(120))) as at:
        connection = await at.connect(tenant)
        async with Door(at, connection).running() as door, at.running():
            await fake.control(webhook={"url": door.url})
            campaign = await at.started(tenant, connection)

            async def told() -> bool:
                states = await at.states(tenant, campaign.campaign_id)
                return set(states) <= {"delivered", "read"} and sum(states.values()) == 120

            await eventually(told)
            proof = await at.service.campaigns.verify(tenant, campaign.campaign_id)
        assert proof.holds, proof.faults
        assert (proof.sent, proof.unknown) == (120, 0)
        _, audit = await fake("GET", "/_audit")
        assert (audit["taken"], audit["twice"]) == (120, 0)
        assert audit["silent"] > 0, "some answers were lost, and none of their messages"


async def test_a_death_at_every_point_of_a_turn(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    """Whoever dies, wherever: afterwards each of the two people has one outcome and was written to at most once."""
    policy = MessagingPolicy(keeper=KeeperPolicy(claim_s=0, answer_s=0))
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url, None, policy) as at:
        connection = await at.connect(tenant)
        number = 0
        unknown = 0
        while True:
            number += 1
            at.book.default = people(2, first=number * 10)
            campaign = (await at.started(tenant, connection)).campaign_id
            await at.service.keeper.poll()
            await at.service.launcher.write(tenant, campaign)
            alive = await _turned(at, tenant, number)
            await at.service.keeper.sweep()
            await at.service.dispatcher.turn(tenant, NUMBER, None)
            await at.service.keeper.finish(tenant)
            proof = await at.service.campaigns.verify(tenant, campaign)
            assert proof.holds, (number, proof.faults)
            assert (proof.state, proof.sent + proof.unknown) == ("completed", 2), (number, proof)
            unknown += proof.unknown
            if alive:
                break
        _, audit = await fake("GET", "/_audit")
        assert audit["twice"] == 0
        taken = Counter(line["to"] for line in await fake.log())
        assert max(taken.values()) == 1
        print(f"{number - 1} points, {unknown} of {2 * number} messages unknown")
        assert number > 30
        assert unknown > 0


async def _turned(at: Room, tenant: int, number: int) -> bool:
    """A turn that dies at its number-th point; True when it has fewer."""
    with dying_at(number):
        try:
            await at.service.dispatcher.turn(tenant, NUMBER, None)
        except (Died, asyncio.CancelledError):
            return False
    return True
