"""The fault round's own rules: what is a loss, what is a doubled event, which alert is overdue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.alert_receiver import AlertReceiver, Received
from tests.soak.fault_ledger import differences
from tests.soak.fault_round import chosen, overdue, table


def result(part: str, kind: str, lasted: float, *alerts: tuple[str, float]) -> dict[str, Any]:
    return {
        "part": part, "kind": kind, "held_s": lasted, "well_again_s": lasted, "events_accepted": 5,
        "longest_without_accepted_event_s": 0.2, "event_requests_repeated": {"503": 2}, "decisions_answered": 9,
        "decisions_failed": {"503": 1}, "slowest_decision_s": 0.1,
        "alerts": {name: {"up": after + 3, "watch": after} for name, after in alerts},
    }  # fmt: skip


def test_missing_doubled_and_unknown_events_are_told_apart() -> None:
    wanted = {(1, b"a"), (1, b"b"), (2, b"a")}
    assert differences(wanted, sorted(wanted)) == {"missing": 0, "doubled": 0, "unknown": 0}
    found = [(1, b"a"), (1, b"a"), (1, b"b"), (2, b"x")]
    assert differences(wanted, found) == {"missing": 1, "doubled": 1, "unknown": 1}


@pytest.mark.parametrize(
    ("alerts", "lasted", "is_overdue"),
    [
        ([], 59.0, False),
        ([], 61.0, True),
        ([("HandbillNotReady(redis)", 60.0)], 61.0, False),
        ([("HandbillNotReady(redis)", 60.5)], 61.0, True),
        ([("HandbillServerErrors", 10.0)], 61.0, True),
    ],
)
def test_what_lasts_a_minute_must_be_reported_within_it(
    alerts: list[tuple[str, float]], lasted: float, is_overdue: bool
) -> None:
    assert bool(overdue(result("redis", "stop", lasted, *alerts))) is is_overdue


def test_faults_are_chosen_by_name() -> None:
    assert [one.name for one in chosen("api-kill,redis-stop")] == ["redis-stop", "api-kill"]
    assert len(chosen("")) == 14
    with pytest.raises(AssertionError, match="no fault named api-hup"):
        chosen("api-hup")


def test_an_incident_is_over_when_the_same_sender_says_so() -> None:
    receiver = AlertReceiver()
    labels = {"job": "handbill-api", "instance": "127.0.0.1:1"}
    opened = Received(1.0, "up", "opened", "HandbillDown", labels, "then")
    receiver.changes = [opened, Received(2.0, "watch", "recovered", "HandbillDown", labels, "then")]
    assert opened.name == "HandbillDown(handbill-api)"
    assert receiver.first("HandbillDown(handbill-api)", 0.5) is opened
    assert receiver.recovered(opened) is None
    receiver.changes.append(Received(3.0, "up", "recovered", "HandbillDown", labels, "then"))
    assert receiver.recovered(opened) is receiver.changes[-1]
    assert receiver.repeated() == []
    receiver.changes.append(opened)
    assert receiver.repeated() == ["up: opened HandbillDown(handbill-api)"]


def test_the_table_has_a_row_for_each_fault() -> None:
    rows = table({"faults": [result("redis", "stop", 61.0, ("HandbillNotReady(redis)", 40.0))]}).splitlines()
    assert rows[2].startswith("| redis SIGSTOP | 61.0 s | 61.0 s | 5 | 0.2 s | 2 | 9 answered, 1 failed")
    assert rows[2].endswith("HandbillNotReady(redis) 40 s |")
