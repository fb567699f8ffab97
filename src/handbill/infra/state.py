"""The state hash: one short number per table that changes when any cell that matters changes.

Rows are hashed one by one and their digests summed, so that neither the order of rows nor their place on disk matters.
Columns that may differ between two equal histories (surrogate ids, times of arrival) are named as volatile, in writing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from handbill.infra.postgres import Tx
from handbill.infra.sqlfiles import Sql

_COLUMNS = Sql(
    "select column_name::text from information_schema.columns"
    " where table_schema || '.' || table_name = $1 order by column_name",
    "state_columns",
    "infra",
    "the catalogue has no tenants",
)
# Text forms of times, floats and bytes depend on the session; equal rows must give equal text everywhere.
_SAME_TEXT = Sql(
    "select set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true),"
    " set_config('extra_float_digits', '1', true), set_config('bytea_output', 'hex', true),"
    " set_config('IntervalStyle', 'iso_8601', true)",
    "state_same_text",
    "infra",
    "it reads no table",
)
_SUMS = (
    "select count(*) as rows,"
    " coalesce(sum(('x' || substr(h, 1, 15))::bit(60)::bigint), 0)::text as low,"
    " coalesce(sum(('x' || substr(h, 17, 15))::bit(60)::bigint), 0)::text as high"
)


class StateTable(msgspec.Struct, frozen=True):
    """A table whose rows are part of the state, and the columns left out of its hash.

    Rows that differ only in `summed` columns are added up first: counts kept in several rows (one per lane) are one
    count, however they are spread.
    """

    name: str
    order_by: tuple[str, ...] = ()
    volatile: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()


async def table_hash(tx: Tx, table: StateTable) -> str:
    """The digest of every row's every column that is not volatile, with the number of rows."""
    await tx.execute(_SAME_TEXT)
    columns = [str(row["column_name"]) for row in await tx.fetch(_COLUMNS, table.name)]
    unknown = (table.volatile | table.summed | set(table.order_by)) - set(columns)
    if not columns or unknown:
        raise LookupError(f"{table.name}: no such table, or no such columns: {sorted(unknown)}")
    kept = sorted(set(columns) - table.volatile)
    row = await tx.fetchrow(_row_sums(table, kept))
    assert row is not None
    text = f"{table.name}|{','.join(kept)}|{row['rows']}|{row['low']}|{row['high']}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


async def state_hash(tx: Tx, tables: Iterable[StateTable]) -> dict[str, str]:
    """Each table's hash by its name; run it in one transaction of the worker's role to see one moment."""
    return {table.name: await table_hash(tx, table) for table in sorted(tables, key=lambda table: table.name)}


def total(hashes: dict[str, str]) -> str:
    """One line for the whole: the hash of the hashes."""
    text = "\n".join(f"{name} {digest}" for name, digest in sorted(hashes.items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _row_sums(table: StateTable, columns: list[str]) -> Sql:
    """Counts the rows and sums both halves of each row's md5. The names come from the catalogue and are quoted.

    `row(...)::text` tells NULL from the empty string, and a sum (unlike xor) tells one row from three of the same.
    """
    schema, _, name = table.name.partition(".")
    plain = [_quoted(column) for column in columns if column not in table.summed]
    cells = [f"sum({_quoted(column)})" if column in table.summed else _quoted(column) for column in columns]
    source = f"{_quoted(schema)}.{_quoted(name)}"
    grouped = f" group by {', '.join(plain)}" if table.summed and plain else ""
    rows = f"select md5(row({', '.join(cells)})::text) as h from {source}{grouped}"  # noqa: S608 - from the catalogue
    text = f"{_SUMS} from ({rows}) hashed"
    return Sql(text, f"state_{schema}_{name}", "infra", "the state of the whole installation is one")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
