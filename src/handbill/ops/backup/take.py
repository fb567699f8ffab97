"""Taking a backup of a running, busy installation."""

from __future__ import annotations

import shutil
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from handbill import __version__
from handbill.infra import migrations
from handbill.infra.embedded.home import explained
from handbill.kit.errors import Broken, Conflict
from handbill.ops import demo
from handbill.ops.backup import clickhouse, manifest, redis, tools
from handbill.ops.backup.manifest import Manifest
from handbill.ops.state import moment
from handbill.settings import Settings
from handbill.wiring import secrets


async def backup(settings: Settings, target: Path) -> Manifest:
    """Write everything to `target` (a directory, or one file if it ends in .tar). It appears whole or not at all."""
    if target.exists():
        raise Conflict(f"{target} exists. Nothing was written. Name a new place.", code="BACKUP_EXISTS")
    if settings.postgres.url is None:
        raise Broken("A backup needs the owner's address. Set HANDBILL_POSTGRES__URL.", code="NO_ADDRESS")
    draft = target.with_name(target.name + ".new")
    with explained(target):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        try:
            written = await _write(settings, draft)
            _finish(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return written


async def _write(settings: Settings, draft: Path) -> Manifest:
    owner = settings.postgres.url or ""
    keys = await redis.copy_out(settings.redis.url or "", draft / "redis.frames")
    async with moment(settings) as now:
        applied = (await migrations.status(owner)).applied
        words = ("--format=custom", "--no-owner", f"--snapshot={now.snapshot}", f"--file={draft / 'postgres.dump'}")
        await tools.run("pg_dump", owner, *words)
    tables: tuple[str, ...] = ()
    if settings.clickhouse.url is not None:
        tables = await clickhouse.copy_out(settings.clickhouse.url, draft / "clickhouse")
    _secrets(settings, draft / "secrets")
    made = Manifest(
        handbill=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        migrations=applied,
        state=now.state,
        clickhouse_tables=tables,
        redis_keys=keys,
        files=manifest.describe(draft),
    )
    (draft / manifest.NAME).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2))
    return made


def _secrets(settings: Settings, folder: Path) -> None:
    """The seal key goes along: without it the tenants' own secrets in the dump could never be opened again."""
    folder.mkdir(mode=0o700)
    for path in (secrets.seal_key_file(settings), demo.file_of(Path(settings.home))):
        if path.exists():
            shutil.copy(path, folder / path.name)
            (folder / path.name).chmod(0o600)


def _finish(draft: Path, target: Path) -> None:
    if target.suffix != ".tar":
        draft.rename(target)
        return
    packed = target.with_name(target.name + ".part")
    try:
        with tarfile.open(packed, "w") as tar:
            packed.chmod(0o600)
            tar.add(draft, arcname=".")
        packed.rename(target)
    finally:
        packed.unlink(missing_ok=True)
