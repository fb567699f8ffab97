"""A tenant's rules made ready: every segment's jsonpath, and what banners ask of people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from handbill.kit.bounds import COMPILED_SEGMENTS
from handbill.kit.caches import LruCache
from handbill.segments.model import Segment
from handbill.segments.rules import Node, leaves, read

_Versions = tuple[tuple[int, int], ...]


class Compiled(msgspec.Struct, frozen=True):
    """One segment as it is held against people. `spans`: ages at which somebody comes or goes by the clock alone."""

    id: int
    public_id: UUID
    path: str
    spans: tuple[int, ...]
    ids: bool


class Audience(msgspec.Struct, frozen=True):
    """All segments of a tenant, and its needs with whether each is projected for everybody."""

    tenant_id: int
    segments: tuple[Compiled, ...]
    needs: Mapping[str, bool]

    @property
    def asks_ids(self) -> bool:
        return any(segment.ids for segment in self.segments)


def compiled(segments: Iterable[Segment]) -> tuple[Compiled, ...]:
    listed = list(segments)
    rules = {segment.public_id: segment.rule for segment in listed}
    return tuple(one(segment.id, segment.public_id, read(segment.rule, rules)[0]) for segment in listed)


def one(id: int, public_id: UUID, node: Node) -> Compiled:
    found = list(leaves(node))
    spans = sorted({span for leaf in found for span in leaf.spans})
    return Compiled(id, public_id, node.path, tuple(spans), any(leaf.ids for leaf in found))


def dependents(segments: Sequence[Segment], changed: UUID) -> list[Segment]:
    """Segments whose rules lead to the changed one, directly or through others."""
    rules = {segment.public_id: segment.rule for segment in segments}
    named = {segment.public_id: read(segment.rule, rules)[1].named for segment in segments}
    reached = {changed}
    while True:
        more = {each for each, names in named.items() if each not in reached and names & reached}
        if not more:
            return [segment for segment in segments if segment.public_id in reached and segment.public_id != changed]
        reached |= more


class Compiler:
    """Remembers what it compiled as long as no segment of the tenant has changed. Bounded."""

    def __init__(self) -> None:
        self._cache: LruCache[int, tuple[_Versions, tuple[Compiled, ...]]] = LruCache(COMPILED_SEGMENTS)

    def of(self, tenant_id: int, segments: Sequence[Segment]) -> tuple[Compiled, ...]:
        versions = tuple((segment.id, segment.version) for segment in segments)
        cached: tuple[_Versions, tuple[Compiled, ...]] | None = self._cache.get(tenant_id)
        if cached is not None and cached[0] == versions:
            return cached[1]
        made = compiled(segments)
        self._cache[tenant_id] = (versions, made)
        return made
