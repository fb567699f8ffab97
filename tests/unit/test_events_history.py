"""What is past its time goes, whatever becomes of the squash that shares its night."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from handbill.events.history import History
from handbill.kit.errors import Broken, Busy, HandbillError
from tests.kit.clocks import FakeClock


class Store:
    """A ClickHouse with two months of one class, of which it remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def query(self, sql: str) -> list[tuple[str]]:
        return [("(7,202601)",), ("(0,202601)",)]

    async def command(self, sql: str) -> None:
        self.told.append(sql)


@pytest.mark.parametrize("error", [Busy("it waits", code="SQUASH_WAITS"), Broken("it fails", code="SQUASH_FAILED")])
async def test_a_squash_that_fails_keeps_nothing_beyond_its_time(error: HandbillError) -> None:
    async def squash() -> int:
        raise error

    store: Any = Store()
    history = History(store, FakeClock(datetime(2026, 3, 1, tzinfo=UTC)), squash)
    if isinstance(error, Busy):
        assert await history.run() == ["(7,202601)"]
    else:
        with pytest.raises(Broken):
            await history.run()
    assert [sql.strip().splitlines()[-1] for sql in store.told] == ["alter table events drop partition (7,202601)"]
