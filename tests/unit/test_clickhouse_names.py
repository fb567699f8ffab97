"""Names in a statement's text: no letter of theirs, every one of them, in lists of a bounded length."""

from __future__ import annotations

import re

from handbill.infra.clickhouse import name_lists


def test_names_are_digits_and_lists_are_short() -> None:
    names = ["o'Brien \\ --", "", "zoë", *(f"{'x' * 200}{n}" for n in range(50)), "y" * 5_000]
    lists = list(name_lists(names, 3_000))
    found = [bytes.fromhex(each).decode() for some in lists for each in re.findall(r"unhex\('([0-9a-f]*)'\)", some)]
    assert found == names
    assert len(lists) > 5
    assert all(len(some) <= 3_000 or some.count("unhex") == 1 for some in lists)
    assert list(name_lists([])) == []
