"""Routes of imports: a file in, a plan to look at, a run to watch, a report to read."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Request, Response, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter, SkipValidation
from litestar.response import Stream

from handbill.contacts import examples
from handbill.contacts.model import Import, ImportView, Kept, PlanPatch, Preview, Report
from handbill.contacts.service import ContactsService
from handbill.kit.etags import etag, wanted_version
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page
from handbill.tenants.model import Principal

Contacts = NamedDependency[SkipValidation[ContactsService]]
Who = NamedDependency[SkipValidation[Principal]]
Id = FromPath[UUID]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of your last read, if it matters.")
]
FileName = Annotated[
    str | None, QueryParameter(max_length=200, description="The file's name, if the body is the file.")
]
RegionQuery = Annotated[
    str | None,
    QueryParameter(
        pattern="^[A-Z]{2}$",
        description="Where national numbers are dialled, e.g. BR; without it, the tenant's `default_region`.",
    ),
]
Member = Annotated[
    str | None, QueryParameter(max_length=200, description="Which file of a .zip is meant, if it holds several.")
]
PreviewSize = Annotated[int, QueryParameter(ge=1, le=50, description="Rows of the head to look at.")]

_WRITE: dict[str, Any] = {"scope": "contacts:write", "example": examples.IMPORT}


class ImportRoutes(Controller):
    path = "/admin/imports"
    tags = ("Imports",)

    @get(operation_id="listImports", opt={"scope": "contacts:read", "example": examples.page(examples.IMPORT)})
    async def listed(
        self, contacts: Contacts, principal: Who, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Import]:
        """The tenant's imports, newest first."""
        return await contacts.imports.all(principal.tenant_id, cursor, limit)

    @post(operation_id="uploadImport", opt={**_WRITE, "streams": True, "any_media": True})
    async def upload(
        self,
        contacts: Contacts,
        principal: Who,
        request: Request[Any, Any, Any],
        name: FileName = None,
        region: RegionQuery = None,
        fixes: FromQuery[UUID | None] = None,
        member: Member = None,
    ) -> Import:
        """Upload a file: a form's part `file`, or the body itself. CSV, TSV, XLSX or JSON lines, plain, gzip or zip.

        The answer proposes how it is read and where each column goes. With `fixes`, the corrected rows of another
        import's report, its plan is used.
        """
        length = request.headers.get("content-length", "")
        return await contacts.imports.upload(
            principal.tenant_id,
            request.stream(),
            actor=principal.actor,
            content_type=request.headers.get("content-type", ""),
            name=name or "upload",
            length=int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None,
            region=region,
            fixes=fixes,
            member=member,
        )

    @get("/{import_id:uuid}", operation_id="getImport", opt={"scope": "contacts:read", "example": examples.IMPORT_VIEW})
    async def read(self, contacts: Contacts, principal: Who, import_id: Id) -> Response[ImportView]:
        """One import and how far it is, with its rate and when it should be done."""
        found = await contacts.imports.read(principal.tenant_id, import_id)
        return Response(found, headers={"ETag": etag(found.info.version)})

    @patch("/{import_id:uuid}", operation_id="planImport", opt={**_WRITE, "body_example": examples.PLAN_PATCH})
    async def plan(
        self, contacts: Contacts, principal: Who, import_id: Id, data: JSONBody[PlanPatch], if_match: IfMatch = None
    ) -> Import:
        """Change the plan of an import that is ready: columns, key, policy, region, tags, consent, header rows."""
        return await contacts.imports.change(
            principal.tenant_id, import_id, data, actor=principal.actor, if_version=wanted_version(if_match)
        )

    @get(
        "/{import_id:uuid}/preview",
        operation_id="previewImport",
        opt={"scope": "contacts:read", "example": examples.PREVIEW},
    )
    async def preview(self, contacts: Contacts, principal: Who, import_id: Id, rows: PreviewSize = 20) -> Preview:
        """The first rows and what would become of each. Nothing is changed."""
        return await contacts.imports.preview(principal.tenant_id, import_id, rows)

    @post("/{import_id:uuid}/start", operation_id="startImport", status_code=202, opt=_WRITE)
    async def start(self, contacts: Contacts, principal: Who, import_id: Id) -> Import:
        """Begin. Starting it again changes nothing."""
        return await contacts.imports.start(principal.tenant_id, import_id, actor=principal.actor)

    @post("/{import_id:uuid}/pause", operation_id="pauseImport", status_code=200, opt=_WRITE)
    async def pause(self, contacts: Contacts, principal: Who, import_id: Id) -> Import:
        """Begin nothing new of it. What is being done is finished."""
        return await contacts.imports.pause(principal.tenant_id, import_id, actor=principal.actor)

    @post("/{import_id:uuid}/resume", operation_id="resumeImport", status_code=202, opt=_WRITE)
    async def resume(self, contacts: Contacts, principal: Who, import_id: Id) -> Import:
        """Go on where it was paused."""
        return await contacts.imports.resume(principal.tenant_id, import_id, actor=principal.actor)

    @post("/{import_id:uuid}/cancel", operation_id="cancelImport", status_code=200, opt=_WRITE)
    async def cancel(self, contacts: Contacts, principal: Who, import_id: Id) -> Import:
        """Do no more of it. What was merged stays, and can be undone."""
        return await contacts.imports.cancel(principal.tenant_id, import_id, actor=principal.actor)

    @post("/{import_id:uuid}/undo", operation_id="undoImport", status_code=202, opt=_WRITE)
    async def undo(self, contacts: Contacts, principal: Who, import_id: Id) -> Import:
        """Put back what still is as the import left it, and remove contacts it made that nobody touched since."""
        return await contacts.imports.undo(principal.tenant_id, import_id, actor=principal.actor)

    @get(
        "/{import_id:uuid}/kept",
        operation_id="listUndoKept",
        opt={"scope": "contacts:read", "example": examples.page(examples.KEPT)},
    )
    async def kept(
        self, contacts: Contacts, principal: Who, import_id: Id, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Kept]:
        """Contacts that an undo did not put back whole, because they had changed since."""
        return await contacts.imports.kept(principal.tenant_id, import_id, cursor, limit)

    @get(
        "/{import_id:uuid}/report",
        operation_id="reportImport",
        opt={"scope": "contacts:read", "example": examples.REPORT},
    )
    async def report(self, contacts: Contacts, principal: Who, import_id: Id) -> Report:
        """What became of the rows, by cause, and what to do about each."""
        return await contacts.imports.report(principal.tenant_id, import_id)

    @get(
        "/{import_id:uuid}/rejected",
        operation_id="rejectedRows",
        media_type="text/csv",
        opt={"scope": "contacts:read", "example": "Nome,Celular,handbill_row,handbill_reason\r\n"},
    )
    async def rejected(
        self, contacts: Contacts, principal: Who, import_id: Id, notes: FromQuery[bool] = False
    ) -> Stream:
        """The rejected rows as CSV: their own columns, the reason and a fix. Correct it and upload it with `fixes`."""
        found = await contacts.imports.read(principal.tenant_id, import_id)
        return Stream(
            contacts.imports.rejected_csv(principal.tenant_id, found.info.import_id, notes=notes),
            media_type="text/csv",
            headers={"Content-Disposition": f'attachment; filename="rejected-{import_id}.csv"'},
        )
