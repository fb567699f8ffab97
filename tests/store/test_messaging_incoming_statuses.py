"""Law 3 for what a provider tells: whatever the order, the split and the copies of webhooks, one end state."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime
from typing import Any
from uuid import UUID

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.clock import to_ms
from handbill.messaging.lattice import WORDS, Mark, Standing, Status, fold, of
from tests.conftest import MakeTenant
from tests.kit import desk
from tests.kit.engines import Engines
from tests.kit.graph import graph, many_numbers
from tests.kit.reach import Room, room

START_S = 1_750_000_000
CODES = (131049, 131051, 130472)
"""Codes that say nothing about anybody else."""
DETAILS = ("", "enough", "Ärger", "zu viel", "é", "Z")
Said = tuple[str, int, int, str]


def histories(dice: random.Random, count: int) -> list[list[Said]]:
    """For each message what was ever reported about it: (word, second, code, details), in no order at all."""
    found = []
    for _ in range(count):
        said = []
        for word in dice.sample(sorted(WORDS), dice.randint(0, 4)):
            if word == "accepted":
                continue
            for _ in range(dice.choice((1, 1, 2))):
                code = dice.choice(CODES) if word == "failed" else 0
                said.append((word, START_S + dice.randint(0, 3), code, dice.choice(DETAILS) if code else ""))
        found.append(said)
    return found


def expected(said: list[Said]) -> tuple[str, dict[Status, int], tuple[int, str] | None]:
    whole: Standing = fold(*(of(WORDS[word], Mark(at * 1000, code, details)) for word, at, code, details in said))
    marks = dict(whole.marks)
    failed = marks.get(Status.FAILED)
    state = whole.status.word if whole.status else "accepted"
    error = None if failed is None else (failed.code, failed.details)
    return state, {status: mark.at_ms for status, mark in marks.items()}, error


def found(row: Any) -> tuple[str, dict[Status, int], tuple[int, str] | None]:
    columns: dict[Status, datetime | None] = {
        Status.SENT: row["sent_at"],
        Status.FAILED: row["failed_at"],
        Status.DELIVERED: row["delivered_at"],
        Status.READ: row["read_at"],
    }
    times = {status: to_ms(at) for status, at in columns.items() if at is not None}
    return row["state"], times, (row["error_code"], row["error_details"]) if row["failed_at"] else None


def bodies(dice: random.Random, ids: list[UUID], addresses: list[str], told: list[list[Said]]) -> list[bytes]:
    """Every report at least once, some again, mixed, a few in each request; one in five without our own note."""
    items = [
        desk.status(message, word, at, address=address, code=code, details=details, noted=dice.random() < 0.8)
        for message, address, said in zip(ids, addresses, told, strict=True)
        for word, at, code, details in said
    ]
    items += dice.choices(items, k=len(items) // 2)
    dice.shuffle(items)
    made = []
    while items:
        size = dice.choice((1, 1, 2, 5, 30))
        made.append(desk.messages(statuses=items[:size]))
        del items[:size]
    return made + dice.choices(made, k=len(made) // 4)


async def workers(at: Room, count: int, limit: int) -> None:
    async def one() -> None:
        while await at.service.incoming.work(limit):
            pass

    await asyncio.gather(*(one() for _ in range(count)))


async def test_every_arrangement_ends_as_the_lattice_says(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    dice = random.Random(7)
    told = histories(dice, 60)
    addresses = [f"+49170{place:07d}" for place in range(len(told))]
    assert {expected(said)[0] for said in told} == {"accepted", "sent", "failed", "delivered", "read"}
    numbers = many_numbers(4)
    async with (
        graph(Config(numbers=numbers)) as fake,
        room(database, redis, engines.postgres_url, fake.url) as at,
    ):
        for number, (count, limit) in zip(numbers, ((1, 1), (1, 100), (3, 4), (2, 25)), strict=True):
            tenant = await make_tenant()
            connection = await at.connect(tenant, [number.id])
            async with desk.owner(engines.postgres_url) as db:
                ids = await desk.sent(db, tenant, await desk.draft(at, tenant, connection), addresses)
                sent = bodies(dice, ids, addresses, told)
                kept = await asyncio.gather(*(desk.told(at, connection, body) for body in sent))
                assert sum(new for (new,) in kept) == len(set(sent)), "copies are kept once"
                await workers(at, count, limit)
                await desk.worked_off(at)
                rows = await db.fetch("select * from messaging.messages where tenant_id = $1", tenant)
                left = await db.fetchval(
                    "select count(*) from messaging.webhook_inbox where tenant_id = $1 and state <> 'done'", tenant
                )
            assert left == 0
            states = {row["message_id"]: found(row) for row in rows}
            assert [states[message] for message in ids] == [expected(said) for said in told], (count, limit)
            failed = [row for row in rows if row["state"] == "failed"]
            assert all(row["reason"] == f"provider_{row['error_code']}" for row in failed)
            assert all(row["reason"] is None for row in rows if row["state"] != "failed")


async def test_a_send_given_up_for_another_counts_only_if_it_arrived(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        async with desk.owner(engines.postgres_url) as db:
            campaign = await desk.draft(at, tenant, connection)
            one, two = await desk.sent(db, tenant, campaign, ["+491701", "+491702"])
            await db.execute(
                "update messaging.messages set old_wamids = '{old}' where tenant_id = $1 and campaign_id = $2",
                tenant, campaign,
            )  # fmt: skip
            old = desk.status(one, "failed", START_S, code=131049, wamid="old")
            arrived = desk.status(two, "delivered", START_S, wamid="old")
            new = desk.status(two, "failed", START_S + 9, code=131049)
            await desk.told(at, connection, desk.messages(statuses=[old, arrived, new]))
            await desk.worked_off(at)
            rows = await db.fetch("select message_id, state from messaging.messages where tenant_id = $1", tenant)
        assert {row["message_id"]: row["state"] for row in rows} == {one: "accepted", two: "delivered"}


async def test_nobody_elses_message_moves(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    """A webhook speaks for the tenant whose connection it came by, whatever ids it names."""
    mine, other = await make_tenant(), await make_tenant()
    one, two = many_numbers(2)
    async with (
        graph(Config(numbers=(one, two))) as fake,
        room(database, redis, engines.postgres_url, fake.url) as at,
    ):
        ours, theirs = await at.connect(mine, [one.id]), await at.connect(other, [two.id])
        async with desk.owner(engines.postgres_url) as db:
            (message,) = await desk.sent(db, other, await desk.draft(at, other, theirs), ["+491701"])
            noted = desk.status(message, "read", START_S, address="+491701")
            bare = desk.status(message, "read", START_S, address="+491701", noted=False)
            unknown = desk.status(UUID(int=5), "read", START_S, address="+491709")
            await desk.told(at, ours, desk.messages(statuses=[noted, bare, unknown]))
            await desk.worked_off(at)
            assert (
                await db.fetchval("select state from messaging.messages where message_id = $1", message) == "accepted"
            )


async def test_an_error_in_the_answer_and_by_webhook_is_one_error(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        async with desk.owner(engines.postgres_url) as db:
            one, two = await desk.sent(db, tenant, await desk.draft(at, tenant, connection), ["+491701", "+491702"])
            await db.execute(
                "update messaging.messages set state = 'failed', reason = 'provider_131026', error_code = 131026"
                " where tenant_id = $1 and message_id = $2",
                tenant, one,
            )  # fmt: skip
            said = [desk.status(message, "failed", START_S, code=131026) for message in (one, two)]
            await desk.told(at, connection, desk.messages(statuses=said))
            await desk.worked_off(at)
            hits = await db.fetch("select address, hits from messaging.undeliverable where tenant_id = $1", tenant)
        assert [tuple(row) for row in hits] == [("+491702", 1)], "the first was counted when its answer came"
