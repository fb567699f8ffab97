"""The fake server's limits against a count that a child could follow, over its own log."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from handbill.fake_graph.model import FIRST_NUMBER, Config, Number
from tests.kit.graph import NUMBER, StillClock, graph

DAY = 86_400_000
CONFIG = Config(
    numbers=(Number(NUMBER, per_second=4), Number(str(FIRST_NUMBER + 1), per_second=2, display="15550000009")),
    tiers={"300000000000001": 3},
    pair_interval_ms=6_000,
    pair_burst=3,
)


def naive(log: list[dict[str, Any]]) -> list[int]:
    """What each line should have been, looking only at the lines before it that were taken."""
    taken: list[dict[str, Any]] = []
    expected: list[int] = []
    for line in log:
        now = line["at_ms"]
        mine = [one for one in taken if one["number"] == line["number"]]
        pair = [one["at_ms"] for one in mine if one["to"] == line["to"]]
        limit = 4 if line["number"] == NUMBER else 2
        day = {one["to"] for one in taken if now - one["at_ms"] < DAY}
        if sum(now - one["at_ms"] < 1000 for one in mine) >= limit:
            code = 130429
        elif any(len(pair) - place + 1 > 3 + (now - at) / 6_000 for place, at in enumerate(pair)):
            code = 131056
        elif line["to"] not in day and len(day) >= 3:
            code = 131064
        else:
            code = 0
            taken.append(line)
        expected.append(code)
    return expected


def assert_audit(log: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """The server's audit against the same figures looked up line by line."""
    taken = [line for line in log if not line["code"]]
    assert found["taken"] == len(taken)
    for number, most in found["most_in_a_second"].items():
        mine = [line["at_ms"] for line in taken if line["number"] == number]
        assert most == max(sum(end - 1000 < at <= end for at in mine) for end in mine)
        assert most <= (4 if number == NUMBER else 2)
    ends = [line["at_ms"] for line in taken]
    people = max((len({one["to"] for one in taken if end - DAY < one["at_ms"] <= end}) for end in ends), default=0)
    assert sum(found["most_people_in_a_day"].values()) == people <= 3
    assert found["most_to_one_person"] <= 3
    assert found["twice"] == len(taken) - len({(line["opaque"], line["to"]) for line in taken})


steps = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 250, 999, 1000, 5_999, 6_000, 20_000, DAY // 2, DAY - 1, DAY]),
        st.integers(0, 1),
        st.integers(0, 4),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=25)
@given(steps)
def test_every_yes_and_every_no_is_what_a_plain_count_says(plan: list[tuple[int, int, int]]) -> None:
    async def run() -> None:
        clock = StillClock()
        async with graph(CONFIG, clock) as fake:
            for wait, number, person in plan:
                clock.ms += wait
                await fake.send(f"49151000{person}", number=str(FIRST_NUMBER + number))
            log = await fake.log()
            _, found = await fake("GET", "/_audit")
        assert [line["code"] for line in log] == naive(log)
        assert_audit(log, found)
        assert len(log) == len(plan)

    asyncio.run(run())


async def test_a_real_number_takes_80_in_a_second_and_not_one_more() -> None:
    clock = StillClock()
    async with graph(clock=clock) as fake:
        codes = [await fake.code(f"4915{n:07d}") for n in range(82)]
        assert codes == [0] * 80 + [130429] * 2
        clock.ms += 999
        assert await fake.code("49160000000") == 130429
        clock.ms += 1
        assert await fake.code("49160000000") == 0


async def test_a_burst_of_45_to_one_person_and_then_one_in_six_seconds() -> None:
    clock = StillClock()
    async with graph(clock=clock) as fake:
        codes = [await fake.code("4915111") for _ in range(47)]
        assert codes == [0] * 45 + [131056] * 2
        clock.ms += 5_999
        assert await fake.code("4915111") == 131056
        clock.ms += 1
        assert [await fake.code("4915111"), await fake.code("4915111")] == [0, 131056]


async def test_a_tier_is_of_the_portfolio_and_answers_cost_no_place() -> None:
    clock = StillClock()
    async with graph(CONFIG, clock) as fake:
        other = str(FIRST_NUMBER + 1)
        assert await fake.code("4915001") == 0
        assert await fake.code("4915002", number=other) == 0
        assert await fake.code("4915003") == 0
        assert await fake.code("4915004", number=other) == 131064
        await fake.control(inbound=[{"number": other, "sender": "4915004", "text": "hello"}])
        assert await fake.code("4915004", number=other) == 0, "an answer within the window is free"
        await fake.control(ahead_ms=DAY)
        assert await fake.code("4915005") == 0
