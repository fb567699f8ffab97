"""What PostgreSQL's catalogue says about our tables, and rows made up to fit them. For the walls and schema tests."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec

WALL = "(tenant_id = (NULLIF(current_setting('handbill.tenant'::text, true), ''::text))::integer)"

_TABLES = """
select c.oid, n.nspname || '.' || c.relname as name, c.relrowsecurity as walled, c.relforcerowsecurity as forced,
       array(select pg_get_expr(p.polqual, p.polrelid) from pg_policy p where p.polrelid = c.oid) as quals,
       array(select pg_get_expr(p.polwithcheck, p.polrelid) from pg_policy p where p.polrelid = c.oid) as checks
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and n.nspname not like 'pg\\_%' and n.nspname <> 'information_schema'
  and exists (select 1 from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped)
order by 2
"""
_COLUMNS = """
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, a.attidentity <> '' as identity,
       a.attnotnull as needed, a.atthasdef or a.attidentity <> '' as given
from pg_attribute a
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
order by a.attnum
"""
_PARENTS = """
select k.confrelid as parent,
       array(select a.attname from unnest(k.conkey) with ordinality u(n, i)
             join pg_attribute a on a.attrelid = k.conrelid and a.attnum = u.n order by u.i) as mine,
       array(select a.attname from unnest(k.confkey) with ordinality u(n, i)
             join pg_attribute a on a.attrelid = k.confrelid and a.attnum = u.n order by u.i) as theirs
from pg_constraint k where k.conrelid = $1 and k.contype = 'f' order by k.oid
"""
_CHECKS = "select pg_get_constraintdef(oid) from pg_constraint where conrelid = $1 and contype = 'c'"


class Table(msgspec.Struct, frozen=True):
    oid: int
    name: str
    faults: tuple[str, ...]


async def tenant_tables(owner: asyncpg.Connection) -> list[Table]:
    """Every table with a tenant_id, partitions too, each with what is wrong with its wall."""
    return [Table(row["oid"], row["name"], tuple(_faults(row))) for row in await owner.fetch(_TABLES)]


def _faults(row: Any) -> list[str]:
    faults = []
    if not row["walled"]:
        faults.append("row level security is off")
    if not row["forced"]:
        faults.append("row level security is not forced")
    if row["quals"] != [WALL] or row["checks"] != [WALL]:
        faults.append(f"its policies are not the one wall: {row['quals']} {row['checks']}")
    return faults


class Rows:
    """Makes rows that fit: what a table needs and no more, with its parents' rows made first."""

    def __init__(self, owner: asyncpg.Connection) -> None:
        self._owner = owner
        self._made: dict[tuple[int, int], dict[str, Any]] = {}

    async def values(self, oid: int, tenant: int) -> dict[str, Any]:
        """Column values of a new row of this tenant; parents exist when this returns."""
        columns = await self._owner.fetch(_COLUMNS, oid)
        choices = _choices([row[0] for row in await self._owner.fetch(_CHECKS, oid)])
        values = {
            column["name"]: choices.get(column["name"]) or _made_up(column["type"])
            for column in columns
            if column["needed"] and not column["given"]
        }
        for parent in await self._owner.fetch(_PARENTS, oid):
            if set(parent["mine"]) & set(values):
                above = await self.row(parent["parent"], tenant)
                values |= {mine: above[theirs] for mine, theirs in zip(parent["mine"], parent["theirs"], strict=True)}
        values["tenant_id"] = tenant
        return values

    async def row(self, oid: int, tenant: int) -> dict[str, Any]:
        """A stored row of this tenant: the one that is there already, or a new one."""
        if (oid, tenant) not in self._made:
            name = await self._owner.fetchval("select $1::oid::regclass::text", oid)
            find = f"select * from {name} where tenant_id = $1 limit 1"
            found = await self._owner.fetchrow(find, tenant)
            if found is None:
                values = await self.values(oid, tenant)
                await self._owner.execute(insert(name, values), *values.values())
                found = await self._owner.fetchrow(find, tenant)
            self._made[oid, tenant] = dict(found)
        return self._made[oid, tenant]


def insert(table: str, values: dict[str, Any]) -> str:
    holes = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    columns = ", ".join(f'"{name}"' for name in values)
    return f"insert into {table} ({columns}) overriding system value values ({holes})"


def _choices(checks: list[str]) -> dict[str, str]:
    """The first allowed value of each column that a check limits to a list."""
    found = {}
    for check in checks:
        if match := re.search(r"\(\(?(\w+) = ANY \(+ARRAY\['([^']*)'", check):
            found[match[1]] = match[2]
    return found


def _made_up(kind: str) -> Any:
    if kind.endswith("[]"):
        return []
    if kind == "text" or kind.startswith("character"):
        return f"x{uuid.uuid4().hex[:12]}"
    makers: dict[str, Callable[[], Any]] = {
        "uuid": uuid.uuid4,
        "bytea": lambda: uuid.uuid4().bytes,
        "timestamp with time zone": lambda: datetime.now(UTC),
        "date": lambda: datetime.now(UTC).date(),
        "boolean": lambda: False,
        "jsonb": lambda: "{}",
    }
    return makers.get(kind, lambda: 1)()
