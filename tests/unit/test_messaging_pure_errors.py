"""Retry classes: every code that was written down for us, against a list typed in a second time."""

from __future__ import annotations

import pytest

from handbill.messaging.errors import DAY_S, RULES, SENDS_AGAIN, UNSENT, Action, by_code, by_outcome, listed, wait_s
from handbill.messaging.model import Accepted, Lost, Refused, Unwritten

SECONDS = {1, 2, 4, 80007, 130429, 131000, 131016, 131057}
CAMPAIGN = {*range(132000, 132017), 132068, 132069}
TENANT = {10, 190, 368, 130497, 131031, 131042, 131045, *range(200, 300)}
EXPECTED: dict[int, Action] = (
    dict.fromkeys(SECONDS, Action.WAIT_SECONDS)
    | dict.fromkeys(CAMPAIGN, Action.PAUSE_CAMPAIGN)
    | dict.fromkeys(TENANT, Action.PAUSE_TENANT)
    | {131056: Action.WAIT_PAIR, 131049: Action.WAIT_DAY, 131064: Action.WAIT_DAY, 131048: Action.PAUSE_NUMBER}
    | {131021: Action.SUPPRESS, 131050: Action.SUPPRESS, 131026: Action.FAIL}
    | {131047: Action.NEEDS_TEMPLATE, 130472: Action.DROP}
)


def test_the_table_names_every_code_once_and_no_other() -> None:
    assert sorted(listed()) == sorted(EXPECTED)
    assert all(rule.says for rule in RULES)


@pytest.mark.parametrize("code", sorted(EXPECTED))
def test_each_code_has_its_class(code: int) -> None:
    verdict = by_code(code)
    assert verdict.action is EXPECTED[code]
    assert verdict.reason == f"provider_{code}"
    assert verdict.sends_again == (verdict.wait_s > 0) == (verdict.action in SENDS_AGAIN)


def test_the_second_time_says_more_than_the_first() -> None:
    assert by_code(130429, hits=2).action is Action.PAUSE_NUMBER
    again = by_code(131026, hits=2)
    assert (again.action, again.suppress_days) == (Action.SUPPRESS, 30)
    assert by_code(131050).suppress_days is None, "until the person asks for messages again"
    assert by_code(131016, hits=9).action is Action.WAIT_SECONDS


def test_unlisted_codes_fail_alone_unless_the_server_failed() -> None:
    assert by_code(100).action is Action.FAIL
    assert by_code(131051, http_status=503).action is Action.WAIT_SECONDS
    assert by_code(190, http_status=500).action is Action.PAUSE_TENANT, "the code decides, not the status"


def test_what_came_back_from_a_send() -> None:
    assert by_outcome(Accepted("wamid.1")) is None
    unwritten, lost = by_outcome(Unwritten("no connection")), by_outcome(Lost("cut"))
    assert unwritten is not None
    assert unwritten.action is Action.WAIT_SECONDS
    assert lost is not None
    assert lost.action is Action.UNKNOWN
    assert not lost.sends_again
    assert lost.action not in UNSENT
    refused = by_outcome(Refused(131056), attempt=3)
    assert refused is not None
    assert refused.wait_s == 64


def test_waiting_grows_and_stays_bounded() -> None:
    assert [wait_s(Action.WAIT_PAIR, n) for n in (1, 2, 3)] == [4, 16, 64]
    assert [wait_s(Action.WAIT_SECONDS, n) for n in (1, 2, 3)] == [2, 4, 8]
    assert wait_s(Action.WAIT_DAY, 1) == DAY_S
    assert wait_s(Action.WAIT_PAIR, 1000) <= DAY_S
    assert wait_s(Action.WAIT_SECONDS, 1000) <= 300
