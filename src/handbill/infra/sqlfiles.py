"""SQL lives in named files beside the slice that owns it; this module reads them once, at import.

A file holds statements, each headed by `-- name: the_name`. A statement either names its tenant or says in a
`-- no-tenant: reason` line why it has none; a lint checks that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from handbill.kit.errors import Broken

_HEAD = re.compile(r"^--\s*name:\s*(?P<name>[a-z][a-z0-9_]*)\s*$")
_NO_TENANT = re.compile(r"^--\s*no-tenant:\s*(?P<reason>\S.*)$")
_COMMENT = re.compile(r"^\s*--")


class Sql(str):
    """One named statement. It is its text; the name labels metrics, logs and crash points."""

    __slots__ = ("name", "no_tenant", "room", "text")

    name: str
    room: str
    no_tenant: str | None
    text: str

    def __new__(cls, text: str, name: str = "inline", room: str = "", no_tenant: str | None = None) -> Sql:
        statement = super().__new__(cls, text)
        statement.name = name
        statement.room = room
        statement.no_tenant = no_tenant
        statement.text = str(text)  # the driver insists on a plain string
        return statement


class Statements:
    """The statements of one room, by attribute: `S.create_tenant`. A name that no file has fails at once."""

    def __init__(self, package: str, statements: dict[str, Sql]) -> None:
        self.package = package
        self._statements = statements

    def __getattr__(self, name: str) -> Sql:
        try:
            return self._statements[name]
        except KeyError:
            raise AttributeError(f"{self.package} has no statement named {name!r} in its sql/ files") from None

    def __getitem__(self, name: str) -> Sql:
        return self._statements[name]

    def __iter__(self) -> Iterator[Sql]:
        return iter(self._statements.values())

    def __len__(self) -> int:
        return len(self._statements)


def parse(text: str, *, room: str, source: str) -> list[Sql]:
    """The statements of one file, in order."""
    found: list[Sql] = []
    name: str | None = None
    reason: str | None = None
    body: list[str] = []

    def close() -> None:
        if name is None:
            return
        sql = "\n".join(body).strip().removesuffix(";").rstrip()
        if not sql:
            raise Broken(f"{source}: the statement {name} is empty")
        found.append(Sql(sql, name, room, reason))

    for line in text.splitlines():
        if head := _HEAD.match(line):
            close()
            name, reason, body = head["name"], None, []
        elif mark := _NO_TENANT.match(line):
            reason = mark["reason"]
        elif name is None:
            if line.strip() and not _COMMENT.match(line):
                raise Broken(f"{source}: SQL before the first `-- name:` line: {line.strip()!r}")
        elif not _COMMENT.match(line):
            body.append(line)
    close()
    return found


@cache
def load(package: str) -> Statements:
    """Read `<package>/sql/*.sql`. The same name twice in one room stops the import."""
    return _load(package, "sql")


@cache
def queries(package: str) -> Statements:
    """Read `<package>/queries/*.sql`: statements for ClickHouse, which PostgreSQL must not be asked to prepare."""
    return _load(package, "queries")


def _load(package: str, name: str) -> Statements:
    folder = resources.files(package) / name
    statements: dict[str, Sql] = {}
    for file in sorted(_sql_files(folder), key=lambda entry: entry.name):
        source = f"{package}/{name}/{file.name}"
        for statement in parse(file.read_text(encoding="utf-8"), room=package.rpartition(".")[2], source=source):
            if statement.name in statements:
                raise Broken(f"{source}: the name {statement.name} is already taken in this room")
            statements[statement.name] = statement
    if not statements:
        raise Broken(f"{package} has no SQL files; the installation is incomplete")
    return Statements(package, statements)


def all_rooms() -> list[Statements]:
    """Every room of the house that has a sql/ folder, for the test and for the preparation at boot."""
    return [load(package) for package in _packages_with_sql("handbill", resources.files("handbill"))]


def _sql_files(folder: Traversable) -> list[Traversable]:
    if not folder.is_dir():
        return []
    return [entry for entry in folder.iterdir() if entry.is_file() and entry.name.endswith(".sql")]


def _packages_with_sql(package: str, folder: Traversable) -> list[str]:
    found: list[str] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not entry.is_dir() or entry.name.startswith(("_", ".")) or entry.name in ("sql", "migrations"):
            continue
        name = f"{package}.{entry.name}"
        if _sql_files(entry / "sql"):
            found.append(name)
        found.extend(_packages_with_sql(name, entry))
    return found
