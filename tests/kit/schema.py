"""A database described line by line, so that two of them can be compared: all that a migration can make."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg

# Ours: not the engine's, not the runner's ledger, not the months, whose names depend on today.
_OURS = "n.nspname !~ '^pg_' and n.nspname <> 'information_schema'"
_TABLE = f"{_OURS} and c.relname <> 'handbill_migrations' and c.relname !~ '_[0-9]{{6}}$'"
_ROLE = "case when {0} = 0 then 'public' else pg_get_userbyid({0}) end"
_GRANTS = (
    "select coalesce(string_agg({role} || ':' || privilege_type, ' ' order by {role}, privilege_type), '')"
    " from aclexplode({acl})"
)


def _grants(acl: str) -> str:
    return "(" + _GRANTS.format(role=_ROLE.format("grantee"), acl=acl) + ")"


_QUESTIONS = {
    "schema": f"select n.nspname, {_grants('n.nspacl')} from pg_namespace n where {_OURS}",
    "table": f"""
        select n.nspname || '.' || c.relname, concat_ws(' ', c.relkind, c.relpersistence, c.relrowsecurity,
               c.relforcerowsecurity, c.reloptions::text, pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
               {_grants("c.relacl")})
        from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where c.relkind in ('r', 'p', 'v', 'm') and {_TABLE}
        """,
    "column": f"""
        select n.nspname || '.' || c.relname || '.' || a.attname, concat_ws(' ', a.attnum,
               format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
               pg_get_expr(d.adbin, d.adrelid))
        from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attnum > 0 and not a.attisdropped and c.relkind in ('r', 'p', 'v', 'm') and {_TABLE}
        """,
    "constraint": f"""
        select n.nspname || '.' || c.relname || '.' || k.conname, pg_get_constraintdef(k.oid)
        from pg_constraint k join pg_class c on c.oid = k.conrelid join pg_namespace n on n.oid = c.relnamespace
        where {_TABLE}
        """,
    "index": f"""
        select n.nspname || '.' || i.relname, pg_get_indexdef(i.oid)
        from pg_index x join pg_class i on i.oid = x.indexrelid join pg_class c on c.oid = x.indrelid
        join pg_namespace n on n.oid = c.relnamespace where {_TABLE}
        """,
    "policy": f"""
        select n.nspname || '.' || c.relname || '.' || p.polname, concat_ws(' ', p.polcmd, p.polpermissive,
               pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
        from pg_policy p join pg_class c on c.oid = p.polrelid join pg_namespace n on n.oid = c.relnamespace
        where {_TABLE}
        """,
    "function": f"""
        select p.oid::regprocedure::text, pg_get_userbyid(p.proowner) || ' ' || {_grants("p.proacl")} || ' '
               || pg_get_functiondef(p.oid)
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.prokind in ('f', 'p') and {_OURS}
        """,
    "trigger": f"""
        select n.nspname || '.' || c.relname || '.' || t.tgname, pg_get_triggerdef(t.oid)
        from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
        where not t.tgisinternal and {_TABLE}
        """,
    "type": f"select t.oid::regtype::text, t.typtype::text from pg_type t join pg_namespace n on n.oid = t.typnamespace"
    f" where t.typtype in ('e', 'd') and {_OURS}",
}


async def described(url: str) -> dict[str, str]:
    """`kind name` -> what it is, for everything in the database."""
    connection = await asyncpg.connect(url)
    try:
        found: dict[str, str] = {}
        for kind, question in _QUESTIONS.items():
            for name, text in await connection.fetch(question):
                found[f"{kind} {name}"] = text
        return found
    finally:
        await connection.close()


@asynccontextmanager
async def empty_database(owner_url: str) -> AsyncIterator[str]:
    """A fresh database in the same cluster, gone afterwards; gives its owner's URL."""
    name = f"empty_{uuid.uuid4().hex[:12]}"
    owner = await asyncpg.connect(owner_url)
    try:
        await owner.execute(f"create database {name} template template0")
        try:
            yield urlunsplit(urlsplit(owner_url)._replace(path=f"/{name}"))
        finally:
            await owner.execute(f"drop database if exists {name} with (force)")
    finally:
        await owner.close()
