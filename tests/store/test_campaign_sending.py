"""A campaign from its audience to the provider's log: everybody once, whatever goes wrong on the way."""

from __future__ import annotations

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.engines import Engines
from tests.kit.graph import graph
from tests.kit.reach import Book, people, room
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
