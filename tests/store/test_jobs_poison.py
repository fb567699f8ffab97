"""Jobs that nobody can read fail alone: their neighbours run, their bytes are kept, and the worker lives on."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.jobs.model import Job
from handbill.jobs.payloads import KEPT_BYTES
from handbill.jobs.queue import Queue, Queues
from handbill.jobs.records import Filter
from handbill.jobs.service import JobsService
from handbill.jobs.worker import JobContext
from handbill.jobs.worker.calls import Calls
from handbill.jobs.worker.doorbell import Doorbell
from handbill.jobs.worker.renewal import Renewal
from handbill.kit import tasks
from tests.kit.audit import RecordedAudit
from tests.kit.waiting import eventually, soon
from tests.kit.working import reaches, working

DEEP = b"[" * 100_000 + b"]" * 100_000
POISON: dict[str, dict[bytes, bytes]] = {
    "deep data": {b"data": DEEP},
    "data as deep as can be decoded": {b"data": b'{"a":' * 800 + b"1" + b"}" * 800},
    "data that is not UTF-8": {b"data": b'"\xff\xfe"'},
    "bytes": {b"data": b"\xff\x00\xfe"},
    "deep options": {b"opts": DEEP},
    "options that are not UTF-8": {b"opts": b'{"attempts":3,"x":"\xff"}'},
    "both": {b"data": DEEP, b"opts": b"\xff"},
}


@pytest.fixture
def queue(redis: Redis, unique: Callable[[str], str]) -> Queue:
    return Queues(redis).queue(unique("poison"))


async def add_poison(queue: Queue, name: str, fields: dict[bytes, bytes]) -> str:
    """A job that another program wrote, ready to be claimed."""
    added = await queue.add(name, {"fine": True})
    flat = [part for pair in fields.items() for part in pair]
    await queue.redis.call("HSET", queue.keys.job(added.id), *flat)
    return added.id


@pytest.mark.parametrize("name", sorted(POISON))
async def test_a_job_that_cannot_be_read_fails_alone(queue: Queue, name: str) -> None:
    ran: list[Any] = []

    async def handler(job: Job, _: JobContext) -> None:
        ran.append(job.data)

    poison = await add_poison(queue, name, POISON[name])
    fine = [await queue.add("fine", number) for number in range(2)]
    async with working(queue, handler, concurrency=1) as worker:
        failed = await reaches(queue, poison, "failed")
        for added in fine:
            await reaches(queue, added.id, "completed")
        assert worker._dispatcher._task is not None
        assert not worker._dispatcher._task.done()
    assert sorted(ran) == [0, 1]
    assert "cannot be read" in (failed.failed_reason or "")
    assert failed.unreadable is not None
    assert failed.attempts_made == 1, "trying again would not help"
    if b"data" in POISON[name]:
        assert base64.b64decode(failed.data[KEPT_BYTES]) == POISON[name][b"data"]


async def test_its_dead_letter_has_its_bytes_a_reason_and_a_way_back(database: Database, queue: Queue) -> None:
    jobs = JobsService(database, queue.redis, audit=RecordedAudit())
    ran: list[Any] = []

    async def handler(job: Job, _: JobContext) -> None:
        ran.append(job.data)

    ids = {name: await add_poison(queue, name, fields) for name, fields in POISON.items()}
    async with working(queue, handler):
        for job_id in ids.values():
            await reaches(queue, job_id, "failed")
        listed = await jobs.list_jobs(queue.name, "failed", None, None, 50)
        for view in [*listed.items, *[await jobs.job(queue.name, job_id, None) for job_id in ids.values()]]:
            assert len(msgspec.json.encode(view)) < 10_000
        assert {view.id for view in listed.items} == set(ids.values())
        await jobs.ledger.read_all(queue.name)
        page = await jobs.dead.page(Filter(queue=queue.name), None, 50)
        letters = {letter.job_id: letter for letter in page.items}
        assert letters.keys() == set(ids.values())
        for name, job_id in ids.items():
            assert "cannot be read" in letters[job_id].reason
            msgspec.json.encode(letters[job_id])
            if b"data" in POISON[name]:
                assert base64.b64decode(letters[job_id].data[KEPT_BYTES]) == POISON[name][b"data"]
        assert "\\xff" in letters[ids["options that are not UTF-8"]].reason
        assert ran == []

        assert await jobs.dead.redrive(Filter(queue=queue.name, status="dead"), actor="test") == len(ids)
        await jobs.relay.serve(queue.name)
        fixed = {name for name, fields in POISON.items() if b"data" not in fields}
        await eventually(lambda: len(ran) == len(fixed), what="jobs with unreadable options run with the usual ones")
        await eventually_failed(queue, len(POISON) - len(fixed))
        again = [job for job in await queue.list("failed", 0, 49) if job.unreadable is not None]
        assert sorted(base64.b64decode(job.data[KEPT_BYTES]) for job in again) == sorted(
            fields[b"data"] for fields in POISON.values() if b"data" in fields
        ), "as they were"


async def eventually_failed(queue: Queue, count: int) -> None:
    async def there() -> bool:
        return (await queue.counts()).failed == count

    await eventually(there, what=f"{count} jobs failed")


async def test_the_dispatcher_outlives_any_error(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.001)
    real, errors = Calls.claim, [RecursionError("too deep"), ValueError("odd"), KeyError("x")]

    async def claim(self: Calls, token: str, *, again: bool = False) -> Any:
        if errors:
            raise errors.pop()
        return await real(self, token, again=again)

    monkeypatch.setattr(Calls, "claim", claim)

    async def handler(job: Job, _: JobContext) -> None: ...

    added = await queue.add("fine", 1)
    async with working(queue, handler) as worker:
        await reaches(queue, added.id, "completed")
        assert errors == []
        assert worker.health.done == 1


async def test_sweep_listener_and_renewal_outlive_any_error(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    swept, listened, renewed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def breaking(real: Any, done: Callable[[], object]) -> Any:
        calls = 0

        async def call(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise RuntimeError("nobody thought of this")
            done()
            return await real(*given, **named)

        return call

    monkeypatch.setattr(Calls, "sweep", breaking(Calls.sweep, swept.set))
    monkeypatch.setattr(Renewal, "_round", breaking(Renewal._round, lambda: loop.call_soon_threadsafe(renewed.set)))
    hungry = Doorbell.ring
    rings = 0

    def ring(self: Doorbell) -> None:
        nonlocal rings
        rings += 1
        if rings == 1:
            raise RuntimeError("nobody thought of this")
        listened.set()
        hungry(self)

    monkeypatch.setattr(Doorbell, "ring", ring)

    async def handler(job: Job, _: JobContext) -> None: ...

    async with working(queue, handler, stalled_ms=20, lock_ms=300):
        for seen in (swept, listened, renewed):
            await soon(seen.wait())
        added = await queue.add("fine", 1)
        await reaches(queue, added.id, "completed")


async def test_one_queue_whose_keys_are_broken_costs_no_other_its_locks(
    redis: Redis, unique: Callable[[str], str]
) -> None:
    queues = Queues(redis)
    broken, sound = queues.queue(unique("broken")), queues.queue(unique("sound"))
    release = asyncio.Event()

    async def handler(job: Job, _: JobContext) -> None:
        await release.wait()

    async with working(broken, handler, lock_ms=300, stalled_ms=60_000) as first:
        stuck = await broken.add("held", 1)
        await reaches(broken, stuck.id, "active")
        async with working(sound, handler, lock_ms=300, stalled_ms=60_000) as second:
            added = await sound.add("held", 1)
            await reaches(sound, added.id, "active")
            await redis.call("SET", broken.keys["stalled"], "not a set")
            renewals = 0
            real = second._holdings.report

            def report(lost: Sequence[str], aborted: Sequence[tuple[str, str]]) -> None:
                nonlocal renewals
                renewals += 1
                real(lost, aborted)

            second._holdings.report = report  # type: ignore[method-assign]
            await eventually(lambda: renewals >= 3, what="the sound queue's lock is renewed")
            await redis.call("DEL", broken.keys["stalled"])
            release.set()
            await reaches(sound, added.id, "completed")
        assert first._dispatcher._task is not None
        assert not first._dispatcher._task.done()


ODD_IDS = (b"\xff\xfe", b"order-\xc3", b"nul-\x00-inside")
ODD_PARENTS = {
    "no JSON": b"{half",
    "no object": b"7",
    "no queue": b'{"id":"1"}',
    "no text": b'{"id":1,"queueKey":{}}',
    "not UTF-8": b'{"id":"1","queueKey":"\xff"}',
    "deep": DEEP,
    "another one": b'{"id":"1","queueKey":"bull:other"}',
}


async def add_with_id(queue: Queue, wire_id: bytes) -> None:
    """What another program writes that does not mind what an id is."""
    added = await queue.add("odd", {"fine": True})
    key, base = queue.keys.job(added.id), queue.keys.base.encode()
    await queue.redis.call("RENAME", key, base + wire_id)
    await queue.redis.call("LREM", queue.keys["wait"], 1, added.id)
    await queue.redis.call("LPUSH", queue.keys["wait"], wire_id)


async def test_a_job_whose_id_cannot_be_read_becomes_a_dead_letter(database: Database, queue: Queue) -> None:
    jobs = JobsService(database, queue.redis, audit=RecordedAudit())
    ran: list[Any] = []

    async def handler(job: Job, _: JobContext) -> None:
        ran.append(job.data)

    for wire_id in ODD_IDS:
        await add_with_id(queue, wire_id)
    fine = await queue.add("fine", 1)
    async with working(queue, handler, concurrency=1):
        await reaches(queue, fine.id, "completed")
        await eventually_failed(queue, len(ODD_IDS))
    assert ran == [1]
    await jobs.ledger.read_all(queue.name)
    letters = (await jobs.dead.page(Filter(queue=queue.name), None, 50)).items
    assert len(letters) == len(ODD_IDS)
    for letter in letters:
        assert letter.job_id.startswith("unreadable-")
        assert "id cannot be read" in letter.reason
        assert letter.data == {"fine": True}
    assert any("\\xff\\xfe" in letter.reason for letter in letters)
    assert await queue.redis.call("LLEN", queue.keys["active"]) == 0
    assert await jobs.dead.redrive(Filter(queue=queue.name, status="dead"), actor="test") == len(ODD_IDS)
    await jobs.relay.serve(queue.name)
    async with working(queue, handler):
        await eventually(lambda: len(ran) == 1 + len(ODD_IDS), what="they run under their new ids")


@pytest.mark.parametrize("name", sorted(ODD_PARENTS))
async def test_a_job_whose_parent_cannot_be_read_becomes_a_dead_letter(
    database: Database, queue: Queue, name: str
) -> None:
    jobs = JobsService(database, queue.redis, audit=RecordedAudit())
    ran: list[Any] = []

    async def handler(job: Job, _: JobContext) -> None:
        ran.append(job.data)

    odd = await queue.add("odd", {"fine": True})
    fields = {b"parent": ODD_PARENTS[name], b"parentKey": b"bull:parents:1"}
    await queue.redis.call("HSET", queue.keys.job(odd.id), *(part for pair in fields.items() for part in pair))
    fine = await queue.add("fine", 1)
    async with working(queue, handler, concurrency=1):
        failed = await reaches(queue, odd.id, "failed")
        await reaches(queue, fine.id, "completed")
    assert ran == [1]
    assert "parent cannot be read" in (failed.failed_reason or "")
    await jobs.ledger.read_all(queue.name)
    [letter] = (await jobs.dead.page(Filter(queue=queue.name), None, 50)).items
    assert (letter.job_id, letter.data) == (odd.id, {"fine": True})


async def test_a_job_with_a_sound_parent_reports_to_it(queue: Queue) -> None:
    async def handler(job: Job, _: JobContext) -> None: ...

    parent = queue.keys.job("parent")
    child = await queue.add("child", 1)
    key = queue.keys.job(child.id)
    link = msgspec.json.encode({"id": "parent", "queueKey": queue.keys.base.rstrip(":")})
    await queue.redis.call("HSET", key, "parent", link, "parentKey", parent)
    await queue.redis.call("SADD", f"{parent}:dependencies", key)
    async with working(queue, handler):
        await reaches(queue, child.id, "completed")
    assert await queue.redis.call("HGET", f"{parent}:processed", key) == b"null"


async def test_the_end_of_a_job_with_a_nul_in_its_id_does_not_stop_the_dead_letters_of_its_queue(
    database: Database, queue: Queue
) -> None:
    """As a worker of another program ends it."""
    jobs = JobsService(database, queue.redis, audit=RecordedAudit())
    for wire_id in (b"nul-\x00-inside", b"fine"):
        end = ("event", "failed", "jobId", wire_id, "failedReason", "it broke")
        await queue.redis.call("XADD", queue.keys["events"], "*", *end)
        await queue.redis.call("ZADD", queue.keys["failed"], 1_000, wire_id)
    await jobs.ledger.read_all(queue.name)
    await jobs.ledger.reconcile(queue.name)
    letters = (await jobs.dead.page(Filter(queue=queue.name), None, 50)).items
    assert sorted(letter.job_id for letter in letters) == ["fine", "nul-\ufffd-inside"]
