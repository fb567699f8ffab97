"""Words that end messages: each tenant's own, and buttons by what they carry."""

from __future__ import annotations

from typing import Any

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.messaging.opt_out_words import NewOptOutWords
from tests.conftest import MakeTenant
from tests.kit import desk
from tests.kit.engines import Engines
from tests.kit.graph import graph, many_numbers
from tests.kit.reach import room

NOW_S = 1_772_366_400


async def suppressed(db: Any, tenant: int) -> list[str]:
    rows = await db.fetch("select address from contacts.suppressions where tenant_id = $1 order by 1", tenant)
    return [row["address"] for row in rows]


async def test_words_count_for_their_tenant_and_buttons_by_their_payload(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    ours, theirs = await make_tenant(), await make_tenant()
    numbers = many_numbers(2)
    async with (
        graph(Config(numbers=numbers)) as fake,
        room(database, redis, engines.postgres_url, fake.url) as at,
        desk.owner(engines.postgres_url) as db,
    ):
        connections = [
            await at.connect(tenant, [number.id]) for tenant, number in zip((ours, theirs), numbers, strict=True)
        ]
        new = NewOptOutWords(languages=["de"], stop=["no more news"], without=["austragen"])
        await at.service.opt_out_words.replace(ours, new, actor="test")

        def button(address: str, text: str, payload: str) -> dict[str, Any]:
            item = desk.wrote(f"b.{address}.{payload}", address, "", NOW_S)
            return {**item, "type": "button", "button": {"text": text, "payload": payload}}

        for connection in connections:
            said = [
                desk.wrote(f"w.{place}.{connection}", f"+49151000000{place}", text, NOW_S)
                for place, text in enumerate(["No more news!", "austragen", "Cancel", "Abmelden", "Weiter", "sair"])
            ]
            said += [button("+491510000007", "Stop", "stop-watch"), button("+491510000008", "Not now", "ABMELDEN")]
            await desk.told(at, connection, desk.messages(messages=said))
        await desk.worked_off(at)
        found = [[address[-1] for address in await suppressed(db, tenant)] for tenant in (ours, theirs)]
        assert found == [["0", "3", "8"], ["1", "3", "5", "8"]]
