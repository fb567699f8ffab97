"""From a question to a statement and its parameters: pure, so that a test can hold every statement against a wall."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.insights.model import Field, Filter, FunnelQuery, Matching, RetentionQuery, TrendsQuery
from handbill.insights.periods import milliseconds
from handbill.insights.statements import Q, filled
from handbill.insights.terms import (
    GROUP_TEXT,
    MOMENT,
    PERSON,
    UNIDENTIFIED,
    Binder,
    all_of,
    condition,
    figure,
    has_unidentified,
    identified,
    matching,
    said,
    text_of,
    unidentified,
)

ALL, VALUE, NONE, OTHER = range(4)
"""What a group stands for, as the statements write it."""


Place = tuple[int, int, str, str]
"""Of an event among all: microseconds, sequence, id, and its key, since events of two kinds may have one id."""


class Compiled(msgspec.Struct, frozen=True):
    sql: str
    params: dict[str, Any]
    joins_people: bool = False
    """Whether it looks at what people are like now: it then joins as many rows as the tenant has people."""


class Range(msgspec.Struct, frozen=True):
    """[start, end), cut at `cuts`. `middle` is where the range proper begins when an earlier one is read with it.

    `only`: of these people, as they are now.
    """

    start: datetime
    end: datetime
    cuts: tuple[datetime, ...] = ()
    middle: datetime | None = None
    only: tuple[UUID, ...] | None = None

    def binder(self, tenant: int) -> Binder:
        return Binder(tenant=tenant, start=milliseconds(self.start), end=milliseconds(self.end))

    def narrowed(self, filters: Sequence[Filter], bind: Binder) -> str:
        """The filters that hold for the whole question, and its people."""
        if self.only is None:
            return all_of(filters, bind)
        return f"{all_of(filters, bind)} and {PERSON} in {bind.add(list(self.only), 'Array(UUID)')}"

    def joined(self, bind: Binder, by_person: bool) -> dict[str, str]:
        """The joins with the overrides and the people, each left out where nobody asks for it. To be asked when all
        expressions are made."""
        if bind.person_values:
            return {"people": f"{Q.people}\n{person_properties(bind)}"}
        return {} if by_person or self.only is not None else {"people": ""}


def person_properties(bind: Binder) -> str:
    """The join with the properties of people."""
    return filled("person_properties", said=", ".join(bind.person_values))


def top_values(
    tenant: int,
    within: Range,
    field: Field,
    filters: Sequence[Filter],
    among: Sequence[Any],
    groups: int,
    *,
    of_people: bool = False,
) -> Compiled:
    """The commonest values of a breakdown, over the events that any of `among` counts. `of_people`: only events that
    are somebody's, since the question counts no others."""
    bind = within.binder(tenant)
    bind.params["groups"] = groups
    where = f"{within.narrowed(filters, bind)} and ({' or '.join(matching(one, bind) for one in among)})"
    where = identified(where, among) if of_people else where
    text, there = _cut(field, bind), said(field, bind)
    sql = filled("top_values", text=text, said=there, where=where, **within.joined(bind, False))
    return Compiled(sql, bind.params, bool(bind.person_values))


def trends(tenant: int, within: Range, query: TrendsQuery, top: Sequence[str]) -> Compiled:
    bind = within.binder(tenant)
    bind.params["cuts"] = [milliseconds(cut) for cut in within.cuts]
    bind.params["middle"] = milliseconds(within.middle or within.start)
    kind, value = _group(query.breakdown, top, bind)
    conditions = [matching(one, bind) for one in query.series]
    figures, nobodys = [], []
    for number, (one, when) in enumerate(zip(query.series, conditions, strict=True)):
        of_people = one.measure == "people"
        counted = identified(when, [one]) if of_people else when
        figures.append(f"{figure(one.measure, one.of, counted, bind)} as f{number}")
        nobodys.append(f"{unidentified(when, one) if of_people else 'toUInt64(0)'} as u{number}")
    where = f"{within.narrowed(query.filters, bind)} and ({' or '.join(conditions)})"
    people = within.joined(bind, any(one.measure == "people" for one in query.series))
    sql = filled("trends", kind=kind, value=value, figures=", ".join(figures + nobodys), where=where, **people)
    return Compiled(sql, bind.params, bool(bind.person_values))


def funnel(tenant: int, within: Range, query: FunnelQuery, top: Sequence[str]) -> Compiled:
    bind = within.binder(tenant)
    conditions = [matching(step, bind) for step in query.steps]
    steps = " + ".join(f"{1 << number} * {when}" for number, when in enumerate(conditions))
    kind, value, entry = str(ALL), "''", "0"
    if query.breakdown is not None:
        # What the person's first first-step said: (its place in the order, did it say nothing, what).
        known, text = said(query.breakdown, bind), _cut(query.breakdown, bind)
        entry = f"minIf((us, e.sequence, e.event_id, toUInt8(not ({known})), {text}), {conditions[0]})"
        listed = bind.add(list(top), "Array(String)")
        kind = f"multiIf(entry.4 = 1, {NONE}, has({listed}, entry.5), {VALUE}, {OTHER})"
        value = f"if(kind = {VALUE}, entry.5, '')"
    where = identified(f"{within.narrowed(query.filters, bind)} and ({' or '.join(conditions)})", query.steps)
    mask, instant = f"toUInt64({steps})", f"cityHash64({PERSON}, {MOMENT}, e.sequence)"
    window = bind.add(query.window_s * 1_000_000, "Int64")
    people = within.joined(bind, True)
    sql = filled(
        "funnel",
        kind=kind,
        value=value,
        person=PERSON,
        moment=MOMENT,
        mask=mask,
        instant=instant,
        ties=filled("ties", instant=instant, mask=mask, where=where, **people),
        entry=entry,
        walk=_walk(len(query.steps), window),
        levels=", ".join(_levels(len(query.steps))),
        where=where,
        **people,
    )
    return Compiled(sql, bind.params, bool(bind.person_values))


def unidentified_events(
    tenant: int, within: Range, filters: Sequence[Filter], among: Sequence[Matching]
) -> Compiled | None:
    """How many events that each of `among` matches are nobody's; None where none of them can be."""
    if not has_unidentified(among) or within.only is not None:  # a segment has people only
        return None
    bind = within.binder(tenant)
    conditions = [matching(one, bind) for one in among]
    counts = ", ".join(unidentified(when, one) for when, one in zip(conditions, among, strict=True))
    where = f"{within.narrowed(filters, bind)} and ({' or '.join(conditions)}) and {UNIDENTIFIED}"
    sql = filled("counts", counts=counts, where=where, **within.joined(bind, False))
    return Compiled(sql, bind.params, bool(bind.person_values))


def _walk(steps: int, window: str) -> str:
    """A person's way through its moments, level by level, all people at once.

    s1..sn hold, for each moment that is step n of a chain, the latest beginning such a chain can have: it is never
    worse than an earlier one, its window ends later. A later moment never has an earlier beginning, so the newest one
    so far is the last one seen (arrayFill). Only what lies before counts (the shift), so that no event is two steps;
    the moments stand in the order of events, also where they have the same time. The first moment that got furthest
    names the chain by its beginning, and the chain's steps are the first moments with that beginning. No moment is 0.
    """
    parts = ["arrayMap((t, h) -> if(bitTest(h, 0), t, 0), times, hits) as s1"]
    for level in range(2, steps + 1):
        before = f"arrayShiftRight(arrayFill(x -> x != 0, s{level - 1}), 1, toInt64(0))"
        grows = f"bitTest(h, {level - 1}) and b != 0 and t - b <= {window}"
        parts.append(f"arrayMap((t, h, b) -> if({grows}, b, 0), times, hits, {before}) as s{level}")
    levels = range(steps, 1, -1)
    furthest = "".join(f"arrayExists(x -> x != 0, s{level}), {level}, " for level in levels)
    parts.append(f"multiIf({furthest}arrayExists(x -> x != 0, s1), 1, 0) as reached")
    begun = "".join(f"reached = {level}, arrayFirst(x -> x != 0, s{level}), " for level in levels)
    parts.append(f"multiIf({begun}arrayFirst(x -> x != 0, s1)) as begun")
    taken = ", ".join(f"times[indexOf(s{level}, begun)]" for level in range(1, steps + 1))
    parts.append(f"arraySlice([{taken}], 1, reached) as chain")
    return ", ".join(parts)


def _levels(steps: int) -> list[str]:
    reached = [f"countIf(length(chain) >= {n})" for n in range(1, steps + 1)]
    took = [
        f"quantileExactInclusiveOrNullIf(0.5)(toFloat64(chain[{n}] - chain[{n - 1}]), length(chain) >= {n})"
        for n in range(2, steps + 1)
    ]
    return reached + took


def retention(tenant: int, within: Range, query: RetentionQuery) -> Compiled:
    """For `first` the range begins at the beginning of time: whoever began before is in no cohort."""
    bind = within.binder(tenant)
    middle = milliseconds(within.middle or within.start)
    bind.params["cuts"] = [milliseconds(cut) for cut in within.cuts]
    bind.params["middle"] = middle
    begins, returns = matching(query.begins, bind), matching(query.returns, bind)
    moment = "toUnixTimestamp64Milli(e.at)"
    cohorts = f"groupUniqArrayIf({_place(moment)}, {begins})"
    if query.first:
        earliest = f"minIf({moment}, {begins})"
        cohorts = f"if({earliest} >= {{middle:Int64}}, [{_place(earliest)}], [])"
    among = (query.begins, query.returns)
    where = identified(f"{within.narrowed(query.filters, bind)} and ({begins} or {returns})", among)
    people = within.joined(bind, True)
    sql = filled(
        "retention", person=PERSON, place=_place(moment), cohorts=cohorts, returns=returns, where=where, **people
    )  # fmt: skip
    return Compiled(sql, bind.params, bool(bind.person_values))


def _place(moment: str) -> str:
    return f"toInt64(indexOf({{cuts:Array(Int64)}}, roundDown({moment}, {{cuts:Array(Int64)}})))"


def events(
    tenant: int,
    within: Range,
    *,
    filters: Sequence[Filter] = (),
    event: str | None = None,
    distinct_ids: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    before: Place | None = None,
    rows: int,
) -> Compiled:
    """Stored events, newest first. `before` is the place of the last row of the page before."""
    bind = within.binder(tenant)
    bind.params["rows"] = rows
    parts = [condition(one, bind) for one in filters]
    if event is not None:
        parts.append(matching(Matching(event), bind))
    if distinct_ids is not None:
        parts.append(f"e.distinct_id in {bind.add(list(distinct_ids), 'Array(String)')}")
    if keys is not None:
        equal = [f"e.event_key = toFixedString(unhex({bind.add(one, 'String')}), 16)" for one in keys]
        parts.append(f"({' or '.join(equal)})")
    if before is not None:
        last = zip(before, ("Int64", "UInt64", "String", "String"), strict=True)
        bound = ", ".join(bind.add(value, kind) for value, kind in last)
        parts.append(f"({MOMENT}, e.sequence, e.event_id, lower(hex(e.event_key))) < ({bound})")
    where, narrowing = " and ".join(parts) or "1", within.joined(bind, False)["people"]
    sql = filled("events", person=PERSON, moment=MOMENT, where=where, narrowing=narrowing)
    return Compiled(sql, bind.params, bool(bind.person_values))


def _group(field: Field | None, top: Sequence[str], bind: Binder) -> tuple[str, str]:
    if field is None:
        return str(ALL), "''"
    text, listed = _cut(field, bind), bind.add(list(top), "Array(String)")
    kind = f"multiIf(not ({said(field, bind)}), {NONE}, has({listed}, {text}), {VALUE}, {OTHER})"
    return kind, f"if(kind = {VALUE}, {text}, '')"


def _cut(field: Field, bind: Binder) -> str:
    return f"substringUTF8({text_of(field, bind)}, 1, {GROUP_TEXT})"
