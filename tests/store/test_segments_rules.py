"""One rule, two readers: what Python says of one person is what PostgreSQL says of all of them."""

from __future__ import annotations

import itertools
import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.segments import store
from handbill.segments.rules import DAY_MS, Person, failed, leaves, read

NOW = 1_800_000_000_000
OTHER = uuid4()
OTHERS: dict[UUID, Any] = {OTHER: {"any": [{"person.plan": "pro"}, {"created": {"within_days": 2}}]}}
KEYS = st.sampled_from(["plan", "age", 'a "b" $.', "tags", "Ünïcode"])
WORDS = st.sampled_from(["pro", "", "pr", "1", "true", "a.b", "axb", "(x", "Größe", "\\d", '"'])
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 1.0, -0.0, 1e20, 2**53, -7.25]))
PLAIN = st.one_of(WORDS, NUMBERS, st.booleans())
VALUES = st.one_of(
    PLAIN, st.none(), st.lists(st.one_of(PLAIN, st.none(), st.just(["pro"])), max_size=3), st.just({"a": 1})
)
PEOPLE = st.builds(
    Person,
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.integers(0, 10).map(lambda days: NOW - days * DAY_MS),
    st.frozensets(st.sampled_from(["u1", "u2", 'u"3']), max_size=2),
)


def conditions() -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(PLAIN, min_size=1, max_size=3)
    asked = st.one_of(
        PLAIN,
        several,
        st.fixed_dictionaries({"op": st.sampled_from(["eq", "ne"]), "value": PLAIN}),
        st.fixed_dictionaries({"op": st.sampled_from(["in", "not_in"]), "value": several}),
        st.fixed_dictionaries({"op": st.sampled_from(["gt", "gte", "lt", "lte"]), "value": NUMBERS}),
        st.fixed_dictionaries({"op": st.sampled_from(["contains", "starts_with"]), "value": WORDS.filter(bool)}),
        st.fixed_dictionaries({"op": st.sampled_from(["exists", "missing"])}),
        st.tuples(NUMBERS, NUMBERS).map(lambda two: {"op": "between", "value": sorted(two)}),
    )
    created = st.one_of(
        st.fixed_dictionaries({"within_days": st.integers(1, 9)}),
        st.fixed_dictionaries({"older_than_days": st.integers(1, 9)}),
        st.fixed_dictionaries(
            {"after": st.just("2027-01-12T00:00:00Z"), "before": st.just("2027-01-14T08:00:00+01:00")}
        ),
    )
    return st.one_of(
        st.tuples(KEYS, asked).map(lambda two: {f"person.{two[0]}": two[1]}),
        st.fixed_dictionaries({"created": created}),
        st.fixed_dictionaries({"distinct_id": st.one_of(st.just('u"3'), st.lists(st.just("u1"), min_size=1))}),
        st.just({"segment": str(OTHER)}),
        st.just({}),
    )


RULES = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"all": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"any": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=5,
)
MATCHING = Sql(
    "select row_number, jsonb_path_match(document::jsonb, $1::text::jsonpath, $2::jsonb, true)"
    " from unnest($3::text[]) with ordinality u (document, row_number) order by 2",
    "matching_documents",
)


async def test_python_and_postgres_agree(database: Database) -> None:
    cases: list[tuple[Any, list[Person]]] = []

    @settings(max_examples=300)
    @given(RULES, st.lists(PEOPLE, min_size=1, max_size=8))
    def gather(rule: Any, people: list[Person]) -> None:
        cases.append((rule, people))

    gather()
    asked = held = 0
    async with database.worker() as tx:
        for rule, people in cases:
            node, reader = read(rule, OTHERS)
            assert reader.faults == [], (rule, reader.faults)
            documents = [
                json.dumps({"p": each.properties, "c": each.created, "i": sorted(each.ids)}) for each in people
            ]
            rows = await tx.fetch(MATCHING, node.path, store.vars_of(NOW), documents)
            found = {row[0]: row[1] for row in rows}
            for place, person in enumerate(people, 1):
                assert found[place] is node.holds(person, NOW), (rule, person, node.path)
                asked, held = asked + 1, held + found[place]
    assert len(cases) >= 300
    assert 0.2 < held / asked < 0.8, "the cases must be able to tell a yes from a no"


def test_a_rule_says_in_words_what_it_asks() -> None:
    node, _ = read({"person.plan": ["pro"], "not": {"created": {"older_than_days": 2}}, "segment": str(OTHER)}, OTHERS)
    assert node.text == (
        'person.plan in ["pro"] and not created more than 2 days ago'
        ' and (person.plan eq "pro" or created within 2 days)'
    )
    assert {span for leaf in leaves(node) for span in leaf.spans} == {2 * DAY_MS}
    person = Person({"plan": "pro"}, NOW - 3 * DAY_MS)
    part = failed(node, person, NOW)
    assert part is not None
    assert part.text == "not created more than 2 days ago"


@pytest.mark.parametrize(
    ("rule", "at"),
    [
        ([], "rule"),
        ({"plan": "pro"}, "rule.plan"),
        ({"person.": 1}, "rule.person."),
        ({"person.a": {"op": "like"}}, "rule.person.a"),
        ({"person.a": None}, "rule.person.a"),
        ({"person.a": "\0"}, "rule.person.a"),
        ({"person.a": "\ud800"}, "rule.person.a"),
        ({"person.a": 10**400}, "rule.person.a"),
        ({"person.a": {"op": "between", "value": [2, 1]}}, "rule.person.a"),
        ({"any": []}, "rule.any"),
        ({"any": [{}, {"person.a": []}]}, "rule.any[1].person.a"),
        ({"created": {"after": "2026-01-01"}}, "rule.created.after"),
        ({"created": {"within_days": 0}}, "rule.created.within_days"),
        ({"distinct_id": [1]}, "rule.distinct_id"),
        ({"segment": "x"}, "rule.segment"),
        ({"segment": str(UUID(int=5))}, "rule.segment"),
        ({"all": [{"person.a": 1}] * 101}, "rule.all[100].person.a"),
    ],
)
def test_a_fault_is_named_by_its_place(rule: Any, at: str) -> None:
    node, reader = read(rule, OTHERS)
    assert [fault.field for fault in reader.faults] == [at]
    assert not node.holds(Person({}), NOW)


def test_segments_may_name_each_other_but_not_in_a_circle_nor_without_end() -> None:
    ids = [UUID(int=number) for number in range(1, 8)]
    ring: dict[UUID, Any] = {ids[0]: {"segment": str(ids[1])}, ids[1]: {"segment": str(ids[0])}}
    _, reader = read(ring[ids[0]], ring, own=ids[0])
    assert "leads back to itself" in reader.faults[0].reason
    chain: dict[UUID, Any] = {one: {"segment": [str(other)] * 20} for one, other in itertools.pairwise(ids)}
    chain[ids[-1]] = {"person.a": 1}
    _, reader = read({"segment": str(ids[0])}, chain)
    assert "more than 500 conditions" in reader.faults[0].reason
    deep: dict[str, Any] = {}
    for _ in range(7):
        deep = {"not": deep}
    assert "nested deeper" in read(deep, {})[1].faults[0].reason
