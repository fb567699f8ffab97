"""Clock, ids and retries: pure, so they are tested with made-up time and dice."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.kit.clock import SystemClock, from_ms, to_ms
from handbill.kit.ids import Ids, new_id
from handbill.kit.retry import CLICKHOUSE, DEFINITIONS, POSTGRES, Retry, retrying


class Clock(SystemClock):
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms


@given(st.integers(min_value=-(10**13), max_value=10**14))
def test_milliseconds_survive_the_way_there_and_back(ms: int) -> None:
    when = from_ms(ms)
    assert to_ms(when) == ms
    assert when.utcoffset() == timedelta(0)
    assert to_ms(when + timedelta(microseconds=999)) == ms


def test_the_system_clock_agrees_with_itself() -> None:
    clock = SystemClock()
    assert abs(to_ms(clock.now()) - clock.now_ms()) < 60_000
    assert clock.now().tzinfo is UTC
    assert clock.monotonic() <= clock.monotonic()


@given(st.integers(min_value=0, max_value=2**48 - 2**13))
def test_an_id_carries_its_time_and_its_kind(ms: int) -> None:
    made = Ids(Clock(ms)).new()
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == ms


def test_ids_of_one_process_are_ordered_even_when_the_clock_stands_or_goes_back() -> None:
    clock = Clock(1_000_000)
    ids = Ids(clock, random=lambda n: b"\x00" * n)  # no luck involved
    made = [ids.new() for _ in range(10_000)]
    clock.ms -= 5_000
    made += [ids.new() for _ in range(10)]
    clock.ms += 50_000
    made.append(ids.new())
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_of_many_threads_are_different() -> None:
    made: list[uuid.UUID] = []
    threads = [threading.Thread(target=lambda: made.extend(new_id() for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 2_000


@given(st.integers(1, 9), st.floats(0, 1))
def test_a_delay_stays_within_its_spread(attempt: int, dice: float) -> None:
    policy = Retry(tries=10, delay_ms=1_000, jitter=0.2)
    assert 0.8 <= policy.delay(attempt, lambda: dice) <= 1.2


@pytest.mark.parametrize(("failures", "final"), [(0, False), (2, False), (3, True), (9, True)])
async def test_retrying_is_bounded(failures: int, final: bool) -> None:
    calls, waits = 0, []

    async def work() -> str:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise OSError(calls)
        return "done"

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    attempt = retrying(Retry(tries=3, delay_ms=100), work, lambda error: isinstance(error, OSError), sleep)
    if final:
        with pytest.raises(OSError, match="3"):
            await attempt
    else:
        assert await attempt == "done"
    assert calls == min(failures + 1, 3)
    assert len(waits) == calls - 1


async def test_what_is_not_worth_a_retry_goes_up_at_once() -> None:
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("poison")

    with pytest.raises(ValueError, match="poison"):
        await retrying(POSTGRES, work, lambda error: isinstance(error, OSError))
    assert calls == 1


def test_the_presets_are_those_the_engines_were_given() -> None:
    assert (CLICKHOUSE.tries, CLICKHOUSE.delay_ms) == (3, 1_000)
    assert (POSTGRES.tries, POSTGRES.delay_ms) == (3, 200)
    assert (DEFINITIONS.tries, DEFINITIONS.delay_ms) == (3, 50)
