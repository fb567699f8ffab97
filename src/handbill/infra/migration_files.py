"""The numbered files of a store, and how they compare with what a database says was applied."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import msgspec

from handbill.kit.errors import Broken

_NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")


class Migration(msgspec.Struct, frozen=True):
    number: int
    name: str
    text: str

    @property
    def label(self) -> str:
        return f"{self.number:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


class Status(msgspec.Struct, frozen=True):
    """What is applied, what waits, and what the database knows that this code does not."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def shipped(store: str = "postgres") -> list[Migration]:
    """The files in the package, in order. A gap or a number used twice is a mistake of ours: say it at once."""
    found = []
    folder = resources.files("handbill") / "migrations" / store
    for entry in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.match(entry.name):
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise Broken(f"The {store} migrations are not numbered 1..n: {[migration.label for migration in found]}")
    return found


def compare(applied: dict[int, tuple[str, str]], files: list[Migration]) -> Status:
    """What stands and what is missing. An applied file whose text has changed since is refused."""
    for migration in files:
        known = applied.get(migration.number)
        if known is not None and known != (migration.name, migration.checksum):
            raise Broken(
                f"Migration {migration.label} was applied as {known[0]} with another text. Nothing was changed. "
                "Applied files must never be edited: restore the file, and put the change into a new one.",
                code="MIGRATION_CHANGED",
            )
    numbers = {migration.number for migration in files}
    return Status(
        applied=tuple(f"{number:04d}_{applied[number][0]}" for number in sorted(applied)),
        pending=tuple(migration.label for migration in files if migration.number not in applied),
        unknown=tuple(f"{number:04d}_{applied[number][0]}" for number in sorted(applied) if number not in numbers),
    )


def refuse_newer(state: Status, store: str) -> None:
    if state.unknown:
        raise Broken(
            f"The {store} schema is newer than this code: it has {', '.join(state.unknown)}. Nothing was changed. "
            "Run the newer release of Handbill, or restore the backup taken before the upgrade.",
            code="SCHEMA_NEWER",
        )


def split(text: str) -> list[str]:
    """ClickHouse takes one statement at a time; ours end with a semicolon at the end of a line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in re.split(r";[ \t]*(?:\n|$)", "\n".join(lines)) if part.strip()]
