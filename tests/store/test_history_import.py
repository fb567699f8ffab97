"""Files of product events: once whatever is read twice, in bounded portions, beside live events and back-pressure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from handbill.events.edge import EdgePolicy
from handbill.events.history_import import HistoryImporter, ImportedRecords, RecordSource
from handbill.events.model import HISTORY_SEQUENCE, CapturedEvent, key
from handbill.events.service import FileFormat, csv_mapping
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Busy, Throttled
from handbill.kit.record_files import RecordFile
from tests.kit.clocks import START
from tests.kit.loop import loop
from tests.kit.past import Past, past, write_lines
from tests.store.test_event_order import people_now, sequences


def at(days: float) -> str:
    return (START - timedelta(days=days)).isoformat()


async def imported(here: Past, file: Path, kind: str = "handbill", size: int = 7, skip: int = 0) -> ImportedRecords:
    """The whole file in portions of so many records; `skip` of them go to nobody, as if they were sent before."""
    importer = HistoryImporter(here.app.events, here.app.tenants.directory, here.clock)
    total = ImportedRecords(0, 0, [], [])
    with RecordFile(file) as source:
        mapping = csv_mapping(source.names, {}, {}) if source.is_csv else None
        records = list(source.records())[skip:]
        reading = RecordSource(FileFormat(kind), mapping, source.cells if source.is_csv else None)
        for start in range(0, len(records), size):
            done = await importer.accept(here.tenant, reading, records[start : start + size])
            total = ImportedRecords(
                total.sent + done.sent, total.duplicates + done.duplicates, total.refused + done.refused,
                total.incomplete + done.incomplete,
            )  # fmt: skip
    return total


def story(dice: random.Random, number: int) -> Iterator[dict[str, Any]]:
    """Records of some people over ten years: half of them with ids; some identify, some set, many of one time."""
    for n in range(number):
        who = f"u{dice.randrange(4)}"
        record: dict[str, Any] = {
            "event": "seen", "distinct_id": who, "timestamp": at(dice.choice((1, 30, 90, 1000, 3600)) + n % 3),
            "properties": {"n": n},
        }  # fmt: skip
        if n % 2:
            record["event_id"] = f"e{n}"
        match n % 5:
            case 0:
                record["user_properties"] = {"$set": {"plan": n}, "$set_once": {"first": n}}
            case 1:
                record |= {"event": "$identify", "anonymous_id": f"a{dice.randrange(3)}"}
        yield record


async def test_a_file_counts_once_in_whatever_pieces_and_years_it_comes(
    database: Database, redis: Redis, history: ClickHouse, tenant: int, tmp_path: Path
) -> None:
    """Killed anywhere and started again, given again at once, and after a year; people and their order stay."""
    records = list(story(random.Random(3), 60))
    file = write_lines(tmp_path / "story.jsonl", records)
    async with past(database, redis, history, tenant) as here:
        await imported(here, file, size=7, skip=20)
        await imported(here, file, size=11)
        await here.settle()
        before, facts = await here.rows(), await people_now(database, tenant)
        assert len(before) == 60
        assert set((await sequences(database, tenant)).values()) == {HISTORY_SEQUENCE + n for n in range(1, 61)}
        for pause, size in ((0, 60), (40, 13), (365, 1)):
            await here.pass_days(pause)
            await imported(here, file, size=size)
            await here.settle()
            assert await here.rows() == before
            assert await people_now(database, tenant) == facts


async def test_people_are_the_same_in_whatever_order_live_events_and_history_arrive(
    database: Database, redis: Redis, history: ClickHouse, tenant: int, tmp_path: Path, make_tenant: Any
) -> None:
    """The live half and the export of everything: one after the other, either way."""
    records = [{**each, "event_id": f"e{n}"} for n, each in enumerate(story(random.Random(5), 40))]
    live = [each for each in records if each["timestamp"] > at(33)]
    assert len(live) > 10
    file = write_lines(tmp_path / "export.jsonl", records)
    found = []
    for tenant_id, live_first in ((tenant, True), (await make_tenant(), False)):
        async with past(database, redis, history, tenant_id) as here:
            if live_first:
                await here.own(live, history=False)
                await here.settle()
            await imported(here, file)
            if not live_first:
                await here.settle()
                await here.own(live, history=False)
            await here.settle()
            assert len(await here.rows()) == len(records)
            found.append(
                (await here.rows(), await people_now(database, tenant_id), await sequences(database, tenant_id))
            )
    assert found[0] == found[1]


async def test_what_is_refused_is_named_by_line_and_counted_and_its_neighbours_are_taken(
    database: Database, redis: Redis, history: ClickHouse, tenant: int, tmp_path: Path
) -> None:
    good = {"event": "paid", "distinct_id": "ada", "timestamp": at(500)}
    lines = [
        json.dumps({**good, "event_id": "1"}), "not json", "", json.dumps({**good, "timestamp": None}),
        json.dumps({**good, "distinct_id": "null"}), json.dumps({**good, "surprise": 1}),
        json.dumps({**good, "event_id": "7", "user_properties": None}),
    ]  # fmt: skip
    file = tmp_path / "f.jsonl"
    file.write_text("\n".join(lines) + "\n")
    async with past(database, redis, history, tenant) as here:
        done = await imported(here, file, size=100)
        assert [(each.line, each.reason) for each in done.refused] == [
            (2, "MALFORMED_EVENT"), (4, "INVALID_TIMESTAMP"), (5, "ILLEGAL_DISTINCT_ID"), (6, "UNKNOWN_FIELD"),
        ]  # fmt: skip
        assert "surprise" in done.refused[3].why
        await here.settle()
        assert sorted(await here.ids()) == ["1", "7"]
        counted = {each.reason: 1 for each in done.refused}
        assert await here.drops() == counted
        done = await imported(here, file, size=100)
        assert (done.sent, done.duplicates) == (0, 2)
        await here.settle()
        assert await here.drops() == {**dict.fromkeys(counted, 2), "DUPLICATE": 2}


async def test_exports_of_other_tools_are_read_beside_their_live_clients(
    database: Database, redis: Redis, history: ClickHouse, tenant: int, tmp_path: Path
) -> None:
    """PostHog's and Segment's clients, live; then the exports of that day, at once and after a year."""
    client = {"event": "paid", "distinct_id": "ada", "uuid": "p-1", "timestamp": at(1), "properties": {"total": 5}}
    message = {"type": "track", "event": "seen", "userId": "ada", "messageId": "s-1", "timestamp": at(1)}
    posthog = write_lines(tmp_path / "posthog.jsonl", [
        {**client, "properties": json.dumps(client["properties"]), "team_id": 1, "timestamp": at(1.2)},
        {**client, "uuid": "p-2", "timestamp": at(800)},
    ])  # fmt: skip
    segment = write_lines(tmp_path / "segment.jsonl", [
        {**message, "originalTimestamp": at(1), "sentAt": at(1), "receivedAt": at(1)},
        {**message, "messageId": "s-2", "timestamp": at(700)},
    ])  # fmt: skip
    rows = tmp_path / "rows.csv"
    rows.write_text(f"event,distinct_id,timestamp,id,properties.total\nbought,ada,{at(600)},c-1,7\n")
    async with past(database, redis, history, tenant) as here:
        await here.posthog([client], history=False)
        await here.segment([message], "/v1/batch")
        await here.settle()
        for pause in (0, 365):
            await here.pass_days(pause)
            for file, kind in ((posthog, "posthog"), (segment, "segment"), (rows, "csv")):
                assert (await imported(here, file, kind)).refused == []
            await here.settle()
            assert sorted(await here.ids()) == ["c-1", "p-1", "p-2", "s-1", "s-2"]


async def test_a_file_of_more_months_than_an_insert_usually_has_is_stored_and_counted(
    database: Database, redis: Redis, history: ClickHouse, tenant: int, tmp_path: Path
) -> None:
    months = [
        {"event": "seen", "distinct_id": f"u{n % 5}", "timestamp": f"{2010 + n // 12}-{n % 12 + 1:02}-15T00:00:00Z"}
        for n in range(120)
    ]
    async with past(database, redis, history, tenant) as here:
        await imported(here, write_lines(tmp_path / "f.jsonl", months), size=120)
        await here.settle()
        counts = await history.query(
            "select count(), uniqExact(toYYYYMM(at)), uniqExact(person_id) from events where tenant_id = {t:UInt32}",
            {"t": tenant},
        )
        assert counts == [(120, 120, 5)]


async def test_history_takes_the_overflow_lane_and_yields_long_before_live_events_are_shed(
    database: Database, redis: Redis, tenant: int
) -> None:
    policy = EdgePolicy(threshold=40, history_threshold=10)
    async with loop(database, redis, edge=policy) as app:
        now = app.clock.now_ms()
        old = [CapturedEvent(tenant, f"h{n}", 0, now, "e", f"u{n}", "own", marks=("imported",)) for n in range(20)]
        await app.events.accept_history(tenant, old)
        ends = {lane: (await app.journal.lag(lane, "0-0")).events for lane, _ in app.lanes.all()}
        assert {lane for lane, events in ends.items() if events} == {app.lanes.overflow_for(tenant)}
        await app.edge.look()
        with pytest.raises(Throttled):
            await app.events.accept_history(tenant, old[:1])
        live = CapturedEvent(tenant, "live", now, now, "e", "u", "own")
        await app.events.accept([live])
        await app.consumer()
        await app.drained()
        await app.edge.look()
        await app.events.accept_history(tenant, old)
        await app.drained()
        assert set(await sequences(database, tenant)) == {key("capture", each.id) for each in [*old, live]}


async def test_while_clickhouse_is_away_only_old_history_waits(database: Database, redis: Redis, tenant: int) -> None:
    away = ClickHouse("http://127.0.0.1:1/none")
    await away.start()
    try:
        async with past(database, redis, away, tenant, start=datetime.now(UTC)) as here:
            young, old = [{"event": "e", "distinct_id": "u", "event_id": "e", "timestamp": stamp}
                          for stamp in (here.clock.now().isoformat(), "2019-01-01")]  # fmt: skip
            assert (await here.own([young], history=False)).status == 202
            assert (await here.own([young])).status == 202
            with pytest.raises(Busy) as raised:
                await here.own([young, old])
            assert raised.value.retry_after
            await here.app.drained()
            assert await here.keys() == 1
    finally:
        await away.stop()
