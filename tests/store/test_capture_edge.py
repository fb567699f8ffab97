"""What comes in and what does not: quotas, rates, refusals by reason, noisy tenants, bodies too large for the loop."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from handbill.events.capture import Capture, CapturePolicy
from handbill.events.capture_limits import Allowance, Limits
from handbill.events.dialects.canon import Dialect
from handbill.events.dialects.reading import PAYLOAD_BYTES
from handbill.events.edge import Edge, EdgePolicy
from handbill.events.model import CapturedEvent, Dropped, Event, decode
from handbill.infra.journal.port import START
from handbill.infra.journal.spill import SpillPolicy
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Throttled
from handbill.kit.fast import FastReply, FastRequest
from handbill.tenants.service import TenantService
from tests.kit.captured import NothingStored, Sender, new_sender
from tests.kit.clocks import FakeClock
from tests.kit.loop import OwnLanes, own_lanes

DAY_MS = 86_400_000


class Desk:
    """Capturing without HTTP, into lanes of its own."""

    def __init__(self, capture: Capture, sender: Sender, journal: StreamsJournal, lanes: OwnLanes) -> None:
        self.capture, self.sender, self.journal, self.lanes = capture, sender, journal, lanes

    async def own(self, *events: dict[str, Any], **headers: str) -> FastReply:
        body = json.dumps({"api_key": self.sender.write_key, "events": events}).encode()
        return await self.send(Dialect.OWN, "/v1/events", body, **headers)

    async def send(self, dialect: Dialect, path: str, body: bytes, **headers: str) -> FastReply:
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        asked = FastRequest("POST", path, b"", named, body, "203.0.113.77", uuid.uuid4().hex)
        return await self.capture.take(dialect, asked)

    async def kept(self) -> list[tuple[str, Event]]:
        found: list[tuple[str, Event]] = []
        for lane, _ in self.lanes.all():
            after = START
            while entries := await self.journal.read(lane, after, events=10_000):
                after = entries[-1].id
                found += [(lane, decode(body)) for entry in entries for body in entry.bodies]
        return found

    async def events(self) -> list[CapturedEvent]:
        return [event for _, event in await self.kept() if isinstance(event, CapturedEvent)]

    async def drops(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for _, event in await self.kept():
            if isinstance(event, Dropped):
                found[event.reason] += event.n
        return dict(found)


@asynccontextmanager
async def desk(
    database: Database,
    redis: Redis,
    sender: Sender,
    clock: Clock,
    policy: CapturePolicy | None = None,
    edge: EdgePolicy | None = None,
) -> AsyncIterator[Desk]:
    keys, lanes = Keys(f"t{uuid.uuid4().hex[:8]}"), own_lanes()
    journal = StreamsJournal(redis, keys)
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    taken = Edge(journal, lanes, database, clock, edge)
    capture = Capture(taken, tenants.directory, Allowance(redis, keys, clock), NothingStored(), clock, policy)
    await capture.start()
    try:
        yield Desk(capture, sender, journal, lanes)
    finally:
        await capture.stop()
        await journal.stop()
        await tenants.stop()


def event(number: int = 0, **more: Any) -> dict[str, Any]:
    return {"event": "seen", "distinct_id": f"user-{number % 7}", "event_id": f"e-{number}", **more}


def told(reply: FastReply) -> tuple[int, Any]:
    return reply.status, json.loads(reply.body) if reply.body else None


async def test_over_the_days_quota_clients_hear_success_and_the_tenant_hears_why(
    database: Database, redis: Redis, tenant: int
) -> None:
    sender = await new_sender(database, redis, tenant, limits={"events_per_day": 25})
    clock = FakeClock()
    async with desk(database, redis, sender, clock) as here:
        ten = [event(number) for number in range(10)]
        for _ in range(3):  # the third finds room for five, and is taken whole
            assert told(await here.own(*ten)) == (202, {"accepted": 10, "dropped": []})
        limited = {"accepted": 0, "dropped": [], "quota_limited": True}
        assert told(await here.own(*ten)) == (200, limited)
        key = sender.write_key
        batch = json.dumps({"api_key": key, "batch": [event(1)]}).encode()
        assert told(await here.send(Dialect.POSTHOG, "/batch/", batch)) == (
            200, {"status": 1, "quota_limited": ["events"]},
        )  # fmt: skip
        messages = json.dumps({"writeKey": key, "batch": [{"type": "track", "event": "x", "userId": "u"}] * 2}).encode()
        assert told(await here.send(Dialect.SEGMENT, "/v1/batch", messages)) == (200, {"success": True})
        assert len(await here.events()) == 30
        assert await here.drops() == {"QUOTA": 13}
        clock.advance(days=1)
        assert told(await here.own(event(99))) == (202, {"accepted": 1, "dropped": []})


async def test_a_tenants_rate_asks_for_patience_and_never_refuses_a_large_batch_for_good(
    database: Database, redis: Redis, tenant: int, make_tenant: Any
) -> None:
    sender = await new_sender(database, redis, tenant)
    clock = FakeClock()
    policy = CapturePolicy(limits=Limits(per_second=10))
    async with desk(database, redis, sender, clock, policy) as here:
        assert (await here.own(*[event(number) for number in range(50)])).status == 202
        with pytest.raises(Throttled) as refused:
            await here.own(event(50))
        assert refused.value.code == "TENANT_THROTTLED"
        assert refused.value.retry_after is not None
        assert 3.9 < refused.value.retry_after < 4.1
        assert len(await here.events()) == 50
        assert await here.drops() == {}, "it will be sent again: no drop"
        clock.advance(seconds=refused.value.retry_after)
        assert (await here.own(event(50))).status == 202


async def test_two_processes_share_one_quota_and_one_rate(redis: Redis, unique: Any) -> None:
    """Whoever sends how much where: no more than the limit and one batch comes in, and no less than the limit."""
    dice, clock, keys = random.Random(11), FakeClock(), Keys(unique("t").replace("-", ""))
    several = [Allowance(redis, keys, clock) for _ in range(2)]
    quota = Limits(per_day=20_000)
    admitted, largest = 0, 300
    while True:
        count = dice.randint(1, largest)
        if not await dice.choice(several).admits(1, count, quota):
            break
        admitted += count
    assert 20_000 - 2 * quota.lease <= admitted < 20_000 + 2 * largest
    assert not any([await one.admits(1, 1, quota) for one in several])
    slow, small = 0, Limits(per_day=1_000)
    while await several[0].admits(3, 1, small):  # one now and then: what is taken ahead is not lost between
        clock.advance(seconds=2)
        slow += 1
    assert slow == 1_000

    rate, admitted, refused = Limits(per_second=1_000), 0, 0
    for _ in range(500):
        clock.advance(ms=20)
        count = dice.randint(1, 80)
        try:
            assert await dice.choice(several).admits(2, count, rate)
            admitted += count
        except Throttled:
            refused += 1
    assert refused > 0
    allowed = 1_000 * 10 + 1_000  # ten seconds, and what a full bucket held
    assert allowed * 0.9 <= admitted <= allowed + 2 * 80 + 2 * rate.lease


async def test_every_refused_event_is_counted_under_its_reason(
    database: Database, redis: Redis, tenant: int, make_tenant: Any
) -> None:
    sender = await new_sender(database, redis, tenant, respect_dnt=True)
    clock = FakeClock()
    async with desk(database, redis, sender, clock) as here:
        old = clock.now_ms() - 36 * DAY_MS
        sent = [event(1), {"event": "seen"}, event(3, timestamp=old), event(4, distinct_id="null"), event(5), {}]
        reasons = [(1, "MISSING_DISTINCT_ID"), (2, "TOO_OLD"), (3, "ILLEGAL_DISTINCT_ID"), (5, "MISSING_EVENT_NAME")]
        notes = [{"index": index, "reason": reason} for index, reason in reasons]
        assert told(await here.own(*sent)) == (202, {"accepted": 2, "dropped": notes})
        assert told(await here.own({}, {}))[0] == 400
        merged = event(6, event="$identify", anonymous_id="null")
        assert (await here.own(merged)).status == 202
        asked = await here.own(event(7), event(8), sec_gpc="1")
        untracked = [{"index": index, "reason": "DO_NOT_TRACK"} for index in (0, 1)]
        assert told(asked) == (202, {"accepted": 0, "dropped": untracked})
        assert {one.id for one in await here.events()} == {"e-1", "e-5", "e-6"}
        assert await here.drops() == {
            "MISSING_DISTINCT_ID": 1, "TOO_OLD": 1, "ILLEGAL_DISTINCT_ID": 1, "MISSING_EVENT_NAME": 3,
            "ILLEGAL_MERGE": 1, "DO_NOT_TRACK": 2,
        }  # fmt: skip


async def test_what_is_called_a_migration_of_history_may_be_old(database: Database, redis: Redis, tenant: int) -> None:
    sender = await new_sender(database, redis, tenant)
    clock = FakeClock()
    async with desk(database, redis, sender, clock) as here:
        for historical in (True, False):
            told = {
                "event": "seen",
                "uuid": f"h-{historical}",
                "distinct_id": "ada",
                "timestamp": "2020-01-01T00:00:00Z",
            }
            body = {"api_key": sender.write_key, "batch": [told], "historical_migration": historical}
            assert (await here.send(Dialect.POSTHOG, "/batch/", json.dumps(body).encode())).status == 200
        assert [event.id for event in await here.events()] == ["h-True"]
        assert await here.drops() == {"TOO_OLD": 1}


async def test_the_fattest_event_fits_the_journal_and_a_fatter_one_is_refused_alone(
    database: Database, redis: Redis, tenant: int
) -> None:
    """One event must never be the reason why its whole request is refused."""
    sender = await new_sender(database, redis, tenant)

    def fat(number: int, size: int) -> dict[str, Any]:
        wide, small = "\U0001f3ee" * 2_000, "\U0001f3ee" * 200
        named = {"$current_url": wide, "$referrer": wide, "$raw_user_agent": wide}
        named |= dict.fromkeys(("$browser", "$browser_version", "$os", "$os_version", "$device_type"), small)
        named |= dict.fromkeys(("$session_id", "$browser_language", "$timezone", "$lib", "$anon_distinct_id"), small)
        room = size - len(json.dumps({**named, "text": ""}, ensure_ascii=False, separators=(",", ":")).encode())
        return {
            "event": "$identify", "uuid": small[:198] + f"{number:02}", "distinct_id": small[:198] + f"{number:02}",
            "properties": {**named, "text": "x" * room},
        }  # fmt: skip

    async with desk(database, redis, sender, FakeClock()) as here:
        batch = [fat(1, PAYLOAD_BYTES), fat(2, PAYLOAD_BYTES + 1), {"event": "seen", "distinct_id": "ada"}]
        sent = {"api_key": sender.write_key, "batch": batch}
        body = json.dumps(sent, ensure_ascii=False, separators=(",", ":")).encode()
        assert (await here.send(Dialect.POSTHOG, "/batch/", body)).status == 200
        assert sorted(event.name for event in await here.events()) == ["$identify", "seen"]
        assert await here.drops() == {"EVENT_TOO_LARGE": 1}


async def test_what_is_left_out_of_events_that_are_kept_is_counted_for_their_tenant(
    database: Database, redis: Redis, tenant: int
) -> None:
    sender = await new_sender(database, redis, tenant)
    async with desk(database, redis, sender, FakeClock()) as here:
        cut = [
            event(0, properties={"x" * 201: 1, "y" * 201: 2}),
            event(1, user_properties={"$set": {"b": "x" * 9_000}}),
        ]
        status, reply = told(await here.own(*cut, event(2), event(3, distinct_id="x" * 201)))
        assert (status, reply["accepted"]) == (202, 3)
        assert reply["warnings"] == [
            {"index": 0, "reason": "PROPERTY_NAME_UNUSABLE"}, {"index": 1, "reason": "PROPERTY_TOO_LARGE"},
        ]  # fmt: skip
        named = {"event": "x" * 201, "distinct_id": "ada", "properties": {"$process_person_profile": False, "$set": {}}}
        body = json.dumps({"api_key": sender.write_key, "batch": [named]}).encode()
        assert told(await here.send(Dialect.POSTHOG, "/batch/", body)) == (200, {"status": 1})
        assert len(await here.events()) == 4
        assert await here.drops() == {
            "DISTINCT_ID_TOO_LARGE": 1, "EVENT_NAME_CUT": 1, "PERSON_PROFILE_OFF": 1, "PROPERTY_NAME_UNUSABLE": 1,
            "PROPERTY_TOO_LARGE": 1,
        }  # fmt: skip


async def test_a_noisy_tenant_spills_while_the_quiet_one_keeps_its_lanes(
    database: Database, redis: Redis, tenant: int
) -> None:
    sender = await new_sender(database, redis, tenant)
    spill = SpillPolicy(floor=100, share=0.5, tau_s=1.0, hold_s=10.0)
    async with desk(database, redis, sender, FakeClock(), edge=EdgePolicy(spill=spill)) as here:
        await here.own(*[event(number) for number in range(50)])
        assert not any(here.lanes.is_overflow(lane) for lane, _ in await here.kept())
        await here.own(*[event(number) for number in range(50, 300)])
        spilled = {one.id for lane, one in await here.kept() if here.lanes.is_overflow(lane)}
        assert len(spilled) >= 150
        assert len(await here.events()) == 300


async def test_a_large_body_is_read_aside_in_pieces_and_only_so_many_at_a_time(
    database: Database, redis: Redis, tenant: int
) -> None:
    sender = await new_sender(database, redis, tenant)
    policy = CapturePolicy(threads=1, waiting=2)
    async with desk(database, redis, sender, FakeClock(), policy) as here:
        many = [
            {"event": "seen", "uuid": f"e-{number}", "distinct_id": "ada", "properties": {"text": "x" * 2_000}}
            for number in range(6_000)
        ]
        whole = json.dumps({"api_key": sender.write_key, "batch": many}).encode()
        assert len(whole) > 12_000_000
        sending = [
            asyncio.create_task(here.send(Dialect.POSTHOG, "/batch/", body))
            for body in (whole, gzip.compress(whole, 1), whole)
        ]
        done = await asyncio.gather(*sending, return_exceptions=True)
        busy = [one for one in done if isinstance(one, Busy)]
        assert [one.code for one in busy] == ["CAPTURE_BUSY"]
        assert [told(one) for one in done if isinstance(one, FastReply)] == [(200, {"status": 1})] * 2
        assert Counter(one.id for one in await here.events()) == {f"e-{number}": 2 for number in range(6_000)}
