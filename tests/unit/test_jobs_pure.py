"""The pure parts of jobs: ids on the wire, delays, options, slots of a cron pattern."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.jobs import backoff, options
from handbill.jobs.cron import late_by, next_slot
from handbill.jobs.defaults import TABLE, QueueDefaults, defaults_of
from handbill.jobs.keys import QueueKeys
from handbill.jobs.model import Backoff, Deduplication, Job, JobOptions, Keep, NewJob, read_job
from handbill.jobs.wire import from_wire, to_wire
from handbill.kit.clock import to_ms
from handbill.kit.errors import Invalid

IDS = st.text(st.sampled_from("ab25E%.:-_é "), min_size=1, max_size=12)


@given(IDS)
def test_an_id_comes_back_from_the_wire_and_has_no_colon_there(job_id: str) -> None:
    wire = to_wire(job_id)
    assert from_wire(wire) == job_id
    assert ":" not in wire


@given(IDS, IDS)
def test_two_ids_never_share_one_wire_form(one: str, other: str) -> None:
    assert (to_wire(one) == to_wire(other)) == (one == other)


def test_the_ruled_forms() -> None:
    assert to_wire("banner-sync-2026-06-19T10:15") == "banner-sync-2026-06-19T10.15"
    assert to_wire("banner-rollup-2026-06-19") == "banner-rollup-2026-06-19"
    assert to_wire("sync:a:b:c:d") == "sync.a.b.c.d"
    assert to_wire("repeat:hourly:1700000000000") == "repeat:hourly:1700000000000"
    assert from_wire("repeat:hourly:1700000000000") == "repeat:hourly:1700000000000"


def test_delays_of_each_kind() -> None:
    steps = Backoff("list", delays_ms=(60_000, 300_000, 900_000))
    assert [backoff.delay_ms(steps, n) for n in (1, 2, 3, 4)] == [60_000, 300_000, 900_000, 900_000]
    doubling = Backoff("exponential", delay_ms=1_000)
    assert [backoff.delay_ms(doubling, n) for n in (1, 2, 3)] == [1_000, 2_000, 4_000]
    assert backoff.delay_ms(Backoff("fixed", delay_ms=700), 9) == 700
    assert backoff.delay_ms(None, 1) == 0
    assert backoff.delay_ms(Backoff("list"), 1) == 0


@given(
    st.sampled_from(["fixed", "exponential", "jitter", "list"]),
    st.integers(0, 10**12),
    st.lists(st.integers(0, 10**9), max_size=4),
    st.floats(0, 1),
    st.integers(1, 10_000),
    st.randoms(use_true_random=False),
)
def test_a_delay_is_never_negative_nor_endless(
    kind: str, delay: int, delays: list[int], jitter: float, attempt: int, draws: random.Random
) -> None:
    policy = Backoff(kind, delay_ms=delay, delays_ms=tuple(delays), jitter=jitter)  # type: ignore[arg-type]
    found = backoff.delay_ms(policy, attempt, draws.random)
    assert 0 <= found <= backoff.CEILING_MS
    again = backoff.from_wire(backoff.to_wire(policy))
    assert again is not None
    assert backoff.delay_ms(again, attempt, lambda: 0.5) == backoff.delay_ms(policy, attempt, lambda: 0.5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["attempts", "backoff", "tenant", "timeout", "removeOnFail", "repeat", "lifo"]), JSON
    ),
    st.dictionaries(st.sampled_from([b"data", b"progress", b"stacktrace", b"atm", b"delay", b"defa"]), st.binary()),
)
def test_whatever_another_program_wrote_can_be_read(opts: dict[str, object], fields: dict[bytes, bytes]) -> None:
    job = read_job("q", "7", {**fields, b"opts": msgspec.json.encode(opts)})
    assert job.attempts >= 1
    assert job.timeout_ms is None or job.timeout_ms > 0
    assert job.tenant_id is None or isinstance(job.tenant_id, int)
    policy = backoff.from_wire(job.opts.get("backoff"))
    assert backoff.delay_ms(policy, 1) >= 0
    assert options.keep_jobs(job.opts.get("removeOnFail"), Keep(count=5))


def test_options_fill_in_the_queues_defaults_and_survive_json() -> None:
    opts = JobOptions(job_id="a:b", deduplication=Deduplication("d", ttl_ms=5), keep_completed=Keep(age_s=60))
    assert msgspec.convert(msgspec.to_builtins(opts), JobOptions) == opts
    new = NewJob("n", {"x": 1}, opts, 7)
    assert msgspec.convert(msgspec.to_builtins(new), NewJob) == new
    wire = options.encode(opts, QueueDefaults(attempts=4), 7)
    assert wire["attempts"] == 4
    assert wire["tenant"] == 7
    assert wire["de"] == {"id": "d", "ttl": 5}
    assert wire["removeOnComplete"] == {"age": 60}
    assert "lifo" not in wire


def test_keep_in_all_of_bullmqs_forms() -> None:
    queue = Keep(count=9)
    kept = {True: {"count": 0}, False: {"count": -1}, 100: {"count": 100}}
    for given_, wanted in kept.items():
        assert options.keep_jobs(given_, queue) == wanted
    assert options.keep_jobs({"age": 60}, queue) == {"age": 60}
    assert options.keep_jobs(None, queue) == {"count": 9}


@pytest.mark.parametrize(
    ("name", "opts", "field"),
    [
        ("", JobOptions(), "name"),
        ("n", JobOptions(job_id="123"), "job_id"),
        ("n", JobOptions(job_id=""), "job_id"),
        ("n", JobOptions(delay_ms=-1), "delay_ms"),
        ("n", JobOptions(priority=3_000_000), "priority"),
        ("n", JobOptions(attempts=0), "attempts"),
    ],
)
def test_options_that_cannot_work_are_refused(name: str, opts: JobOptions, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        options.check(name, opts)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_every_queue_of_the_table_can_work() -> None:
    for name, row in TABLE.items():
        assert defaults_of(name) is row
        assert row.attempts >= 1
        assert row.concurrency >= 1
        assert row.keep_failed.count, "dead letters are read from the failed set"
    assert defaults_of("stats-sync").attempts == 4


def test_a_workers_name_is_what_bull_board_looks_for() -> None:
    assert QueueKeys("bull", "mail").client_name() == "bull:bWFpbA=="
    assert QueueKeys("bull", "mail").client_name("w1") == "bull:bWFpbA==:w:w1"


def ms(text: str) -> int:
    from datetime import datetime

    return to_ms(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("pattern", "zone", "after", "found"),
    [
        ("*/5 * * * *", "UTC", "2026-06-19T10:02:30+00:00", "2026-06-19T10:05:00+00:00"),
        ("*/5 * * * *", "UTC", "2026-06-19T10:05:00+00:00", "2026-06-19T10:10:00+00:00"),
        ("*/10 * * * * *", None, "2026-06-19T10:02:31+00:00", "2026-06-19T10:02:40+00:00"),
        ("30 1 * * *", "Asia/Kathmandu", "2026-06-19T00:00:00+00:00", "2026-06-19T19:45:00+00:00"),
        ("30 9 * * *", "Europe/Berlin", "2026-03-28T12:00:00+00:00", "2026-03-29T07:30:00+00:00"),
        ("30 9 * * *", "Europe/Berlin", "2026-10-24T12:00:00+00:00", "2026-10-25T08:30:00+00:00"),
    ],
)
def test_the_next_slot_in_its_own_time_zone(pattern: str, zone: str | None, after: str, found: str) -> None:
    assert next_slot(pattern, zone, ms(after)) == ms(found)


def test_what_is_no_schedule_says_so() -> None:
    for pattern, zone in (("61 * * * *", "UTC"), ("* * * * *", "Mars/Olympus"), ("words", None)):
        with pytest.raises(Invalid, match="not a schedule"):
            next_slot(pattern, zone, 0)


@given(st.text(max_size=10), st.integers(0, 2**41), st.integers(0, 10**6))
def test_jitter_depends_on_nothing_but_the_slot(scheduler: str, slot: int, jitter: int) -> None:
    late = late_by(scheduler, slot, jitter)
    assert late == late_by(scheduler, slot, jitter)
    assert 0 <= late < max(jitter, 1)


def test_a_job_knows_its_tenant_and_outbox_row() -> None:
    job = read_job("q", "a.b", {b"name": b"n", b"data": b"[1]", b"opts": b'{"tenant":7,"outbox":"o","attempts":0}'})
    assert isinstance(job, Job)
    assert (job.id, job.tenant_id, job.outbox_id, job.attempts, job.data) == ("a:b", 7, "o", 1, [1])
