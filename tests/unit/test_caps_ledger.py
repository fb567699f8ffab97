"""Move, confirm, take back, merge: the same views give the same bytes, whatever the order and the repetitions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.caps import ledger
from handbill.caps.model import (
    EPOCH_MS,
    FOREVER_MS,
    LEASED,
    MAX_TIMES,
    Change,
    Kind,
    Limits,
    Seen,
    State,
    Subject,
    Verb,
    Window,
    digest,
    fingerprint,
    scope,
)
from handbill.caps.packed import Kept, Malformed, Shelf, pack, unpack
from handbill.kit.errors import Invalid

NOW = EPOCH_MS + 10_000_000
HORIZON = 1_000
SWEEP = 5_000


def change(verb: Verb, event: int, at: int, keep: int = 2, of: int = 7, horizon: int = HORIZON) -> Change:
    return Change(verb, of, at, event, keep, horizon)


def value_of(*changes: Change, start: bytes = b"", now: int = NOW) -> bytes:
    return ledger.apply(start, changes, now, SWEEP).value


def test_scopes_fit_four_bytes_and_a_banner_is_its_own_id() -> None:
    assert scope(Kind.BANNER, 42) == 42
    assert len({scope(kind, 42) for kind in Kind}) == 3
    assert all(scope(kind, (1 << 29) - 1) < LEASED for kind in Kind)
    with pytest.raises(Invalid):
        scope(Kind.BANNER, 1 << 29)


def test_subjects_of_other_tenants_and_kinds_have_other_keys() -> None:
    one = Subject(1, "u")
    assert len({digest(each) for each in (one, Subject(2, "u"), Subject(1, "u", "session"), Subject(1, "v"))}) == 4


def test_a_fingerprint_is_cut_from_the_stored_key() -> None:
    assert fingerprint(b"\xff" * 16) == (1 << 32) - 1


def test_a_repeated_move_is_one_view_and_the_earlier_time_stays() -> None:
    first = value_of(change(Verb.MOVE, 1, NOW - 5))
    assert value_of(change(Verb.MOVE, 1, NOW), start=first) == first
    assert value_of(change(Verb.MOVE, 1, NOW), change(Verb.MOVE, 1, NOW - 5)) == first


def test_a_copy_taken_back_leaves_the_first_alone() -> None:
    moved = value_of(change(Verb.MOVE, 1, NOW - 5), change(Verb.MOVE, 1, NOW))
    assert value_of(change(Verb.TAKE_BACK, 1, NOW), start=moved) == moved
    sure = value_of(change(Verb.CONFIRM, 1, NOW - 5), start=moved)
    assert value_of(change(Verb.TAKE_BACK, 1, NOW - 5), start=sure) == sure
    assert value_of(change(Verb.TAKE_BACK, 1, NOW - 5), start=moved) == b""


def test_unconfirmed_times_beyond_x_wait_for_a_higher_x() -> None:
    views = [change(Verb.MOVE, n, NOW - n) for n in range(6)]
    value = value_of(*views)
    limits = Limits((Window(6, HORIZON),))
    assert not Shelf(value).eligible(7, limits, NOW)
    sure = value_of(*(change(Verb.CONFIRM, n, NOW - n) for n in range(6)), start=value)
    assert [seen.fingerprint for seen in Shelf(sure).seen(7)] == [0, 1]


def test_expired_times_drop_out_on_write_and_silent_scopes_with_them() -> None:
    old = value_of(change(Verb.CONFIRM, 1, NOW, of=1), change(Verb.CONFIRM, 2, NOW, of=2))
    later = NOW + HORIZON
    assert [
        seen.fingerprint for seen in Shelf(value_of(change(Verb.MOVE, 3, later, of=1), start=old, now=later)).seen(1)
    ] == [3]
    much_later = NOW + SWEEP
    assert Shelf(value_of(change(Verb.MOVE, 3, much_later, of=1), start=old, now=much_later)).scopes() == [1]


def test_a_lifetime_scope_is_never_swept() -> None:
    lasting = ledger.apply(b"", [change(Verb.CONFIRM, 1, NOW, of=1, horizon=FOREVER_MS)], NOW, SWEEP)
    assert lasting.keep_until_ms is None
    much_later = NOW + 100 * SWEEP
    value = value_of(change(Verb.MOVE, 3, much_later, of=2), start=lasting.value, now=much_later)
    assert Shelf(value).scopes() == [1, 2]
    assert Shelf(value).endless(1)


def test_a_flood_of_views_stays_bounded() -> None:
    value = value_of(*(change(Verb.MOVE, n, NOW) for n in range(MAX_TIMES + 50)))
    assert len(Shelf(value).seen(7)) == MAX_TIMES


@pytest.mark.parametrize(
    "value", [b"\x02", b"\x01\x00", b"\x01\x00\x00\x00\x07\x02" + b"x" * 9, b"\x01\x00\x00\x00\x07\x41"]
)
def test_bytes_that_are_no_value_are_recognised(value: bytes) -> None:
    with pytest.raises(Malformed):
        Shelf(value)


times = st.lists(
    st.builds(
        Seen, st.integers(EPOCH_MS, EPOCH_MS + FOREVER_MS), st.integers(0, (1 << 32) - 1), st.sampled_from(State)
    ),
    min_size=1,
    max_size=70,
    unique_by=lambda seen: seen.fingerprint,
)


@given(st.dictionaries(st.integers(0, (1 << 32) - 1), st.builds(Kept, times.map(tuple), st.booleans()), max_size=4))
def test_packing_is_one_to_one(scopes: dict[int, Kept]) -> None:
    value = pack(scopes)
    again = unpack(value)
    assert again.keys() == scopes.keys()
    assert pack(again) == value
    assert all(set(again[each].times) == set(scopes[each].times) for each in scopes)


Fates = list[tuple[int, int, str]]  # scope, time before now, what becomes of the event


def lives(fates: Fates) -> list[list[Change]]:
    """Each event's own story: accepted at the edge, perhaps twice, then committed, or refused, or still open."""
    stories = []
    for event, (of, age, fate) in enumerate(fates):
        at = NOW - age
        story = [change(Verb.MOVE, event, at, of=of)]
        if fate == "copied":
            story += [change(Verb.MOVE, event, at + 3, of=of), change(Verb.CONFIRM, event, at, of=of)]
            story += [change(Verb.TAKE_BACK, event, at + 3, of=of)]
        elif fate == "repeated":  # the copy comes when the first is committed, and perhaps no longer kept
            story += [change(Verb.CONFIRM, event, at, of=of), change(Verb.MOVE, event, at + 3, of=of)]
            story += [change(Verb.TAKE_BACK, event, at + 3, of=of)]
        elif fate == "committed":
            story += [change(Verb.CONFIRM, event, at, of=of)]
        elif fate == "refused":
            story += [change(Verb.TAKE_BACK, event, at, of=of)]
        stories.append(story)
    return stories


def expected(fates: Fates) -> bytes:
    """What must be left: per scope the newest two committed, if young enough, and everything still open."""
    scopes: dict[int, Kept] = {}
    for of in {of for of, _, _ in fates}:
        mine = [
            Seen(NOW - age, event, State.MOVED if fate == "open" else State.CONFIRMED)
            for event, (where, age, fate) in enumerate(fates)
            if where == of and (age < HORIZON or fate == "open") and fate != "refused"
        ]
        sure = sorted((s for s in mine if s.state is State.CONFIRMED), key=lambda s: (s.at_ms, s.fingerprint))[-2:]
        scopes[of] = Kept(tuple(sure + [s for s in mine if s.state is State.MOVED]))
    return pack(scopes)


ends = st.sampled_from(["open", "committed", "refused", "copied", "repeated"])
fate = st.tuples(st.integers(1, 3), st.integers(0, HORIZON + 100), ends)


@given(st.lists(fate, max_size=25), st.randoms(use_true_random=False))
def test_any_interleaving_and_repetition_gives_identical_bytes(fates: Fates, chance: random.Random) -> None:
    stories = lives(fates)
    changes = interleaved(stories, chance)
    value = b""
    while changes:
        size = chance.randint(1, 4)
        batch, changes = changes[:size], changes[size:]
        value = value_of(*batch, start=value)
        if chance.random() < 0.3:  # the same batch once more, as after a crash; its moves were confirmed meanwhile
            again = [each for each in batch if each.verb is not Verb.MOVE]
            value = value_of(*again, start=value)
    assert value == expected(fates)


def interleaved(stories: list[list[Change]], chance: random.Random) -> list[Change]:
    """Stories told at once, each in its own order; the end of a told story may come in any order among themselves."""
    left = [list(story) for story in stories]
    told = []
    while left:
        story = chance.choice(left)
        told.append(story.pop(0))
        if not story:
            left.remove(story)
    return told


def retold(*values: bytes) -> bytes:
    """A value from what others say, as when somebody's value is written anew."""

    def limits_of(_: int) -> Limits:
        return Limits((Window(2, HORIZON),))

    return ledger.apply(
        b"", [each for value in values for each in ledger.changes_of(value, limits_of)], NOW, SWEEP
    ).value


@given(st.lists(fate, max_size=15), st.lists(fate, max_size=15))
def test_values_told_again_are_one_whichever_comes_first(mine: Fates, theirs: Fates) -> None:
    both = mine + theirs
    stories = lives(both)
    one = value_of(*(each for story in stories[: len(mine)] for each in story))
    other = value_of(*(each for story in stories[len(mine) :] for each in story))

    merged = retold(one, other)
    assert merged == retold(other, one)
    assert merged == expected(both)
    assert retold(merged, one) == merged
