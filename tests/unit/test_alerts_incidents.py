"""Incidents are opened once and recovered once; each sender reports each of them once, whatever fails."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from handbill.alerts.channel import MAX_WAITING, Channel, ChannelState, restore_channel_state
from handbill.alerts.condition import Condition
from handbill.alerts.conditions import CONDITIONS
from handbill.alerts.grammar import Compare, Increase, Labels, Latest
from handbill.alerts.incidents import MAX_OPEN, RECOVERY_S, Incident, IncidentTracker
from handbill.alerts.messages import MAX_CHANGES, Change, Message, clean, human
from handbill.alerts.state_file import load_state, save_state

LAG = next(one for one in CONDITIONS if one.name == "HandbillJournalLag")
DOWN = next(one for one in CONDITIONS if one.name == "HandbillDown")
GAP = next(one for one in CONDITIONS if one.name == "HandbillJournalGap")
WORKER: Labels = (("instance", "127.0.0.1:9102"), ("job", "handbill-worker"))
ALL: Labels = ()


def gauge(for_s: int) -> Condition:
    test = Compare(Latest("g", "max"), ">", 0)
    return Condition(
        name="HandbillTest", area="a", severity="warning", summary="", description="", test=test, for_s=for_s
    )


def update(tracker: IncidentTracker, now: float, *names: str, can_recover: bool = True) -> list[Incident]:
    troubles = {name: {ALL: 1.0} for name in names}
    return tracker.update(now, int(now * 1000), troubles, can_recover=can_recover)


def test_an_incident_opens_after_the_time_of_its_condition() -> None:
    tracker = IncidentTracker([gauge(20)])
    for now in (0.0, 10.0):
        update(tracker, now, "HandbillTest")
        assert not tracker.open
    update(tracker, 20.0, "HandbillTest")
    assert [one.opened_ms for one in tracker.open.values()] == [20_000]


def test_the_time_begins_again_when_the_trouble_pauses() -> None:
    tracker = IncidentTracker([gauge(20)])
    update(tracker, 0.0, "HandbillTest")
    update(tracker, 10.0)
    update(tracker, 20.0, "HandbillTest")
    assert not tracker.open


def test_an_incident_is_over_when_its_trouble_stays_away() -> None:
    tracker = IncidentTracker([gauge(0)])
    update(tracker, 0.0, "HandbillTest")
    assert update(tracker, 10.0) == []
    assert update(tracker, 10.0 + RECOVERY_S / 2, "HandbillTest") == []
    assert update(tracker, 30.0) == []
    (ended,) = update(tracker, 30.0 + RECOVERY_S)
    assert (ended.opened_ms, ended.recovered_ms) == (0, 50_000)
    assert not tracker.open
    assert update(tracker, 100.0) == []


def test_nothing_but_the_process_itself_recovers_while_a_process_does_not_answer() -> None:
    tracker = IncidentTracker([LAG, DOWN])
    for now in (0.0, 20.0):
        update(tracker, now, LAG.name, DOWN.name)
    assert len(tracker.open) == 2
    for now in (30.0, 60.0):
        ended = update(tracker, now, can_recover=False)
    assert [one.condition for one in ended] == [DOWN.name]
    assert [key[0] for key in tracker.open] == [LAG.name]


def test_a_restored_incident_waits_for_its_whole_window() -> None:
    window_s = 100
    test = Compare(Increase("c_total", window_s), ">", 0)
    counted = msgspec.structs.replace(gauge(0), test=test)
    tracker = IncidentTracker([counted], [Incident("HandbillTest", ALL, 1.0, 5)])
    assert [update(tracker, now) for now in (0.0, 50.0, 99.0)] == [[], [], []]
    assert update(tracker, 100.0) == []
    assert len(update(tracker, 100.0 + RECOVERY_S)) == 1


def test_an_incident_of_a_condition_that_is_gone_recovers() -> None:
    tracker = IncidentTracker([gauge(0)], [Incident("HandbillGone", ALL, 1.0, 5)])
    update(tracker, 0.0)
    assert len(update(tracker, RECOVERY_S)) == 1


def test_open_incidents_are_bounded() -> None:
    tracker = IncidentTracker([gauge(0)])
    groups: dict[Labels, float] = {(("x", str(number)),): 1.0 for number in range(MAX_OPEN + 10)}
    tracker.update(0.0, 0, {"HandbillTest": groups}, can_recover=True)
    assert len(tracker.open) == MAX_OPEN


class NoSender:
    name = "test"

    async def send(self, message: Message) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


def channel(max_per_hour: int = 30, state: ChannelState | None = None) -> Channel:
    return Channel(NoSender(), "shop", max_per_hour, state or ChannelState())


def incident(number: int = 1, opened_ms: int = 1_000) -> Incident:
    return Incident(DOWN.name, (("instance", f"h:{number}"), ("job", "handbill-api")), 0.0, opened_ms)


def ended(one: Incident) -> Incident:
    return msgspec.structs.replace(one, recovered_ms=one.opened_ms + 1_000)


def test_a_channel_reports_the_beginning_and_the_end_once() -> None:
    one, made = incident(), channel()
    first = made.next_message(2_000, [one])
    assert first is not None
    assert first.changes == (Change("opened", one),)
    made.record_sent(first, 2_000)
    assert made.next_message(3_000, [one]) is None
    made.add_recovered([ended(one)])
    last = made.next_message(4_000, [])
    assert last is not None
    assert [change.kind for change in last.changes] == ["recovered"]
    made.record_sent(last, 4_000)
    assert made.next_message(5_000, []) is None
    assert made.state == ChannelState(sent_ms=[2_000, 4_000])


@pytest.mark.parametrize("count", [21, 62, 200])
def test_programs_are_told_the_beginning_and_the_end_of_every_incident_however_many_come_at_once(count: int) -> None:
    many, made, told = [incident(number) for number in range(count)], channel(), []
    for ends in (False, True):
        if ends:
            made.add_recovered([ended(one) for one in many])
        while message := made.next_message(2_000, [] if ends else many):
            assert len(message.changes) <= MAX_CHANGES
            told += [(fields["status"], fields["labels"]["instance"]) for fields in message.fields()]
            made.record_sent(message, 2_000)
    assert sorted(told) == sorted((kind, f"h:{n}") for kind in ("opened", "recovered") for n in range(count))


def test_a_message_has_a_limit_and_the_next_one_has_the_rest() -> None:
    many, made = [incident(number) for number in range(MAX_CHANGES + 5)], channel()
    first = made.next_message(2_000, many)
    assert first is not None
    made.record_sent(first, 2_000)
    second = made.next_message(3_000, many)
    assert second is not None
    assert (len(first.changes), len(second.changes)) == (MAX_CHANGES, 5)
    assert f"And {MAX_CHANGES - 20} more." in first.text


def test_a_failed_message_is_tried_again_with_growing_pauses_and_nothing_is_lost() -> None:
    one, made, now = incident(), channel(), 0
    pauses = []
    for _ in range(8):
        assert made.next_message(now, [one]) is not None
        pauses.append(made.record_failed(now))
        assert made.next_message(now + int(pauses[-1] * 1000) - 1, [one]) is None
        now += int(pauses[-1] * 1000)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    made.add_recovered([ended(one)])
    message = made.next_message(now, [])
    assert message is not None
    assert [change.kind for change in message.changes] == ["missed"]
    assert "OPENED AND RECOVERED" in message.text


def test_an_end_that_arrives_while_its_beginning_is_sent_is_reported_next() -> None:
    one, made = incident(), channel()
    message = made.next_message(0, [one])
    assert message is not None
    made.add_recovered([ended(one)])
    made.record_sent(message, 1)
    following = made.next_message(2, [])
    assert following is not None
    assert [change.kind for change in following.changes] == ["recovered"]


def test_the_same_condition_again_is_a_new_incident() -> None:
    made = channel()
    for opened in (1_000, 9_000):
        one = incident(opened_ms=opened)
        message = made.next_message(opened, [one])
        assert message is not None
        made.record_sent(message, opened)
        made.add_recovered([ended(one)])
    message = made.next_message(20_000, [])
    assert message is not None
    assert len(message.changes) == 2 - 1  # the first end went out with the second beginning


def test_above_the_limit_there_is_one_notice_and_later_a_summary() -> None:
    made, sent, now = channel(max_per_hour=10), [], 0
    for number in range(100):
        now = number * 60_000
        one = incident(number, now)
        if message := made.next_message(now, [one]):
            sent.append((now, message))
            made.record_sent(message, now)
        made.add_recovered([ended(one)])
    notices = [when for when, message in sent if message.is_limit_notice]
    assert len(notices) == 2
    for when, _ in sent:
        assert sum(1 for other, _ in sent if when - 3_600_000 < other <= when) <= 10
    after = next(message for when, message in sent if when > notices[0])
    assert len(after.changes) > 40, "everything that happened meanwhile is in one message"


def test_what_waits_for_a_dead_sender_is_bounded_and_counted() -> None:
    made = channel()
    for number in range(MAX_WAITING + 7):
        made.add_recovered([ended(incident(number))])
    message = made.next_message(0, [])
    assert message is not None
    assert (len(message.changes), message.dropped) == (MAX_WAITING, 7)
    assert "7 incidents began and ended" in message.text
    assert len(message.fields()) == MAX_CHANGES
    made.record_sent(message, 0)
    assert made.next_message(1, []) is None


def test_a_restart_reports_nothing_twice(tmp_path: Path) -> None:
    path, one, other = tmp_path / "run" / "alerts.json", incident(1), incident(2)
    made = channel()
    message = made.next_message(0, [one, other])
    assert message is not None
    made.record_sent(message, 0)
    save_state(path, [one], {"test": made.state})
    state = load_state(path)
    assert state.open == [one]
    again = channel(state=restore_channel_state(state.channels["test"], state.open))
    assert again.next_message(1, state.open) is None
    assert again.state.reported == [one], "what ended while the sender was not configured is forgotten"
    assert [file.name for file in path.parent.iterdir()] == ["alerts.json"]


def test_a_state_that_cannot_be_read_or_written_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "alerts.json"
    path.write_text('{"open": [{"condition": 1')
    assert load_state(path).open == []
    (tmp_path / "file").write_text("")
    save_state(tmp_path / "file" / "alerts.json", [], {})


def test_messages_read_well() -> None:
    one = Incident(DOWN.name, WORKER, 0.0, 1_772_366_400_000)
    message = Message("shop", (Change("opened", one),))
    assert message.subject == "[shop] CRITICAL HandbillDown: handbill-worker at 127.0.0.1:9102 does not answer"
    assert "Since 2026-03-01 12:00:00 UTC. Runbook: docs/runbook.md#handbilldown" in message.text
    (fields,) = message.fields()
    assert fields["labels"] == {"instance": "127.0.0.1:9102", "job": "handbill-worker"}
    assert [human(200, "seconds"), human(0.125, "ratio"), human(1234, "number")] == ["3 min 20 s", "12.5 %", "1,234"]
    assert clean("a\r\nBcc: x" + "y" * 200) == "a  Bcc: x" + "y" * 91
