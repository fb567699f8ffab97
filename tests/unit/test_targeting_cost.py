"""The patterns of all banners of a tenant: what a decision takes for them at most, and what becomes of too many."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from handbill.banners.catalogue import Snapshot
from handbill.banners.plan import Plan
from handbill.banners.targeting.cost import too_costly, total_us
from handbill.banners.targeting.index import MANY, Clause, Index, clauses_of
from handbill.banners.targeting.nodes import All, Any_, Leaf, Node, Not
from handbill.banners.targeting.reader import read
from handbill.kit.bounds import TENANT_PATTERN_US
from tests.unit.test_targeting_patterns import banner

LARGE = ".*a.{250}"
"""With a number behind it, a pattern of 2,000 steps."""


class Meter:
    """Leaves with a cost, and what asking them came to."""

    def __init__(self, dice: random.Random) -> None:
        self.spent = 0.0
        self._dice = dice

    def leaf(self) -> Leaf:
        number, attribute = self._dice.randrange(30), self._dice.choice(("url", "referrer"))
        cost = float(1 + number % 7)

        def test(_: Any) -> bool:
            self.spent += cost
            return number % 3 != 0

        return Leaf(attribute, f"{attribute} matches {number}", test, cost)

    def node(self, depth: int = 0) -> Node:
        kind = self._dice.choice(("leaf", "leaf", "any", "not", "all")) if depth < 3 else "leaf"
        if kind == "leaf":
            return self.leaf()
        if kind == "not":
            return Not(self.node(depth + 1))
        nodes = tuple(self.node(depth + 1) for _ in range(self._dice.randrange(1, 4)))
        return Any_(nodes) if kind == "any" else All(nodes)


@pytest.mark.parametrize("seed", range(60))
def test_no_decision_asks_more_of_patterns_than_was_worked_out(seed: int) -> None:
    dice = random.Random(seed)
    meter = Meter(dice)
    rules = [clauses_of(meter.node()) for _ in range(dice.choice((1, 20, MANY, MANY + 1, 200)))]
    index = Index(rules)
    most = 0.0
    for number in range(5):
        meter.spent = 0.0
        values = {"url": f"https://a.example/{number}", "referrer": f"https://b.example/{number}"}
        left = index.narrowed((1 << len(rules)) - 1, values)
        for bit in range(len(rules)):
            if left >> bit & 1:
                index.allows(bit, values)
        most = max(most, meter.spent)
    assert 0 < most <= total_us(rules)


def test_an_address_is_compared_once_with_the_equal_patterns_of_many_banners() -> None:
    asked: list[str] = []

    def test(value: Any) -> bool:
        asked.append(value)
        return True

    leaf = Leaf("url", "url matches everything", test, 10.0)
    index = Index([clauses_of(leaf)] * (MANY + 50))
    for address in ("https://a.example/1", "https://a.example/2"):
        left = index.narrowed((1 << (MANY + 50)) - 1, {"url": address})
        assert left.bit_count() == MANY + 50
        assert all(index.allows(bit, {"url": address}) for bit in range(MANY + 50))
    assert asked == ["https://a.example/1", "https://a.example/2"]


def rule(*costs: float, text: str = "") -> Sequence[Clause]:
    leaves = [Leaf("url", f"url matches {text}{place}", bool, cost) for place, cost in enumerate(costs)]
    return [Clause(leaf, leaf.text, leaf.attributes, leaf.cost_us) for leaf in leaves]


def test_equal_clauses_of_many_banners_count_once_and_for_those_whose_turn_comes() -> None:
    assert total_us([rule(10.0, text="same")] * 1_000) == MANY * 10.0
    assert total_us([rule(10.0, text=str(number)) for number in range(1_000)]) == 10_000.0


def test_only_the_costliest_rules_are_left_out_and_as_few_as_possible() -> None:
    rules = {number: rule(float(number), text=str(number)) for number in range(1, 101)}
    for limit in (0.0, 10.0, 500.0, 4_000.0, 5_050.0):
        refused = too_costly(rules, limit)
        kept = {number: each for number, each in rules.items() if number not in refused}
        assert total_us(kept.values()) <= limit
        assert refused == frozenset(range(101 - len(refused), 101))
        if refused:
            assert total_us([*kept.values(), rules[min(refused)]]) > limit


def test_stored_rules_that_are_too_costly_together_show_nobody_anything_and_leave_the_others() -> None:
    stored: list[dict[str, Any]] = [{"url": {"regex": f"{LARGE}{number}"}} for number in range(20)]
    stored += [{"url": "https://a.example/*"}, {}, {"url": {"regex": "https://[a-z.]+/1"}}]
    snapshot = Snapshot(7, 1, tuple(banner(number, each) for number, each in enumerate(stored, 1)), {}, {}, {})
    with capture_logs() as lines:
        plan = Plan(snapshot)
    address = {"url": "https://a.example/1"}
    left = plan.index.narrowed((1 << len(plan.entries)) - 1, address)
    allowed = {e.banner.id for e in plan.entries if left >> e.bit & 1 and plan.index.allows(e.bit, address)}
    assert allowed == {21, 22, 23}
    (line,) = [each for each in lines if each["event"] == "banners.patterns_too_costly"]
    assert (line["tenant_id"], line["banners"] < 20) == (7, True)
    assert str(UUID(int=1)) in line["banner_ids"]
    kept = Plan(Snapshot(7, 2, snapshot.banners[-4:], {}, {}, {}), plan.pieces)
    matching = {"url": "a" + "x" * 250 + "19"}
    (large,) = [each for each in kept.entries if each.banner.id == 20]
    assert kept.index.allows(large.bit, matching), "it is back as soon as the others leave room"


def test_ordinary_expressions_stay_far_below_the_limit() -> None:
    ordinary = [
        clauses_of(read({"url": {"regex": f"https://[a-z.]+/(sale|new)/{number}.*"}}, "")) for number in range(100)
    ]
    prefixes = [clauses_of(read({"url": {"prefix": f"https://a.example/{number}"}}, "")) for number in range(10_000)]
    globs = [clauses_of(read({"url": f"*/sale-{number}/*"}, "")) for number in range(2_000)]
    assert total_us([*ordinary, *prefixes, *globs]) < TENANT_PATTERN_US
