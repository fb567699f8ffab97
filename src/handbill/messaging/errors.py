"""What follows from a provider's error code: one table, read as data. Titles and texts of errors decide nothing.

again in seconds   the provider or the line is at fault for a moment
again for the pair this person got too much from this number: 4^n seconds
again in a day     this person has had enough marketing for today
pause the number   it is throttled again and again, or flagged
pause the campaign its template is at fault: nobody else would get it either
suppress           this person does not want it, or cannot get it
pause the tenant   token, permission, payment or account: a person must act
needs a template   the 24 hours after the person's last message are over
drop, fail         this message ends here, the others go on
unknown            nobody can tell whether it was sent: wait for a webhook, never send again
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from handbill.messaging.model import Accepted, Lost, Outcome, Refused, Unwritten

DAY_S = 86_400


class Action(StrEnum):
    WAIT_SECONDS = "wait_seconds"
    WAIT_PAIR = "wait_pair"
    WAIT_DAY = "wait_day"
    PAUSE_NUMBER = "pause_number"
    PAUSE_CAMPAIGN = "pause_campaign"
    PAUSE_TENANT = "pause_tenant"
    SUPPRESS = "suppress"
    NEEDS_TEMPLATE = "needs_template"
    DROP = "drop"
    FAIL = "fail"
    UNKNOWN = "unknown"


SENDS_AGAIN = frozenset({Action.WAIT_SECONDS, Action.WAIT_PAIR, Action.WAIT_DAY})
"""After these the same message may be sent again, later. What a pause interrupts goes back to waiting unsent."""

UNSENT = SENDS_AGAIN | {Action.PAUSE_NUMBER, Action.PAUSE_CAMPAIGN, Action.PAUSE_TENANT}
"""After these the message was certainly not sent and is not at fault: it keeps its place."""


class Rule(msgspec.Struct, frozen=True):
    """One row: codes `first` to `last`, what follows, and what follows from the second in a row on (if different)."""

    first: int
    last: int
    action: Action
    says: str
    repeated: Action | None = None
    days: int | None = None
    """SUPPRESS: for how long; None means until the person asks for messages again."""


def _one(code: int, action: Action, says: str, repeated: Action | None = None, days: int | None = None) -> Rule:
    return Rule(code, code, action, says, repeated, days)


RULES: tuple[Rule, ...] = (
    _one(1, Action.WAIT_SECONDS, "unknown error of the API"),
    _one(2, Action.WAIT_SECONDS, "the service is down or overloaded"),
    _one(4, Action.WAIT_SECONDS, "too many calls of the app"),
    _one(80007, Action.WAIT_SECONDS, "too many calls for the business account"),
    _one(130429, Action.WAIT_SECONDS, "more messages a second than the number may send", Action.PAUSE_NUMBER),
    _one(131000, Action.WAIT_SECONDS, "something went wrong at the provider"),
    _one(131016, Action.WAIT_SECONDS, "a service of the provider is away"),
    _one(131057, Action.WAIT_SECONDS, "the number is being upgraded"),
    _one(131056, Action.WAIT_PAIR, "too many messages from this number to this person"),
    _one(131049, Action.WAIT_DAY, "this person has had enough marketing for now"),
    _one(131064, Action.WAIT_DAY, "no more people today"),
    _one(131048, Action.PAUSE_NUMBER, "the number is limited because its messages were flagged"),
    Rule(132000, 132016, Action.PAUSE_CAMPAIGN, "the template does not fit, is missing, paused or disabled"),
    Rule(132068, 132069, Action.PAUSE_CAMPAIGN, "the flow behind the template is blocked or throttled"),
    _one(131021, Action.SUPPRESS, "sender and recipient are the same number"),
    _one(131050, Action.SUPPRESS, "this person stopped marketing messages"),
    _one(131026, Action.FAIL, "not deliverable to this address", Action.SUPPRESS, days=30),
    _one(10, Action.PAUSE_TENANT, "a permission was not given or was taken away"),
    _one(190, Action.PAUSE_TENANT, "the token is not valid any more"),
    Rule(200, 299, Action.PAUSE_TENANT, "a permission was not given or was taken away"),
    _one(368, Action.PAUSE_TENANT, "the account is blocked for a breach of policy"),
    _one(130497, Action.PAUSE_TENANT, "the account may not message people in this country"),
    _one(131031, Action.PAUSE_TENANT, "the account is locked"),
    _one(131042, Action.PAUSE_TENANT, "a payment method is missing or does not work"),
    _one(131045, Action.PAUSE_TENANT, "the number is not registered properly"),
    _one(131047, Action.NEEDS_TEMPLATE, "more than 24 hours since the person wrote: only a template may be sent"),
    _one(130472, Action.DROP, "the person is part of an experiment of the provider"),
)


class Verdict(msgspec.Struct, frozen=True):
    """What to do, and a stable reason for the message's row and the tenant's eyes."""

    action: Action
    reason: str
    says: str
    wait_s: int = 0
    suppress_days: int | None = None

    @property
    def sends_again(self) -> bool:
        return self.action in SENDS_AGAIN


def listed() -> Iterator[int]:
    """Every code that the table names."""
    return (code for rule in RULES for code in range(rule.first, rule.last + 1))


def rule_for(code: int) -> Rule | None:
    return _BY_CODE.get(code)


def is_hopeless(code: int) -> bool:
    """Whether a few refusals with this code in a row mean that everybody else of the campaign would get it, too: the
    answer window is closed, or no rule knows the code."""
    rule = rule_for(code)
    return rule is None or rule.action is Action.NEEDS_TEMPLATE


def by_code(code: int, *, hits: int = 1, attempt: int = 1, http_status: int = 400) -> Verdict:
    """What an error code says. `hits`: how often in a row this code came for what the rule is about (the number, the
    address), this time included. `attempt`: how often this message was tried, this time included."""
    rule = rule_for(code)
    if rule is None:
        if http_status >= 500:
            return _verdict(Action.WAIT_SECONDS, f"provider_{code}", "the provider failed and said so", attempt)
        return _verdict(Action.FAIL, f"provider_{code}", "the provider refused this message", attempt)
    action = rule.repeated if rule.repeated is not None and hits > 1 else rule.action
    days = rule.days if action is Action.SUPPRESS else None
    return _verdict(action, f"provider_{code}", rule.says, attempt, days)


def by_outcome(outcome: Outcome, *, hits: int = 1, attempt: int = 1) -> Verdict | None:
    """The same for whatever came back from a send; None when it was accepted."""
    if isinstance(outcome, Accepted):
        return None
    if isinstance(outcome, Refused):
        return by_code(outcome.code, hits=hits, attempt=attempt, http_status=outcome.http_status)
    if isinstance(outcome, Unwritten):
        return _verdict(Action.WAIT_SECONDS, "not_written", outcome.reason, attempt)
    assert isinstance(outcome, Lost)
    return _verdict(Action.UNKNOWN, "unknown", outcome.reason, attempt)


def wait_s(action: Action, attempt: int) -> int:
    """Seconds until the next try after the given one (counted from 1)."""
    exponent = min(max(attempt, 1), 8)
    if action is Action.WAIT_PAIR:
        return int(min(4**exponent, DAY_S))
    if action is Action.WAIT_SECONDS:
        return int(min(2**exponent, 300))
    return DAY_S if action is Action.WAIT_DAY else 0


def _verdict(action: Action, reason: str, says: str, attempt: int, days: int | None = None) -> Verdict:
    return Verdict(action, reason, says, wait_s(action, attempt), days)


_BY_CODE: dict[int, Rule] = {code: rule for rule in RULES for code in range(rule.first, rule.last + 1)}
