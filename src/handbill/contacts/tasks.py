"""Jobs of an import's three queues. Each names its import and its part; all else is read from PostgreSQL.

Parsing is work for processors: it runs in processes, as many as cores, whatever the queue's concurrency is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from handbill.contacts.chunks import Cpu
from handbill.contacts.running import (
    CHUNKS,
    PERSIST,
    PERSIST_SLICE,
    PROCESS_CHUNK,
    PROCESS_UPLOAD,
    UNDO_IMPORT,
    UPLOADS,
    NotNow,
    Runner,
)
from handbill.jobs.model import Job, RetryLater, Unrecoverable

JOBS: dict[str, dict[str, str]] = {
    UPLOADS: {PROCESS_UPLOAD: "Read an uploaded file through once and cut it into chunks at the ends of records."},
    CHUNKS: {PROCESS_CHUNK: "Parse, check and normalise one chunk of a file, and stage its rows."},
    PERSIST: {
        PERSIST_SLICE: "Merge one slice of an import's staged rows into the contacts, by its policy.",
        UNDO_IMPORT: "Put back what an import changed, and remove what it created.",
    },
}
AGAIN_MS = 1_000

Handler = Callable[[Job, Any], Awaitable[Any]]


class Payload(msgspec.Struct, frozen=True):
    importId: UUID
    no: int = 0


class ContactTasks:
    def __init__(self, runner: Runner, cpu: Cpu) -> None:
        self._runner = runner
        self._cpu = cpu

    def handlers(self) -> Mapping[str, Mapping[str, Handler]]:
        """By queue."""
        return {
            UPLOADS: {PROCESS_UPLOAD: self.upload},
            CHUNKS: {PROCESS_CHUNK: self.chunk},
            PERSIST: {PERSIST_SLICE: self.persist, UNDO_IMPORT: self.undo},
        }

    async def upload(self, job: Job, ctx: Any) -> str:
        tenant, sent = _payload(job)
        try:
            return await self._runner.upload(tenant, sent.importId, self._cpu)
        except NotNow:
            raise RetryLater(AGAIN_MS, "other imports of this tenant are running") from None

    async def chunk(self, job: Job, ctx: Any) -> str:
        tenant, sent = _payload(job)
        return await self._runner.chunk(tenant, sent.importId, sent.no, self._cpu)

    async def persist(self, job: Job, ctx: Any) -> str:
        tenant, sent = _payload(job)
        return await self._runner.persist(tenant, sent.importId, sent.no)

    async def undo(self, job: Job, ctx: Any) -> str:
        tenant, sent = _payload(job)
        return await self._runner.undo(tenant, sent.importId)

    async def failed(self, job: Job, reason: str, trace: str) -> None:
        """A job that failed for good ends its import, so that nobody waits for it."""
        tenant, sent = _payload(job)
        await self._runner.fail(tenant, sent.importId, f"JOB_FAILED: {job.name}: {reason}")


def _payload(job: Job) -> tuple[int, Payload]:
    try:
        sent = msgspec.convert(job.data, Payload)
    except msgspec.ValidationError as error:
        raise Unrecoverable(f"the payload cannot be read: {error}") from None
    if job.tenant_id is None:
        raise Unrecoverable("an import belongs to a tenant")
    return job.tenant_id, sent
