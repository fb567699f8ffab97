"""The room's face.

Other rooms may join these tables in statements of their own, because consent and suppression must be looked at in the
statement that sends, not before it:

`contacts.contacts` (tenant_id, contact_id): `phone` E.164, `whatsapp` the address WhatsApp counts, `email` in lower
case, `external_id`, `name`, `locale`, `attributes` jsonb, `tags` text[], `granted` and `denied` text[] of channels
(`whatsapp`, `sms`, `email`): a channel is in one of them or in none.
The address on a channel is `whatsapp`, `phone` (sms) or `email`; it is the one to be unique by in a campaign.

`contacts.suppressions` (tenant_id, channel, address): `reason`, `until` (null: for ever). An address must not be
written to while `until is null or until > now`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec

from handbill.contacts import phones
from handbill.contacts.admission import UploadAdmission, UploadLimits
from handbill.contacts.book import Book, People, address_of
from handbill.contacts.chunks import Cpu
from handbill.contacts.erasure import Erasure
from handbill.contacts.imports import DefaultRegion, Imports, file_chunks
from handbill.contacts.inspection import FileInspector, InspectionLimits
from handbill.contacts.recipients import RecipientFinder
from handbill.contacts.running import SLICE_ROWS, Runner
from handbill.contacts.sources import Bounds
from handbill.contacts.split import CHUNK
from handbill.contacts.store import sweep_findings
from handbill.contacts.upload_cleanup import UploadCleanup
from handbill.contacts.uploads import Uploads
from handbill.infra.postgres import Database
from handbill.infra.state import StateTable
from handbill.jobs.service import JobsService
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.tenants.service import Audit

__all__ = [
    "STATE",
    "Book",
    "ContactsPolicy",
    "ContactsService",
    "Imports",
    "InspectionLimits",
    "People",
    "UploadLimits",
    "address_of",
    "file_chunks",
    "from_whatsapp",
    "spellings",
]

STATE = (
    StateTable("contacts.contacts", ("tenant_id", "contact_id"), frozenset({"updated_at", "version"})),
    StateTable("contacts.consent_log", ("tenant_id", "contact_id", "consent_id"), frozenset({"consent_id"})),
    StateTable("contacts.suppressions", ("tenant_id", "channel", "address")),
    StateTable("contacts.imports", ("tenant_id", "import_id"), frozenset({"version", "file_gone", "finished_at"})),
    StateTable("contacts.import_parts", ("tenant_id", "import_id", "phase", "no")),
    StateTable("contacts.import_rows", ("tenant_id", "import_id", "slice", "row_no")),
    StateTable("contacts.import_findings", ("tenant_id", "import_id", "row_no", "finding"), frozenset({"finding"})),
    StateTable("contacts.import_changes", ("tenant_id", "import_id", "contact_id")),
    StateTable("contacts.undo_kept", ("tenant_id", "import_id", "contact_id")),
)

from_whatsapp = phones.from_whatsapp
spellings = phones.forms


class ContactsPolicy(msgspec.Struct, frozen=True):
    """Where uploads lie and how large they may be; how many imports of one tenant run, and how many may wait."""

    folder: Path
    upload_limit: int = 1 << 30
    unpacked_limit: int = 4 << 30
    xlsx_limit: int = 128 << 20
    at_once: int = 2
    uploads: UploadLimits = UploadLimits()
    keep_days: int = 7
    report_days: int = 90
    chunk_bytes: int = CHUNK
    slice_rows: int = SLICE_ROWS
    chunk_seconds: float = 60.0
    inspection: InspectionLimits = InspectionLimits()


class ContactsService:
    """Contacts and their imports. `cpu` runs a function in a process with limits; it reads what clients uploaded."""

    def __init__(
        self,
        database: Database,
        jobs: JobsService,
        audit: Audit,
        clock: Clock,
        policy: ContactsPolicy,
        cpu: Cpu,
        default_region: DefaultRegion,
        people: People | None = None,
    ) -> None:
        ids = Ids(clock)
        self._database = database
        self._clock = clock
        self._policy = policy
        bounds = Bounds(policy.unpacked_limit, policy.xlsx_limit)
        self.uploads = Uploads(policy.folder, policy.upload_limit)
        self.runner = Runner(
            database, jobs.outbox, self.uploads, clock, bounds=bounds, at_once=policy.at_once,
            chunk_bytes=policy.chunk_bytes, slice_rows=policy.slice_rows, chunk_seconds=policy.chunk_seconds,
        )  # fmt: skip
        self.imports = Imports(
            database, audit, self.runner, self.uploads, clock, ids,
            inspector=FileInspector(cpu, bounds, policy.inspection),
            admission=UploadAdmission(database, jobs, policy.uploads), default_region=default_region,
        )  # fmt: skip
        self._cleanup = UploadCleanup(
            database, self.runner, self.uploads, clock,
            unstarted=timedelta(hours=policy.uploads.unstarted_hours), kept=timedelta(days=policy.keep_days),
        )  # fmt: skip
        self.book = Book(database, audit, clock, ids, default_region, people)
        self.audience = self.book.audience
        self.recipient = RecipientFinder(database, default_region).find
        self.suppress = self.book.suppress
        self.suppressed = self.book.suppressed
        self.opt_out = self.book.opt_out
        self.opt_in = self.book.opt_in
        self.erasure = Erasure(database)
        self.erase = self.erasure.erase
        self.export = self.erasure.export

    async def sweep(self) -> int:
        """Remove files and reports that are old, and suppressions that have ended. How many files went."""
        now = self._clock.now()
        await self.book.sweep()
        await sweep_findings(self._database, now - timedelta(days=self._policy.report_days))
        return await self._cleanup.run()
