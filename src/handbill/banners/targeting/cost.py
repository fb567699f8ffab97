"""What the patterns of all banners of a tenant take for one address that was not seen before, at most.

A decision asks clauses about several attributes of each banner whose turn comes. Of the others, equal ones of many
banners are asked once, from a table that remembers the answers; when few banners are left, those of each of them. One
tenant's patterns must not hold up the others, so their sum is bounded: what exceeds it is refused when it is saved, and
stored rules that exceed it together (an older version took them, or two were saved at once) lose the costliest ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest

from handbill.banners.targeting.index import MANY, Clause
from handbill.kit.bounds import TENANT_PATTERN_US


def total_us(rules: Iterable[Sequence[Clause]]) -> float:
    """What the patterns of these rules take for the worst address in microseconds, for one placement of a decision."""
    tables: dict[str, float] = {}
    alone = 0.0
    turns: list[float] = []
    for rule in rules:
        turn = 0.0
        for clause in rule:
            if not clause.cost_us:
                continue
            if clause.is_shared:
                tables[clause.text] = clause.cost_us
                turn += clause.cost_us
            else:
                alone += clause.cost_us
        if turn:
            turns.append(turn)
    return alone + max(sum(tables.values()), sum(nlargest(MANY, turns)))


def too_costly(rules: Mapping[int, Sequence[Clause]], limit_us: float = TENANT_PATTERN_US) -> frozenset[int]:
    """The fewest of the costliest rules without which the others stay within the limit."""
    if total_us(rules.values()) <= limit_us:
        return frozenset()
    order = sorted(rules, key=lambda number: (-sum(clause.cost_us for clause in rules[number]), number))
    least, most = 1, len(order)
    while least < most:
        middle = (least + most) // 2
        if total_us(rules[number] for number in order[middle:]) <= limit_us:
            most = middle
        else:
            least = middle + 1
    return frozenset(order[:least])
