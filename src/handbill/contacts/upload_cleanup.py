"""Removal of uploaded files: unstarted ones that expired, those of imports that ended, and what crashes left behind."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from handbill.contacts import import_store as store
from handbill.contacts.running import Runner
from handbill.contacts.uploads import Uploads
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.tenant_rounds import TenantRounds

ORPHAN_AGE = timedelta(days=1)
"""Files that no import knows are removed after this time; one that is being written is younger."""
BATCH = 500
EXPIRED = "UPLOAD_EXPIRED: the upload was not started in time and its file has been removed; upload it again"


class UploadCleanup:
    """One import at a time: what fails for one does not keep the others."""

    def __init__(
        self,
        database: Database,
        runner: Runner,
        uploads: Uploads,
        clock: Clock,
        *,
        unstarted: timedelta,
        kept: timedelta,
    ) -> None:
        self._database = database
        self._runner = runner
        self._uploads = uploads
        self._clock = clock
        self._unstarted = unstarted
        self._kept = kept
        self._rounds: TenantRounds[tuple[int, UUID]] = TenantRounds("uploads-cleanup", clock=clock)

    async def run(self) -> int:
        """How many imports lost their files."""
        return await self._expire() + await self._remove_old() + await self._remove_orphans()

    async def _expire(self) -> int:
        removed = 0
        while True:
            async with self._database.worker() as tx:
                keys = await store.expired_uploads(tx, self._clock.now() - self._unstarted, BATCH)
            ended = await self._rounds.for_each_tenant(keys, self._cancel)
            removed += len(ended)
            if len(keys) < BATCH or not ended:
                return removed

    async def _cancel(self, key: tuple[int, UUID]) -> None:
        tenant_id, import_id = key
        async with self._database.worker() as tx:
            await store.hold_table(tx, tenant_id)
            one = await store.read_import(tx, tenant_id, import_id, lock=True)
            if one is None or one.info.status != "ready":
                return
            await self._runner.end(tx, tenant_id, one, "cancelled", EXPIRED)
            await store.file_gone(tx, tenant_id, import_id)
        await self._uploads.discard(one.file)

    async def _remove_old(self) -> int:
        removed = 0
        while True:
            async with self._database.worker() as tx:
                old = await store.old_files(tx, self._clock.now() - self._kept, BATCH)
            files = {(tenant_id, import_id): names for tenant_id, import_id, names in old}

            async def remove(key: tuple[int, UUID], files: dict[tuple[int, UUID], list[str]] = files) -> None:
                await self._uploads.remove(*files[key])
                async with self._database.worker() as tx:
                    await store.file_gone(tx, *key)

            done = await self._rounds.for_each_tenant(files, remove)
            removed += len(done)
            if len(old) < BATCH or not done:
                return removed

    async def _remove_orphans(self) -> int:
        """Of uploads that were cut off, and of a process that ended before it removed them."""
        removed = 0
        old = await self._uploads.list_old(self._clock.now() - ORPHAN_AGE)
        for start in range(0, len(old), BATCH):
            batch = old[start : start + BATCH]
            async with self._database.worker() as tx:
                kept = await store.imports_with_files(tx, [import_id for import_id, _ in batch])
            orphans = [file for import_id, file in batch if import_id not in kept or file.endswith(".part")]
            await self._uploads.discard(*orphans)
            removed += len(orphans)
        return removed
