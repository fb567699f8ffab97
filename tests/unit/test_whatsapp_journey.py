"""A small campaign through adapter, retry classes, webhooks and lattice against a misbehaving server.

The core keeps its rows in PostgreSQL, here they are a dictionary; the law is the same: nobody twice, nobody skipped.
"""

from __future__ import annotations

import asyncio
from typing import Any

from handbill.fake_graph.model import Config, Faults
from handbill.messaging import webhooks
from handbill.messaging.errors import Action, by_outcome
from handbill.messaging.facts import StatusFact
from handbill.messaging.lattice import Standing, Status, fold, join
from handbill.messaging.model import Accepted, Account, Credentials, Message, TemplateSend
from handbill.messaging.providers.graph import Graph as Client
from handbill.messaging.providers.whatsapp import WhatsApp
from tests.kit.graph import NUMBER, WABA, Hook, graph, many_numbers
from tests.kit.waiting import eventually

PEOPLE = 300
ACCOUNT = Account(1, NUMBER, WABA, "x")
FAULTS = Faults(
    lost_answer=0.05,
    dropped=0.04,
    bare_5xx=0.03,
    bare_5xx_taken=0.03,
    graph_5xx=0.1,
    throttled=0.05,
    codes={"131026": 0.05, "131049": 0.05, "131050": 0.02},
    late_codes={"131026": 0.1},
    webhook_jitter_ms=80,
    repeated=0.3,
    delivered_missing=0.2,
    unread=0.3,
)


class Kept:
    async def credentials(self, account: Account) -> Credentials:
        return Credentials("good", "s")


async def deliver(whatsapp: WhatsApp, n: int) -> str:
    """One person: again and again while that is certainly safe, then the word that the row would hold."""
    message = Message(f"4915{n:06d}", TemplateSend("hello_world", "en_US"), f"c1:{n}")
    for attempt in range(1, 12):
        outcome = await whatsapp.send(ACCOUNT, message)
        if isinstance(outcome, Accepted):
            return "sent"
        verdict = by_outcome(outcome, attempt=attempt)
        assert verdict is not None
        if verdict.action is Action.UNKNOWN:
            return "unknown"
        if verdict.action is not Action.WAIT_SECONDS:
            return verdict.reason
    return "gave_up"


def told(hook: Hook) -> dict[int, Standing]:
    ends: dict[int, Standing] = {}
    for body, signature in hook.seen:
        assert webhooks.signed(["s"], body, signature)
        for fact in webhooks.parse(body):
            assert isinstance(fact, StatusFact)
            assert fact.opaque is not None
            n = int(fact.opaque.partition(":")[2])
            ends[n] = join(ends.get(n, fold()), fact.standing)
    return ends


async def test_nobody_twice_nobody_skipped_and_unknown_only_where_the_server_was_silent() -> None:
    config = Config(seed=42, app_secret="s", numbers=many_numbers(1, per_second=10**6), faults=FAULTS)
    async with Hook(fail_first=3).running() as hook, graph(config) as fake:
        await fake.control(webhook={"url": hook.url})
        whatsapp = WhatsApp(Client(fake.url, connections=50, insecure=True), Kept())
        try:
            rows = dict(enumerate(await asyncio.gather(*(deliver(whatsapp, n) for n in range(PEOPLE)))))
        finally:
            await whatsapp.close()
        await fake.control(hurry=True)
        await eventually(lambda: fake.world.courier.pending == 0)
        _, audit = await fake("GET", "/_audit")
        log = await fake.log()
        ends = told(hook)
    taken = {int(line["opaque"][3:]) for line in log if line["outcome"] in ("accepted", "lost")}
    unknown = {n for n, word in rows.items() if word == "unknown"}
    assert audit["twice"] == 0
    assert len(unknown) == audit["silent"] > 10
    assert set(rows.values()) == {"sent", "unknown", "provider_131026", "provider_131049", "provider_131050"}
    assert {n for n, word in rows.items() if word == "sent"} | (unknown & taken) == taken
    # Webhooks lift exactly the unknown ones that had arrived; the others stay unknown and are never sent again.
    assert set(ends) == taken
    assert {end.status for end in ends.values()} == {Status.READ, Status.DELIVERED, Status.FAILED}
    assert unknown - taken, "some never arrived, and nobody can tell"
    assert unknown & taken, "some did"
    summary: dict[int, Any] = {n: ends[n].status if n in ends else rows[n] for n in rows}
    assert len(summary) == PEOPLE
