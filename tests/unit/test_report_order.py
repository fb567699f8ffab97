"""The order of reports of our own clients: their ids tell it, however they are sent and however often."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.banners import wire
from handbill.client import rules
from handbill.client.ids import ReportIds
from handbill.client.model import Moment
from handbill.client.outbox import now_ms
from handbill.kit.report_ids import FUTURE_MS, sequence_of_id, sequence_of_report
from tests.kit.dialects import NOW, post, uuid7
from tests.kit.vectors import vectors


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.lists(st.integers(1, 6), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_repeated_reports_keep_the_order_in_which_they_were_made(
    pauses: list[int], sizes: list[int], random: Any
) -> None:
    """All of one time. Requests hold any of them in any order, some several times, and arrive in any order."""
    clock = [NOW]
    ids = ReportIds(lambda: clock[0])
    made = []
    for pause in pauses:
        clock[0] += pause
        made.append(ids.new())
    bodies = [step(Moment(one, NOW, "ada")) for one in made]
    sent: dict[str, set[int]] = {}
    for size in [len(bodies), *sizes]:
        some = random.sample(bodies, min(size, len(bodies)))
        received = NOW + random.randrange(30_000)
        for event in post("/v1/events", some, sent_at=received - 20, received=received).events:
            sent.setdefault(event.id, set()).add(event.sequence)
        for place, body in enumerate(some):
            one = body["event_id"].removeprefix("evt_")
            for prefix in ("imp_", "clk_", "view_"):
                time = wire.timing(None, received, place, event_id=prefix + one)
                sent.setdefault(f"evt_{one}", set()).add(time.sequence)
    assert {len(sequences) for sequences in sent.values()} == {1}, "a copy has the sequence of the first"
    assert sorted(sent, key=lambda one: min(sent[one])) == [f"evt_{one}" for one in made]


def test_the_vectors_rise() -> None:
    rising = vectors()["event_ids"]["rising"]
    sequences = [sequence_of_report(one, NOW) for one in rising]
    assert None not in sequences
    assert sequences == sorted(set(sequences))  # type: ignore[type-var]


def test_an_id_of_another_client_tells_the_millisecond_and_its_position_the_rest() -> None:
    later, earlier = uuid7(NOW - 5, tail=7), uuid7(NOW - 9)
    assert sequence_of_id(later, NOW, 3) == (NOW - 5) * 16_384 + 3
    assert sequence_of_id(earlier, NOW, 20_000) == (NOW - 9) * 16_384 + 16_383
    assert sequence_of_report(later, NOW) is None


@pytest.mark.parametrize(
    "event_id",
    ["", "a", "imp_0123456789abcdef0123456789abcdef", "imp_" + uuid7(NOW)[:-1], "xyz_" + uuid7(NOW),
     "imp_" + uuid7(NOW).replace("-7000-", "-4000-"), "imp_" + uuid7(NOW + FUTURE_MS + 1), "imp_" + uuid7(NOW) + "\n",
     "x" * 200],
)  # fmt: skip
def test_any_other_id_tells_nothing(event_id: str) -> None:
    assert sequence_of_id(event_id, NOW, 3) == 3
    assert sequence_of_report(event_id, NOW) is None


def test_a_request_of_other_clients_is_ordered_as_before() -> None:
    """Their UUIDv7 are random within a millisecond, so that only the position can order them."""
    ids = [uuid7(NOW - 1, tail=tail) for tail in (9, 1, 5)]
    bodies = [{"event": "e", "id": one} for one in ids]
    parsed = post("/v1/events", bodies, sent_at=NOW)
    assert [event.sequence for event in parsed.events] == [NOW * 16_384 + place for place in range(3)]


def test_what_the_python_client_sends_is_in_order() -> None:
    bodies = [step(Moment.now("ada"), n=n) for n in range(50)]
    events = post("/v1/events", bodies[::-1], received=now_ms()).events
    ordered = sorted(events, key=lambda event: (event.at, event.micros, event.sequence))
    assert [msgspec.json.decode(event.properties)["n"] for event in ordered] == list(range(50))


def step(moment: Moment, **properties: Any) -> dict[str, Any]:
    body = rules.event(moment, "step", properties)
    return {**body, "id": body["event_id"]}
