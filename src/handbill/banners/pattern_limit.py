"""How much the patterns of all banners of a tenant may cost together: checked when targeting is saved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from handbill.banners import store
from handbill.banners.checks import refuse
from handbill.banners.targeting.cost import total_us
from handbill.banners.targeting.index import Clause, clauses_of
from handbill.banners.targeting.reader import read
from handbill.infra.postgres import Tx
from handbill.kit.bounds import RULE_COSTS, TENANT_PATTERN_US
from handbill.kit.caches import Memo
from handbill.kit.errors import Fault


class _Costs(msgspec.Struct, frozen=True):
    """The clauses of one rule that have patterns, without the patterns."""

    clauses: tuple[tuple[str, frozenset[str], float], ...]


def _costs_of(rule: str) -> _Costs:
    clauses = clauses_of(read(msgspec.json.decode(rule), ""))
    return _Costs(tuple((each.text, each.attributes, each.cost_us) for each in clauses if each.cost_us))


_costs = Memo(_costs_of, RULE_COSTS)
_NOTHING: Any = None


def _total_us(rules: Sequence[str]) -> float:
    return total_us([[Clause(_NOTHING, *each) for each in _costs(rule).clauses] for rule in rules])


def cost_us(rule: dict[str, Any] | None) -> float:
    """What the patterns of one rule cost by themselves."""
    return 0.0 if not rule else _total_us([msgspec.json.encode(rule).decode()])


async def check(tx: Tx, tenant_id: int, saved: dict[str, Any] | None, before: dict[str, Any] | None = None) -> None:
    """After a banner was written: raises Invalid if this made the patterns of all banners together too costly.

    A rule that costs no more than the one before it always passes.
    """
    if cost_us(saved) <= cost_us(before):
        return
    rules = await store.address_rules(tx, tenant_id)
    total = await asyncio.to_thread(_total_us, rules)  # an installation that was just started compiles all of them
    if total > TENANT_PATTERN_US:
        reason = (
            f"makes the patterns of all your banners too costly together ({total / TENANT_PATTERN_US:.0%} of the limit)"
            ": use globs or prefixes, fewer regular expressions, or smaller counted repeats in them"
        )
        refuse([Fault("targeting", reason)])
