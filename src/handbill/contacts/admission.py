"""Whether a tenant may upload another file: limits of imports under way, and of files and bytes that nobody started.

What is stored is counted in PostgreSQL, what is still coming in this process. The check in the transaction that stores
an upload is made under a lock, so that uploads in several processes do not exceed the limits between them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from handbill.contacts import import_store as store
from handbill.contacts.running import CHUNKS, UPLOADS
from handbill.infra.postgres import Database, Tx
from handbill.jobs.service import JobsService
from handbill.kit.errors import Throttled


class UploadLimits(msgspec.Struct, frozen=True):
    """What one tenant may have: imports under way; files, and their bytes, that were uploaded and not started."""

    open_imports: int = 20
    unstarted_files: int = 20
    unstarted_bytes: int = 2 << 30
    unstarted_hours: int = 48


class _Incoming:
    """Uploads of one tenant that this process is receiving."""

    def __init__(self) -> None:
        self.files = self.size = 0


class Reservation:
    """Room for one upload that is coming."""

    def __init__(self, limits: UploadLimits, incoming: _Incoming) -> None:
        self._limits = limits
        self._incoming = incoming
        self._stored = store.Unstarted(0, 0)
        self.size = 0

    def check(self, stored: store.Unstarted, length: int) -> None:
        """Raises Throttled unless a file of this length has room beside what is stored and coming."""
        self._stored = stored
        check_room(self._limits, stored.files + self._incoming.files, stored.size + self._incoming.size + length)

    def reserve(self, size: int) -> None:
        """Count bytes that have come. Raises Throttled when the tenant has no more room."""
        self.size += size
        self._incoming.size += size
        stored = self._stored
        check_room(self._limits, stored.files + self._incoming.files, stored.size + self._incoming.size)


class UploadAdmission:
    """Admits uploads of each tenant within its limits."""

    def __init__(self, database: Database, jobs: JobsService, limits: UploadLimits) -> None:
        self._database = database
        self._jobs = jobs
        self._limits = limits
        self._incoming: dict[int, _Incoming] = {}

    @asynccontextmanager
    async def admit(self, tenant_id: int, length: int | None) -> AsyncIterator[Reservation]:
        """Room for one file until the block ends. Raises Throttled when the tenant has none, or its queues lag."""
        for queue in (UPLOADS, CHUNKS):
            await self._jobs.pressure.check(queue, tenant_id)
        incoming = self._incoming.setdefault(tenant_id, _Incoming())
        incoming.files += 1
        reservation = Reservation(self._limits, incoming)
        try:
            async with self._database.tenant(tenant_id) as tx:
                if await store.number(tx, "open_imports", tenant_id) >= self._limits.open_imports:
                    raise Throttled(
                        "Too many of your imports are under way; nothing was kept, try again when one is done.",
                        code="IMPORTS_WAITING",
                        retry_after=30,
                    )
                reservation.check(await store.count_unstarted(tx, tenant_id), length or 0)
            yield reservation
        finally:
            incoming.files -= 1
            incoming.size -= reservation.size
            if not incoming.files:
                del self._incoming[tenant_id]

    async def check_stored(self, tx: Tx, tenant_id: int, size: int) -> None:
        """In the transaction that stores an upload: raises Throttled if others have taken its room meanwhile."""
        await store.hold_uploads(tx, tenant_id)
        stored = await store.count_unstarted(tx, tenant_id)
        check_room(self._limits, stored.files + 1, stored.size + size)


def check_room(limits: UploadLimits, files: int, size: int) -> None:
    """Raises Throttled if a tenant with so many files and bytes, the new one included, has too many."""
    if files > limits.unstarted_files or size > limits.unstarted_bytes:
        raise Throttled(
            f"With this file, {files} uploads of {size} bytes wait to be started; {limits.unstarted_files} uploads of"
            f" {limits.unstarted_bytes} bytes may. Nothing was kept. Start or cancel some of them"
            f" (`POST /admin/imports/{{import_id}}/cancel`); after {limits.unstarted_hours} hours they expire.",
            code="UPLOADS_WAITING",
            retry_after=60,
        )
