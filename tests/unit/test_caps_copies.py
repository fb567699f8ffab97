"""Which views are looked up before they move a cap."""

from __future__ import annotations

import pytest

from handbill.caps.copies import RECENT_MS, may_be_forgotten_copy
from handbill.caps.model import FOREVER_MS, By, Kind, Limits, Rule, Window, scope
from handbill.caps.service import moves_of
from tests.kit.show_caps import HOUR, FakeBook

NOW = 1_800_000_000_000
CAMPAIGN = scope(Kind.CAMPAIGN, 3)
MOVES = moves_of(b"k" * 16, NOW, 7, campaign_id=3)


def asked(book: FakeBook, age_ms: int | None) -> bool:
    return may_be_forgotten_copy(book, 1, MOVES, None if age_ms is None else NOW - age_ms, NOW)


def test_without_a_limit_nothing_is_asked() -> None:
    assert not asked(FakeBook(), None)
    assert not asked(FakeBook(b8=Limits((Window(1, HOUR),))), None), "a limit of another banner"


@pytest.mark.parametrize("windows", [(Window(1, HOUR),), (Window(3),), (Window(2, 24 * HOUR), Window(9))])
def test_only_the_token_of_a_recent_decision_spares_the_question(windows: tuple[Window, ...]) -> None:
    book = FakeBook(b7=Limits(windows))
    assert asked(book, None)
    assert not asked(book, -250), "the clocks of two processes differ a little"
    assert not asked(book, RECENT_MS - 1)
    assert asked(book, RECENT_MS)
    assert asked(book, 23 * HOUR)


def test_recent_is_at_most_half_of_the_shortest_window_of_any_scope() -> None:
    book = FakeBook(b7=Limits((Window(1, HOUR),)))
    book.more = [Rule(By.DEVICE, CAMPAIGN, Limits((Window(5, FOREVER_MS), Window(1, 60_000))))]
    assert not asked(book, 29_999)
    assert asked(book, 30_000)


def test_after_a_limit_was_raised_everything_is_asked_until_it_is_filled_up() -> None:
    assert asked(FakeBook(b7=Limits((Window(1, HOUR),), known_from_ms=NOW - HOUR + 1)), 0)
    assert not asked(FakeBook(b7=Limits((Window(1, HOUR),), known_from_ms=NOW - HOUR)), 0)
