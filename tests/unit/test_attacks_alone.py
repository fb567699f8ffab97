"""The choice of attacks, and the table that people read."""

from __future__ import annotations

import pytest

from tests.soak.attacks_alone import EVERY, chosen, table


def test_attacks_are_all_of_them_or_those_that_are_named() -> None:
    assert chosen("") == list(EVERY)
    assert chosen("previews,sockets") == ["previews", "sockets"]
    with pytest.raises(AssertionError, match="no attack named nothing"):
        chosen("previews,nothing")


def test_the_table_has_a_row_for_each_round() -> None:
    rounds = [
        {"attack": name, "honest_requests": 900, "failed": 0, "p99_ms": 3.2, "slowest_ms": 40.0}
        for name in ("quiet", "previews")
    ]
    assert table({"rounds": rounds}).splitlines()[2:] == [
        "| quiet | 900 | 0 | 3.2 ms | 40.0 ms |",
        "| previews | 900 | 0 | 3.2 ms | 40.0 ms |",
    ]
