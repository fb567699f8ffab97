"""The manifest of a backup: what is in it, which schema it has, and a checksum of every file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from handbill.kit.errors import Broken
from handbill.ops.state import StateHash

NAME = "manifest.json"
FORMAT = 1


class File(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    handbill: str
    created_at: str
    migrations: tuple[str, ...]
    state: StateHash
    clickhouse_tables: tuple[str, ...]
    redis_keys: int
    files: tuple[File, ...]
    format: int = FORMAT


def describe(folder: Path) -> tuple[File, ...]:
    """Every file below the folder, with size and checksum."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != NAME)
    return tuple(File(str(path.relative_to(folder)), path.stat().st_size, digest(path)) for path in paths)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(folder: Path) -> Manifest:
    """The manifest, after every file was found whole; Broken names the first that is not."""
    try:
        manifest = msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise Broken(
            f"{folder} is no backup: it has no {NAME}. Nothing was changed. A backup that was cut short has none.",
            code="BACKUP_BROKEN",
        ) from None
    except msgspec.DecodeError as error:
        raise Broken(
            f"The manifest of {folder} cannot be read: {error}. Nothing was changed.", code="BACKUP_BROKEN"
        ) from error
    if manifest.format > FORMAT:
        raise Broken(
            f"{folder} was written by a newer release ({manifest.handbill}). Nothing was changed. Restore with it.",
            code="BACKUP_BROKEN",
        )
    for file in manifest.files:
        _check(folder, file)
    return manifest


def _check(folder: Path, file: File) -> None:
    path = folder / file.name
    if not path.resolve().is_relative_to(folder.resolve()):
        why = "lies outside the backup"
    elif not path.is_file():
        why = "is missing"
    elif path.stat().st_size != file.bytes:
        why = f"has {path.stat().st_size} bytes instead of {file.bytes}"
    elif digest(path) != file.sha256:
        why = "does not match its checksum"
    else:
        return
    raise Broken(f"The backup's file {file.name} {why}. Nothing was changed. Use another backup.", code="BACKUP_BROKEN")
