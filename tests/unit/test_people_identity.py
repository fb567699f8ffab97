"""Identity: examples that read as the rules, then the laws over random histories."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.people.identity import History, components, fold, moved, notices
from handbill.people.model import (
    KIND_DOCS,
    OUTCOME_DOCS,
    Edge,
    EdgeKind,
    EdgeName,
    Outcome,
    illegal,
    illegal_side,
    person_id,
)

IDENTIFY, ALIAS, MERGE = EdgeKind.IDENTIFY, EdgeKind.ALIAS, EdgeKind.MERGE


def edge(at: int, source: str, target: str, kind: EdgeKind = IDENTIFY, event: str = "") -> Edge:
    return Edge(kind, source, target, at, 0, event or f"e{at}")


def people(edges: Sequence[Edge], voided: Sequence[EdgeName] = ()) -> dict[str, frozenset[str]]:
    return fold(edges, voided).people()


def test_the_namespace_never_changes() -> None:
    assert person_id(7, "alice") == uuid.UUID("b551e15c-9cfe-502a-a567-ef93a684e8f8")
    assert person_id(7, "zoë 🦉") == uuid.UUID("f4431386-b744-5731-a9a5-c395f89ef352")
    assert person_id(8, "alice") != person_id(7, "alice")


def test_a_chain_moves_every_member() -> None:
    chain = [edge(1, "a", "b"), edge(2, "b", "c", MERGE)]
    assert people(chain) == {"b": frozenset("abc")}


def test_a_source_that_is_somebody_is_refused_and_the_user_can_read_why() -> None:
    edges = [edge(1, "phone", "alice"), edge(2, "alice", "bob")]
    folding = fold(edges)
    assert folding.people() == {"alice": frozenset(("phone", "alice")), "bob": frozenset(("bob",))}
    (notice,) = notices(edges, folding.outcomes)
    assert notice.code is Outcome.REFUSED_IDENTIFIED
    assert "“alice” was not merged into “bob”" in notice.text
    assert "merge them explicitly" in notice.text


def test_an_explicit_merge_has_no_guard_and_the_elder_names_the_person() -> None:
    edges = [edge(1, "phone", "alice"), edge(2, "laptop", "bob"), edge(3, "alice", "bob", MERGE)]
    assert people(edges) == {"alice": frozenset(("phone", "alice", "laptop", "bob"))}


def test_an_alias_adds_a_name_to_somebody_but_never_fuses_two_of_them() -> None:
    named = [edge(1, "phone", "alice"), edge(2, "alice", "a@shop.example", ALIAS)]
    assert people(named) == {"alice": frozenset(("phone", "alice", "a@shop.example"))}
    two = [edge(1, "phone", "alice"), edge(2, "laptop", "bob"), edge(3, "alice", "bob", ALIAS)]
    assert fold(two).outcomes[two[2].name] is Outcome.REFUSED_IDENTIFIED


def test_an_identify_without_another_id_makes_the_id_somebody() -> None:
    edges = [edge(1, "bob", "bob"), edge(2, "bob", "alice")]
    folding = fold(edges)
    assert folding.outcomes == {edges[0].name: Outcome.MARKED, edges[1].name: Outcome.REFUSED_IDENTIFIED}


def test_a_late_edge_gets_the_answer_it_would_have_got_in_time() -> None:
    history = History([edge(5, "phone", "bob")])
    before = history.folding
    assert history.add(edge(1, "phone", "alice"))
    assert history.folding.people() == {"alice": frozenset(("phone", "alice")), "bob": frozenset(("bob",))}
    assert moved(before, history.folding) == {"phone": "alice"}


def test_a_second_sighting_changes_nothing() -> None:
    history = History([edge(1, "phone", "alice")])
    assert not history.add(edge(9, "phone", "alice"))
    assert history.add(edge(0, "phone", "alice")), "an earlier one gives the edge its place"


def test_more_ids_than_the_limit_are_quarantined_inside_the_fold() -> None:
    edges = [edge(n, f"device{n}", "kiosk") for n in range(1, 1_101)]
    folding = fold(edges)
    assert len(folding.people()["kiosk"]) == 1_000
    refused = [each for each in edges if folding.outcomes[each.name] is Outcome.REFUSED_TOO_MANY]
    assert refused == edges[999:]
    assert "more than 1000 ids" in notices(edges, folding.outcomes)[0].text


def test_a_shared_device_never_costs_more_than_its_newest_edge() -> None:
    history = History()
    for n in range(3_000):
        history.add(edge(n, "kiosk", f"user{n}"))
    assert history.refolds == 0
    assert history.folding.people()["user0"] == frozenset(("kiosk", "user0"))


def test_a_voided_edge_stays_voided_when_it_is_said_again_until_it_is_restored() -> None:
    link = edge(1, "phone", "alice")
    history = History([link, edge(2, "phone", "bob")])
    history.void(link.name)
    assert history.folding.name_of("phone") == "bob"
    history.add(edge(0, "phone", "alice"))
    assert history.folding.name_of("phone") == "bob"
    history.restore(link.name)
    assert history.folding.name_of("phone") == "alice"


@pytest.mark.parametrize("bad", ["anonymous", " NULL ", "[object Object]", "NaN", "0", "Guest", "undefined"])
def test_ids_that_stand_for_nobody(bad: str) -> None:
    assert illegal(bad)
    assert illegal_side(bad)


@pytest.mark.parametrize("bad", ["", "  ", "email", "distinctId", '"undefined"', "'id'", "` `", "x" * 401, "a\0b"])
def test_ids_that_must_not_be_merged(bad: str) -> None:
    assert illegal_side(bad)
    assert not illegal(bad)


@pytest.mark.parametrize("good", ["alice", "00", "guest-17", '"alice"', "anonymous@shop.example", "x" * 400])
def test_ids_that_stand_for_somebody(good: str) -> None:
    assert not illegal(good)
    assert not illegal_side(good)


def test_every_kind_and_outcome_has_its_line() -> None:
    assert set(KIND_DOCS) == set(EdgeKind)
    assert set(OUTCOME_DOCS) == set(Outcome)


# ------------------------------------------------------------------------------------------------- laws
LIMIT = 4  # small, so that histories of a dozen edges meet it
ids = st.sampled_from("abcdefghij")
orders = (st.integers(0, 9), st.integers(0, 2), st.sampled_from(("e1", "e2", "e3")))
edges = st.builds(Edge, st.sampled_from(EdgeKind), ids, ids, *orders)
histories = st.lists(edges, max_size=16)


@given(histories, st.randoms(use_true_random=False))
def test_any_order_split_and_repetition_gives_the_same_people(history: list[Edge], chance: object) -> None:
    whole = fold(history, limit=LIMIT)
    again = [*history, *history[::2]]
    chance.shuffle(again)  # type: ignore[attr-defined]
    assert fold(again, limit=LIMIT) == whole
    assert fold(History(again).edges, limit=LIMIT) == whole, "the first sightings are enough"


@given(histories, st.lists(edges.map(lambda each: each.name), max_size=3))
def test_edge_by_edge_equals_all_at_once(history: list[Edge], voided: list[EdgeName]) -> None:
    grown = History(voided=voided, limit=LIMIT)
    for count, each in enumerate(history, 1):
        before = grown.folding
        changed = grown.add(each)
        assert grown.folding == fold(history[:count], voided, limit=LIMIT)
        assert changed or grown.folding == before


@given(histories)
def test_edges_in_order_never_need_a_second_fold(history: list[Edge]) -> None:
    grown = History(limit=LIMIT)
    for at, each in enumerate(history):
        grown.add(Edge(each.kind, each.source, each.target, at, 0, "e"))
    assert grown.refolds == 0


@given(histories, st.data())
def test_a_voided_edge_leaves_no_trace(history: list[Edge], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([each.name for each in history])) if history else EdgeName(IDENTIFY, "a", "b")
    never = fold([each for each in history if each.name != name], limit=LIMIT)
    undone = History(history, limit=LIMIT)
    undone.void(name)
    assert undone.folding.named == never.named
    assert {key: value for key, value in undone.folding.outcomes.items() if key != name} == never.outcomes
    undone.restore(name)
    assert undone.folding == fold(history, limit=LIMIT)


@given(histories)
def test_components_are_folded_alone(history: list[Edge]) -> None:
    whole = fold(history, limit=LIMIT)
    for component in components(history):
        alone = fold([each for each in history if each.source in component], limit=LIMIT)
        assert alone.named == {each: name for each, name in whole.named.items() if each in component}


@given(histories)
def test_a_person_never_fuses_two_who_were_identified_apart_without_an_explicit_merge(history: list[Edge]) -> None:
    tame = [each for each in history if each.kind is IDENTIFY]
    whole = fold(tame, limit=LIMIT)
    assert all(len(group) <= LIMIT for group in whole.people().values())
    for name, group in whole.people().items():
        assert name in group
        joined = [each for each in tame if whole.outcomes[each.name] is Outcome.JOINED and each.target in group]
        assert len({each.name for each in joined}) == len(group) - 1
