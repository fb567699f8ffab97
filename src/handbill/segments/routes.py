"""Segments over HTTP: make, change, look into, explain."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter, SkipValidation

from handbill.kit.etags import etag, wanted_version
from handbill.kit.pages import LIMIT_DEFAULT, LIMIT_MAX, Page, decode, page
from handbill.segments import examples
from handbill.segments.model import Belongs, Member, NewSegment, Preview, PreviewIn, SegmentPatch, SegmentView
from handbill.segments.service import SegmentsService
from handbill.segments.values import as_id
from handbill.tenants.model import Principal

Segments = NamedDependency[SkipValidation[SegmentsService]]
Id = FromPath[UUID]
Who = NamedDependency[SkipValidation[Principal]]
Cursor = Annotated[
    str | None, QueryParameter(max_length=500, description="`next` of the page before; none for the first.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=LIMIT_MAX, description="Rows on a page.")]
Search = Annotated[str | None, QueryParameter(max_length=200, description="Part of the name, in any case.")]
DistinctId = Annotated[str, QueryParameter(min_length=1, max_length=400, description="An id of the person, as sent.")]
IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of your last read, if it matters.")
]


class SegmentRoutes(Controller):
    path = "/admin/segments"
    tags = ("Segments",)

    @get(operation_id="listSegments", opt={"scope": "segments:read", "example": examples.page(examples.SEGMENT)})
    async def listed(
        self,
        segments: Segments,
        principal: Who,
        cursor: Cursor = None,
        limit: Limit = LIMIT_DEFAULT,
        search: Search = None,
    ) -> Page[SegmentView]:
        """The tenant's segments with their sizes, oldest first."""
        return await segments.editor.listed(principal.tenant_id, cursor, limit, search)

    @post(
        operation_id="createSegment",
        opt={"scope": "segments:write", "example": examples.SEGMENT, "body_example": examples.NEW_SEGMENT},
    )
    async def create(self, segments: Segments, principal: Who, data: JSONBody[NewSegment]) -> Response[SegmentView]:
        """Make a segment: a name and a rule over people. Everybody is held against it in the background."""
        made = await segments.editor.create(principal.tenant_id, data, actor=principal.actor)
        return Response(made, status_code=201, headers={"ETag": etag(made.version)})

    @post(
        "/preview",
        operation_id="previewSegment",
        status_code=200,
        opt={
            "scope": "segments:read",
            "example": examples.PREVIEW,
            "body_example": {"rule": examples.NEW_SEGMENT["rule"]},
        },
    )
    async def preview(self, segments: Segments, principal: Who, data: JSONBody[PreviewIn]) -> Preview:
        """How many people a rule takes, and some of them, before anything is saved. Beyond 100,000 an estimate."""
        return await segments.editor.preview(principal.tenant_id, data.rule)

    @get("/{segment_id:uuid}", operation_id="getSegment", opt={"scope": "segments:read", "example": examples.SEGMENT})
    async def read(self, segments: Segments, principal: Who, segment_id: Id) -> Response[SegmentView]:
        """One segment."""
        found = await segments.editor.read(principal.tenant_id, segment_id)
        return Response(found, headers={"ETag": etag(found.version)})

    @patch(
        "/{segment_id:uuid}",
        operation_id="changeSegment",
        opt={"scope": "segments:write", "example": examples.SEGMENT, "body_example": {"name": "Larger teams"}},
    )
    async def change(
        self,
        segments: Segments,
        principal: Who,
        segment_id: Id,
        data: JSONBody[SegmentPatch],
        if_match: IfMatch = None,
    ) -> Response[SegmentView]:
        """Change what is sent and nothing else. After another rule everybody is looked at again."""
        found = await segments.editor.change(
            principal.tenant_id, segment_id, data, version=wanted_version(if_match), actor=principal.actor
        )
        return Response(found, headers={"ETag": etag(found.version)})

    @delete("/{segment_id:uuid}", operation_id="deleteSegment", opt={"scope": "segments:write"})
    async def remove(self, segments: Segments, principal: Who, segment_id: Id, if_match: IfMatch = None) -> None:
        """Delete a segment that nothing uses."""
        await segments.editor.delete(
            principal.tenant_id, segment_id, version=wanted_version(if_match), actor=principal.actor
        )

    @get(
        "/{segment_id:uuid}/members",
        operation_id="listSegmentMembers",
        opt={"scope": "segments:read", "example": examples.page(examples.MEMBER)},
    )
    async def members(
        self, segments: Segments, principal: Who, segment_id: Id, cursor: Cursor = None, limit: Limit = LIMIT_DEFAULT
    ) -> Page[Member]:
        """The people of a segment with their properties."""
        after = as_id(decode(cursor, (str,))[0]) if cursor is not None else None
        rows = await segments.members(principal.tenant_id, segment_id, after, limit + 1)
        return page(rows, limit, lambda row: (str(row.person_id),))

    @get(
        "/{segment_id:uuid}/explain",
        operation_id="explainSegment",
        opt={"scope": "segments:read", "example": examples.BELONGS},
    )
    async def explain(self, segments: Segments, principal: Who, segment_id: Id, distinct_id: DistinctId) -> Belongs:
        """Whether somebody belongs to it, and if not, the part of the rule that does not hold."""
        return await segments.editor.explain(principal.tenant_id, segment_id, distinct_id)


handlers = [SegmentRoutes]
