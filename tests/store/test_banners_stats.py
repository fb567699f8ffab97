"""Reading the stats: zones, dimensions, sums that agree, CSV; the jobs that other programs send; files of history."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from handbill.banners.imports import lines
from handbill.banners.model import NewCampaign
from handbill.banners.stats import StatsQuery, as_csv
from handbill.banners.tasks import RECORD_CLICK, RECORD_IMPRESSION, ROLLUP, SYNC, BannerTasks
from handbill.client.ids import ReportIds
from handbill.events.model import Click, Event, Impression, View
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.model import Job, Unrecoverable
from handbill.jobs.service import Outbox
from handbill.kit.clock import to_ms
from handbill.kit.errors import Invalid
from tests.kit.loop import Loop, loop

ROWS = Sql("select count(*) from banners.banner_impressions where tenant_id = $1", "test_impressions")
ANNOUNCED = Sql("select name, job_id, data from jobs.outbox_events where job_id = $1", "test_announced")
DAY = timedelta(days=1)


async def counted(house: Loop, events: list[Event]) -> None:
    await house.events.accept(events)
    await house.consumer()
    await house.drained()


async def test_days_begin_where_the_tenant_lives(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis) as house:
        await house.banner(tenant)
        banner = house.catalogue.tenant(tenant).banners[0].id
        today = house.clock.now().date()
        noon = datetime(today.year, today.month, today.day, tzinfo=UTC) - 2 * DAY
        moments = [noon - timedelta(minutes=1), noon, noon + timedelta(hours=5, minutes=44), noon + timedelta(hours=23)]
        now = house.clock.now_ms()
        await counted(house, [Impression(tenant, f"i{n}", to_ms(at), now, banner) for n, at in enumerate(moments)])
        start, end = noon.date() - DAY, noon.date() + 2 * DAY
        stats = house.banners.stats
        utc = await stats.read(tenant, StatsQuery(start, end, "day", zone="UTC"))
        assert [(row.at, row.impressions) for row in utc.rows] == [(noon - DAY, 1), (noon, 3)]
        nepal = await stats.read(tenant, StatsQuery(start, end, "day", zone="Asia/Kathmandu"))  # UTC+5:45
        assert [row.impressions for row in nepal.rows] == [3, 1]
        assert nepal.totals.impressions == utc.totals.impressions == 4
        total = await stats.read(tenant, StatsQuery(start, end, "total"))
        assert [(row.at, row.impressions) for row in total.rows] == [(None, 4)]


async def test_sums_agree_in_every_dimension_and_ratios_are_of_sums(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        campaign = await house.banners.editor.create_campaign(tenant, NewCampaign(name="C"), actor="t")
        place = await house.placement(tenant)
        one, two = await house.banner(tenant, campaign_id=campaign.campaign_id), await house.banner(tenant)
        snapshot = house.catalogue.tenant(tenant)
        first, second = (banner.id for banner in snapshot.banners)
        where, which = next(iter(snapshot.placements)), next(iter(snapshot.campaigns))
        now = house.clock.now_ms()
        events: list[Event] = [Impression(tenant, f"a{n}", now, now, first, where, which) for n in range(10)]
        events += [Impression(tenant, f"b{n}", now, now, second) for n in range(30)]
        events += [Click(tenant, f"c{n}", now, now, first, where, which, destination="/") for n in range(5)]
        events += [Click(tenant, f"d{n}", now, now, second, destination="/", marks=("bot",)) for n in range(7)]
        events += [View(tenant, f"v{n}", now, now, second, user=f"u{n}", dismissed=n < 2) for n in range(4)]
        events += [View(tenant, f"w{n}", now, now, second, user=f"u{n}", counted=False) for n in range(3)]
        await counted(house, events)
        today = house.clock.now().date()
        stats = house.banners.stats
        for by in ((), ("banner",), ("placement",), ("campaign",), ("banner", "placement", "campaign")):
            answer = await stats.read(tenant, StatsQuery(today, today + DAY, "day", by, zone="UTC"))
            totals = answer.totals
            assert (totals.impressions, totals.clicks, totals.views, totals.dismissals) == (40, 5, 4, 2)
            assert (totals.marked_clicks, totals.ctr) == (7, 0.125)
        rows = {row.banner_id: row for row in (await stats.read(
            tenant, StatsQuery(today, today + DAY, "total", ("banner",))
        )).rows}  # fmt: skip
        assert (rows[one.banner_id].ctr, rows[two.banner_id].ctr) == (0.5, 0.0)
        chosen = await stats.read(tenant, StatsQuery(today, today + DAY, placements=(place.placement_id,)))
        assert chosen.totals.impressions == 10
        nothing = await stats.read(tenant, StatsQuery(today, today + DAY, banners=(uuid4(),)))
        assert (nothing.rows, nothing.totals.impressions, nothing.totals.ctr) == ([], 0, None)
        full = await stats.read(tenant, StatsQuery(today, today + DAY, "bucket", ("banner",)))
        table = list(csv.DictReader(io.StringIO(as_csv(full).decode())))
        assert sum(int(row["impressions"]) for row in table) == 40
        assert all(datetime.fromisoformat(row["at"]).minute % 15 == 0 for row in table)


@pytest.mark.parametrize(
    "query",
    [
        StatsQuery(date(2026, 1, 2), date(2026, 1, 2)),
        StatsQuery(date(2020, 1, 1), date(2026, 1, 1)),
        StatsQuery(date(2026, 1, 1), date(2026, 1, 2), zone="Mars/Olympus"),
        StatsQuery(date(2026, 1, 1), date(2026, 1, 2), zone="../etc/passwd"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    database: Database, redis: Redis, tenant: int, query: StatsQuery
) -> None:
    async with loop(database, redis) as house:
        with pytest.raises(Invalid):
            await house.banners.stats.read(tenant, query)


def tasks_of(house: Loop) -> BannerTasks:
    banners = house.banners
    return BannerTasks(
        house.database,
        house.catalogue,
        house.events,
        banners.schedule,
        banners.rollup,
        Outbox(house.redis),
        house.clock,
    )


def job(name: str, data: Any, job_id: str = "job-1") -> Job:
    return Job(id=job_id, wire_id=job_id, queue="banners", name=name, data=data, opts={})


async def test_a_job_and_a_call_with_one_correlation_id_count_once(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        tasks = tasks_of(house)
        place = await house.placement(tenant)
        made = await house.banner(tenant)
        snapshot = house.catalogue.tenant(tenant)
        banner, where = snapshot.banners[0].id, next(iter(snapshot.placements))
        now = house.clock.now_ms()
        by_number = {"bannerId": banner, "placementId": where, "occurredAt": "2026-06-19T10:15:30.000Z"}
        by_number["occurredAt"] = house.clock.now().isoformat()
        await tasks.record(job(RECORD_IMPRESSION, by_number, "same"), None)
        by_name = {"bannerPublicId": str(made.banner_id), "placementPublicId": str(place.placement_id)}
        await tasks.record(job(RECORD_IMPRESSION, {**by_name, "correlationId": "same"}, "another-job"), None)
        await house.events.accept([Impression(tenant, "same", now, now, banner, where)])
        click = {**by_number, "destinationUrl": "https://shop.example.com"}
        await tasks.record(job(RECORD_CLICK, click, "click-1"), None)
        await house.consumer()
        await house.drained()
        today = house.clock.now().date()
        totals = (await house.banners.stats.read(tenant, StatsQuery(today - DAY, today + 2 * DAY))).totals
        assert (totals.impressions, totals.clicks) == (1, 1)


async def test_a_job_with_an_id_that_tells_when_it_was_made_is_ordered_by_it(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with loop(database, redis) as house:
        accepted: list[Event] = []

        async def accept(events: list[Event]) -> None:
            accepted.extend(events)

        monkeypatch.setattr(house.events, "accept", accept)
        place, made = await house.placement(tenant), await house.banner(tenant)
        by_name = {"bannerPublicId": str(made.banner_id), "placementPublicId": str(place.placement_id)}
        ids = ReportIds(house.clock.now_ms)
        names = [f"imp_{ids.new()}" for _ in range(3)]
        for name in reversed(names):
            await tasks_of(house).record(job(RECORD_IMPRESSION, {**by_name, "correlationId": name}, name), None)
        accepted.sort(key=lambda event: getattr(event, "sequence", 0))
        assert [event.id for event in accepted] == names


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (RECORD_IMPRESSION, {"bannerId": 2_000_000_000, "placementId": 1}),
        (RECORD_IMPRESSION, {"bannerId": 10**12, "placementId": 1}),
        (RECORD_IMPRESSION, {"bannerPublicId": "not a uuid"}),
        (RECORD_CLICK, {"bannerId": 1, "placementId": 1}),
        (RECORD_IMPRESSION, "text"),
        (ROLLUP, {"statDate": "yesterday"}),
    ],
)
async def test_a_payload_that_can_never_work_is_not_tried_again(
    database: Database, redis: Redis, tenant: int, name: str, data: Any
) -> None:
    async with loop(database, redis) as house:
        with pytest.raises(Unrecoverable):
            await tasks_of(house).handlers()[name](job(name, data), None)


async def test_the_clocks_jobs_run_and_announce_themselves_by_the_known_ids(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        tasks = tasks_of(house)
        assert set(await tasks.sync(job(SYNC, {"correlationId": "sync-x"}), None)) >= {"banners_activated"}
        assert (await tasks.roll_up(job(ROLLUP, {"statDate": "2001-01-01"}), None))["tenants"] == 0
        minute = await tasks.announce_sync(job("cron.banner_sync", {}), None)
        assert minute.startswith("banner-sync-20")
        assert minute.count(":") == 1
        day = await tasks.announce_rollup(job("cron.banner_rollup", {}), None)
        yesterday = (house.clock.now() - DAY).date().isoformat()
        assert day == f"banner-rollup-{yesterday}"
        async with database.worker() as tx:
            row = (await tx.fetch(ANNOUNCED, day))[0]
        assert (row["name"], json.loads(row["data"])["statDate"]) == (ROLLUP, yesterday)


async def test_a_file_of_history_is_read_in_chunks_and_may_be_given_again(
    database: Database, redis: Redis, tenant: int, tmp_path: Path
) -> None:
    async with loop(database, redis) as house:
        place, made = await house.placement(tenant), await house.banner(tenant)
        good = {
            "bannerPublicId": str(made.banner_id),
            "placementPublicId": str(place.placement_id),
            "occurredAt": "2020-05-01T00:00:00Z",  # long before the horizon: history is allowed to be old
        }
        file = tmp_path / "history.jsonl"
        rows = [json.dumps({**good, "correlationId": f"h{n}"}) for n in range(25)]
        rows.insert(3, "not json")
        rows.insert(9, json.dumps({**good, "bannerPublicId": str(uuid4()), "correlationId": "x"}))
        file.write_text("\n".join(rows) + "\n")
        refused: list[int] = []
        for _ in range(2):
            source = lines(file)
            while chunk := list(islice(source, 10)):
                done = await house.banners.importer.chunk(tenant, "impression", chunk)
                refused += [item.line for item in done.refused]
                source = lines(file, done.offset, done.line)  # as a second start would go on
        assert refused == [4, 10, 4, 10]
        await house.consumer()
        await house.drained()
        async with database.tenant(tenant) as tx:
            assert await tx.fetchval(ROWS, tenant) == 25


async def test_csv_history_keeps_quoted_newlines_together(
    database: Database, redis: Redis, tenant: int, tmp_path: Path
) -> None:
    async with loop(database, redis) as house:
        place, made = await house.placement(tenant), await house.banner(tenant)
        file = tmp_path / "clicks.csv"
        out = io.StringIO(newline="")
        writer = csv.writer(out)
        writer.writerow(["bannerPublicId", "placementPublicId", "correlationId", "destinationUrl", "pageUrl"])
        for n in range(3):
            writer.writerow([made.banner_id, place.placement_id, f"k{n}", "https://x.example", "two\nlines"])
        file.write_text(out.getvalue() + "too,few\n")
        found = list(lines(file))
        assert [line.number for line in found] == [2, 4, 6, 8], "where an editor shows them"
        done = await house.banners.importer.chunk(tenant, "click", found)
        assert (done.sent, [item.line for item in done.refused]) == (3, [8])


async def test_views_of_history_count_for_their_placement(
    database: Database, redis: Redis, tenant: int, tmp_path: Path
) -> None:
    async with loop(database, redis) as house:
        place, made = await house.placement(tenant), await house.banner(tenant)
        seen = {"banner_id": str(made.banner_id), "user_id": "ada", "view_duration_ms": 9000}
        seen |= {"viewed_at": "2020-05-01T12:00:00Z"}
        shown = [{"placement_id": str(place.placement_id)}, {}, {"placement_id": str(uuid4())}]
        file = tmp_path / "views.jsonl"
        file.write_text(
            "".join(json.dumps({**seen, **more, "event_id": f"v{n}"}) + "\n" for n, more in enumerate(shown))
        )
        done = await house.banners.importer.chunk(tenant, "view", list(lines(file)))
        assert (done.sent, [item.line for item in done.refused]) == (2, [3])
        await house.consumer()
        await house.drained()
        query = StatsQuery(date(2020, 5, 1), date(2020, 5, 2), "total", by=("placement",), zone="UTC")
        rows = (await house.banners.stats.read(tenant, query)).rows
        assert {row.placement_id: row.views for row in rows} == {place.placement_id: 1, None: 1}
