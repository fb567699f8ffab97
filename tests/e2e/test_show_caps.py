"""Caps over HTTP, told as stories: boundaries, windows together, raised limits, copies, strict slots.

Two API processes and a worker by one clock that the test moves; the clocks of their hosts are hours apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from tests.kit.engines import Engines
from tests.kit.show_house import HOUR, LEASE, House, staged
from tests.kit.show_model import Who
from tests.kit.show_stage import Stage
from tests.kit.waiting import eventually


@pytest.fixture(scope="module")
def stage(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = staged(engines, tmp_path_factory.mktemp("stage"))
    yield made
    made.stop()


@pytest.fixture
def house(stage: Stage) -> House:
    stage.board.hold = False
    return House(stage)


ANN = Who("ann")


def seen(house: House, *events: str, banner: str = "soft", process: int = 0) -> None:
    for event in events:
        house.stage.do(house.stage.view(house.shop, process, house.body(event, banner, ANN, False, None, True)))
        house.saw(event, banner, ANN, False, None)


def soft(house: House) -> list[bool]:
    """Whether the soft banner is shown, by each process."""
    found = [
        house.stage.do(house.stage.shown(house.shop, process, user_id="ann", device_id=None)) for process in (0, 1)
    ]
    return [house.ids["soft"] in each for each in found]


def test_a_view_counts_until_exactly_y_hours_on_every_host(house: House) -> None:
    """The hosts' own clocks are an hour apart."""
    board = house.stage.board
    seen(house, "a")
    board.now_ms += 1_000
    seen(house, "b", process=1)
    assert soft(house) == [False, False]
    for off, shown in ((-1, False), (0, True), (1, True)):
        board.now_ms = house.model.saw["a"].at + HOUR + off
        assert soft(house) == [shown, shown], f"y {off:+d} ms"


def test_several_windows_and_a_lifetime_hold_together(house: House) -> None:
    board = house.stage.board
    house.change("soft", x_times=2, y_hours=1, caps=[{"x": 3, "y_hours": 6}, {"x": 5, "per": "lifetime"}])
    begin = board.now_ms
    story = []
    for n, after in enumerate((0, 0, 1, 6, 7, 100)):  # hours after the beginning
        board.now_ms = begin + after * HOUR
        shown = soft(house)
        assert shown[0] == shown[1] == house.model.may_see(ANN, ("soft", "campaign"), board.now_ms)
        story.append(shown[0])
        if shown[0]:
            seen(house, f"e{n}", process=n % 2)
    assert story == [True, True, True, True, True, False], "five in a lifetime, and never more than two in an hour"
    board.now_ms += 10_000 * HOUR
    assert soft(house) == [False, False]


def test_x_raised_while_older_views_wait_for_their_commit_is_exact(house: House) -> None:
    board = house.stage.board
    house.change("soft", x_times=1)
    board.hold = True
    for n in range(4):
        board.now_ms += 1_000
        seen(house, f"e{n}", process=n % 2)
    answers = {}
    for x in (4, 5):
        house.change("soft", process=1, x_times=x)
        answers[x] = soft(house)
    assert answers == {4: [False, False], 5: [True, True]}
    board.hold = False
    house.stage.do(house.stage.drained(house.shop))
    assert soft(house) == [True, True]
    house.change("soft", x_times=4)
    assert soft(house) == [False, False]


def test_x_raised_after_the_old_limit_let_views_go_is_exact_before_and_after_the_back_fill(house: House) -> None:
    stage, board = house.stage, house.stage.board
    house.change("soft", x_times=1)
    seen(house, "e0", "e1", "e2", "e3")
    stage.do(stage.drained(house.shop))
    house.change("soft", x_times=4)
    assert soft(house) == [False, False], "Redis had kept one of four: PostgreSQL was asked"
    board.now_ms += 6_000

    async def settled() -> None:
        raised = "select count(*) from banners.banners where tenant_id = $1 and limits_raised_at is not null"
        await eventually(lambda: nothing(stage.owner.fetchval(raised, house.shop.tenant)), what="the back-fill has run")
        await stage.known(house.shop)

    async def nothing(count: Awaitable[int]) -> bool:
        return await count == 0

    stage.do(settled())
    assert soft(house) == [False, False], "and now Redis knows by itself"
    house.change("soft", x_times=5)
    assert soft(house) == [True, True]


@pytest.mark.parametrize("banner", ["soft", "strict"])
@pytest.mark.parametrize("after", [1, 26], ids=["the-token-is-good", "the-token-has-expired"])
@pytest.mark.parametrize("named", [False, True], ids=["no-token", "token"])
def test_a_copy_of_an_expired_view_closes_nothing_while_the_worker_is_away(
    house: House, banner: str, after: int, named: bool
) -> None:
    stage, board = house.stage, house.stage.board
    house.change(banner, x_times=1)
    token = house.decide(ANN, False, 0)[banner] if named else None
    board.now_ms += 5_000
    first: Any = house.body("a", banner, ANN, False, token, True)
    stage.do(stage.view(house.shop, 0, first))
    house.saw("a", banner, ANN, False, token)
    stage.do(stage.drained(house.shop))
    board.now_ms += after * HOUR  # to the very millisecond at which the first no longer counts
    board.hold = True  # nothing that moves now is taken back
    for process, copies in enumerate((first, [first, first])):
        stage.do(stage.view(house.shop, process, copies))
        house.look(ANN, False, 1 - process)
        board.now_ms += LEASE
    house.look(ANN, False, 0)
    board.hold = False
    stage.do(stage.drained(house.shop))
    board.now_ms += LEASE
    house.look(ANN, False, 1)


def test_a_copy_of_a_view_that_newer_ones_have_replaced_closes_nothing(house: House) -> None:
    """Redis keeps one time at x = 1: the first of two views is forgotten long before it has expired."""
    stage, board = house.stage, house.stage.board
    house.change("soft", x_times=1)
    seen(house, "a")
    board.now_ms += 1_000
    seen(house, "b")
    stage.do(stage.drained(house.shop))
    board.now_ms += HOUR // 2
    board.hold = True
    stage.do(stage.view(house.shop, 1, house.body("a", "soft", ANN, False, None, True)))
    assert soft(house) == [False, False]
    board.now_ms = house.model.saw["b"].at + HOUR
    assert soft(house) == [True, True]


def test_a_new_view_without_a_token_closes_a_full_window_at_once(house: House) -> None:
    """It is looked up, and nobody has it."""
    board = house.stage.board
    house.change("soft", x_times=1)
    board.hold = True
    seen(house, "a")
    assert soft(house) == [False, False]


def test_a_strict_view_without_a_token_takes_the_place_of_one_lease(house: House) -> None:
    house.look(ANN, False, 0)
    assert len(house.model.held["strict", ("user", "ann")]) == 1
    seen(house, "a", banner="strict", process=1)
    assert house.expected(ANN, False) == {"soft", "strict"}, "one was seen, none is held, two are allowed"
    house.look(ANN, False, 1)
    assert house.expected(ANN, False) == {"soft"}
    house.look(ANN, False, 0)


def test_strict_grants_x_slots_to_any_number_of_requests_at_once(house: House) -> None:
    """Law 4: at most x for views reported within the lease, a slot withheld no longer than that, late ones counted."""
    stage, board = house.stage, house.stage.board
    house.change("strict", x_times=3)

    async def rush(number: int) -> list[str]:
        body = {"user_id": "ann", "limit": 20}
        found = await asyncio.gather(*(stage.decide(house.shop, n % 2, body) for n in range(number)))
        return [tokens[house.ids["strict"]] for tokens in found if house.ids["strict"] in tokens]

    def report(event: str, token: str) -> None:
        stage.do(stage.view(house.shop, 1, house.body(event, "strict", ANN, False, token, True)))

    tokens = stage.do(rush(30))
    assert len(tokens) == 3
    report("one", tokens[0])
    report("one", tokens[0])
    assert stage.do(rush(6)) == [], "two are held, one was seen; a copy frees nothing"
    board.now_ms += LEASE - 1
    assert stage.do(rush(6)) == []
    board.now_ms += 1
    again = stage.do(rush(30))
    assert len(again) == 2, "nobody reported them: their slots are free, at the very millisecond"
    report("two", again[0])
    report("late", tokens[1])
    assert stage.do(rush(6)) == []
    board.now_ms += LEASE
    assert stage.do(rush(6)) == [], "the late one counts: three were seen within the hour"
