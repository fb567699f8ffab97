"""What a statement really read, by PostgreSQL's own account."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import asyncpg


class Plan:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def rows_read(self, table: str = "") -> float:
        """Rows that scans of tables and indexes looked at, kept or not; of tables whose names begin so."""
        return sum(_rows_read(node) for node in _nodes(self._root) if node.get("Relation Name", "").startswith(table))

    def whole_tables(self) -> set[str]:
        """Tables that were read from their beginning."""
        return {
            node["Relation Name"]
            for node in _nodes(self._root)
            if node["Node Type"] == "Seq Scan" and node["Actual Loops"]
        }


async def plan_of(connection: asyncpg.Connection, text: str, *args: object) -> Plan:
    """Runs the statement."""
    found = await connection.fetchval(f"explain (analyze, costs off, timing off, format json) {text}", *args)
    return Plan(json.loads(found)[0]["Plan"])


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _rows_read(node: dict[str, Any]) -> float:
    if "Scan" not in node["Node Type"] or not node.keys() & {"Relation Name", "Index Name"}:
        return 0.0
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return float(node["Actual Loops"] * (node["Actual Rows"] + sum(node.get(each, 0) for each in removed)))
