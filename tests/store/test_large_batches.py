"""A batch with the largest events: others have their turns on the loop all the while, or its lane loses its lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest

from handbill.events import enrich
from handbill.events.model import CapturedEvent, Row, encode, key
from handbill.events.model import Edge as SaidEdge
from handbill.events.shipping_rows import COLUMNS, RowMaker
from handbill.infra.postgres import Database
from handbill.kit.turns import BYTES_PER_TURN
from handbill.people import folding, gather, store
from handbill.people.definitions import Observations
from handbill.people.gather import TURN_BYTES, Gathered
from handbill.people.keeper import Keeper
from handbill.people.model import EdgeKind
from handbill.people.sink import PeopleSink
from tests.kit.clocks import FakeClock
from tests.kit.people import commit, said, state
from tests.kit.shipping import no_public_ids

BRACKETS = b'{"a":[' + b"[]," * 10_000 + b"1]}"
"""As much work as its bytes can be: 30 KB."""
SET = msgspec.json.encode({f"p{number}": "x" * 300 for number in range(100)})
"""A book of 30 KB."""


class Turn:
    """What was done since anybody else had a turn, and the most that ever was."""

    def __init__(self) -> None:
        self.now = self.most = self.whole = 0

    def done(self, size: int) -> None:
        self.now += size
        self.whole += size
        self.most = max(self.most, self.now)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        async def others() -> None:
            while True:
                self.now = 0
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        try:
            yield
        finally:
            task.cancel()


def watch(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, size: Callable[..., int]) -> Turn:
    """Count what a function works on."""
    turn, real = Turn(), getattr(where, name)

    def counted(*arguments: Any) -> Any:
        result = real(*arguments)
        turn.done(size(result, *arguments))
        return result

    monkeypatch.setattr(where, name, counted)
    return turn


def rows(events: list[CapturedEvent]) -> list[Row]:
    return [Row(place, key("capture", each.id), each, encode(each)) for place, each in enumerate(events)]


async def test_what_a_batch_says_about_people_is_gathered_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [said(1, f"e{number}", 1, "see", f"u{number}", properties=BRACKETS, set=SET) for number in range(40)]
    whole = Gathered(events)
    turn = watch(monkeypatch, gather, "said", lambda _, order, *parts: sum(map(len, filter(None, parts))))
    async with turn.watched():
        gathered = await Gathered.in_turns(events)
    assert turn.whole == 40 * len(SET), "all of it was done under watch"
    assert turn.most <= TURN_BYTES + len(SET)
    assert (gathered.ids, gathered.edges, gathered.books) == (whole.ids, whole.edges, whole.books)
    assert gathered.seen.seen() == whole.seen.seen()


async def test_events_that_set_nothing_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [said(1, f"e{number}", 1, "see", f"u{number}", properties=BRACKETS) for number in range(40)]
    turn = watch(monkeypatch, Observations, "event", lambda _, *parts: len(parts[-1]))
    async with turn.watched():
        await Gathered.in_turns(events)
    assert turn.whole == 40 * len(BRACKETS)
    assert turn.most <= TURN_BYTES + len(BRACKETS)


async def test_the_books_of_a_batch_are_written_in_turns(
    database: Database, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PeopleSink(Keeper(database), FakeClock())
    for at in (1, 2):  # stored for the first time, and merged with what is stored
        batch = rows([said(tenant, f"e{at}-{number}", at, "see", f"u{number}", set=SET) for number in range(60)])
        turn = watch(monkeypatch, store, "pack", lambda packed, book: packed.size)
        async with turn.watched(), database.worker() as tx:
            await sink.write(tx, batch, 0)
        monkeypatch.undo()
        assert turn.whole >= 60 * len(SET)
        assert turn.most <= BYTES_PER_TURN + 2 * len(SET)
        await sink.project(batch, [])


async def test_a_person_of_many_large_ids_is_folded_in_turns(
    database: Database, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = 60
    edges = [
        said(tenant, f"l{number}", number, "$identify", "zoe", edge=SaidEdge(EdgeKind.IDENTIFY, f"u{number}"))
        for number in range(ids)
    ]
    sets = [
        said(
            tenant,
            f"s{number}",
            100 + number,
            "see",
            f"u{number}",
            set=b'{"n":%d,"k%d":1,%s' % (number, number, SET[1:]),
        )
        for number in range(ids)
    ]
    await commit(database, tenant, [*edges, *sets])
    turn = watch(monkeypatch, folding, "unpack", lambda book, packed: packed.size)
    async with turn.watched():
        await Keeper(database).settle(tenant)
    assert turn.whole >= ids * len(SET)
    assert turn.most <= BYTES_PER_TURN + 2 * len(SET)
    (person,) = (await state(database, tenant))["persons"]
    assert f'"n": {ids - 1}' in person, "the latest word of all"
    assert all(f'"k{number}"' in person for number in range(ids)), "every word of each"


async def test_rows_for_clickhouse_are_made_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows([said(1, f"e{number}", 1, "see", "zoe", properties=BRACKETS) for number in range(60)])
    turn = watch(monkeypatch, enrich, "sound", lambda _, json: len(json or b""))
    async with turn.watched():
        records = await RowMaker(lambda tenant_id, who: UUID(int=1), lambda address: None, no_public_ids).records(
            made, {}, {1: 7}
        )
    event_id, retention = COLUMNS.index("event_id"), COLUMNS.index("retention")
    assert [(record[event_id], record[retention]) for record in records] == [(row.event.id, 7) for row in made]
    assert turn.whole == 60 * len(BRACKETS)
    assert turn.most <= BYTES_PER_TURN + 2 * len(BRACKETS)
