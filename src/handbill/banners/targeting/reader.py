"""Targeting rules as people write them, read into a tree, with every fault named by its place.

A rule is an object; all of its entries must hold. `all`, `any` and `not` nest; every other entry asks one thing:

    {"country": ["NL", "DE"], "any": [{"device": "mobile"}, {"url": "https://shop.example.com/sale/*"}],
     "not": {"custom": {"key": "plan", "op": "eq", "value": "paid"}}, "percent": 20}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from handbill.active_hours.model import DEFAULT_LEVEL, LEVEL_MAX, LEVEL_MIN
from handbill.banners.targeting import nodes, patterns
from handbill.banners.targeting.custom import OPERATORS, custom_test
from handbill.banners.targeting.nodes import All, Any_, Leaf, Node, Not
from handbill.banners.targeting.patterns import Pattern
from handbill.banners.targeting.people import PREFIX
from handbill.kit.bounds import PATTERN_CHARS, RULE_DEPTH, RULE_PROGRAM_STEPS
from handbill.kit.errors import Fault
from handbill.segments.service import ACTIVE_HOURS, SEGMENTS
from handbill.segments.values import Condition, as_id, condition, property_name, test

CONDITIONS_MAX = 100
VALUES_MAX = 500
TEXT_MAX = 300
DEVICES = ("mobile", "tablet", "desktop")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def read(rule: dict[str, Any], salt: str) -> Node:
    """The tree of a rule; one that cannot be read is for nobody. `salt` names draws that have no name themselves."""
    return read_checked(rule, salt)[0]


def read_checked(rule: dict[str, Any], salt: str) -> tuple[Node, list[Fault]]:
    """As `read`, with everything that is wrong with the rule."""
    reader = _Reader(salt)
    node = reader.rule(rule, "", 1)
    return (_NOBODY if reader.faults else node), reader.faults


def faults_of(rule: Any, at: str) -> list[Fault]:
    """Everything that is wrong with a rule, each by its place."""
    reader = _Reader("")
    reader.rule(rule, at, 1)
    return reader.faults


class _Reader:
    def __init__(self, salt: str) -> None:
        self.faults: list[Fault] = []
        self._salt = salt
        self._conditions = 0
        self._steps = 0
        self._negations = 0

    def rule(self, rule: Any, at: str, depth: int) -> Node:
        if not isinstance(rule, dict):
            return self._wrong(at, "must be an object of conditions")
        if depth > RULE_DEPTH:
            return self._wrong(at, f"is nested deeper than {RULE_DEPTH}")
        found = [self._entry(str(name), value, f"{at}.{name}", depth) for name, value in rule.items()]
        return found[0] if len(found) == 1 else All(tuple(found))

    def _entry(self, name: str, value: Any, at: str, depth: int) -> Node:
        if name in ("all", "any"):
            if not isinstance(value, list) or not 1 <= len(value) <= VALUES_MAX:
                return self._wrong(at, "must be a list of rules, with at least one")
            inner = tuple(self.rule(each, f"{at}[{place}]", depth + 1) for place, each in enumerate(value))
            return All(inner) if name == "all" else Any_(inner)
        if name == "not":
            self._negations += 1
            inside = self.rule(value, at, depth + 1)
            self._negations -= 1
            return Not(inside)
        self._conditions += 1
        if self._conditions == CONDITIONS_MAX + 1:
            return self._wrong(at, f"is one condition too many: at most {CONDITIONS_MAX}")
        known = _CONDITIONS.get("person" if name.startswith(PREFIX) else name)
        if known is None or name == "person":
            return self._wrong(at, "is no condition; known are all, any, not, person.NAME, " + ", ".join(_NAMES))
        return known(self, name, value, at)

    # --- conditions

    def _words(self, name: str, value: Any, at: str) -> Node:
        wanted = [word.lower() for word in self._texts(value, at)]
        if name == "country":
            self._each(wanted, at, lambda word: len(word) == 2 and word.isalpha(), "must be a two-letter country code")
        if name == "device":
            self._each(wanted, at, lambda word: word in DEVICES, f"must be one of {', '.join(DEVICES)}")
        chosen = frozenset(wanted)
        test = nodes.language(chosen) if name == "language" else nodes.one_of(chosen)
        return Leaf(name, f"{name} in {_said(sorted(chosen))}", test)

    def _address(self, name: str, value: Any, at: str) -> Node:
        given = value if isinstance(value, list) else [value]
        if not 1 <= len(given) <= 50:
            return self._wrong(at, "must be 1 to 50 patterns")
        made = [self._pattern(each, f"{at}[{place}]" if value is given else at) for place, each in enumerate(given)]
        whole = tuple(pattern.matches for pattern in made if pattern is not None)
        cost_us = sum(pattern.cost_us for pattern in made if pattern is not None)
        return Leaf(name, f"{name} matches {_said(given)}", nodes.any_pattern(whole), cost_us)

    def _pattern(self, value: Any, at: str) -> Pattern | None:
        kind, text = "glob", value
        if isinstance(value, dict) and len(value) == 1:
            kind, text = next(iter(value.items()))
        if kind not in _PATTERNS or not isinstance(text, str) or not text:
            self._wrong(at, 'must be a text (a glob), or {"glob": ...}, {"prefix": ...} or {"regex": ...}')
            return None
        if len(text) > PATTERN_CHARS:
            self._wrong(at, f"must have at most {PATTERN_CHARS} characters")
            return None
        try:
            made = _PATTERNS[kind](text)
        except ValueError as error:
            self._wrong(at, str(error))
            return None
        self._steps += made.steps
        if self._steps - made.steps <= RULE_PROGRAM_STEPS < self._steps:
            self._wrong(at, "is one pattern too many: use fewer regular expressions or smaller counted repeats in them")
        return made

    def _time(self, name: str, value: Any, at: str) -> Node:
        if not isinstance(value, dict) or set(value) != {"from", "to"}:
            return self._wrong(at, 'must be {"from": "HH:MM", "to": "HH:MM"}')
        start, end = (self._minute(value[side], f"{at}.{side}") for side in ("from", "to"))
        if start is None or end is None:
            return _NOBODY
        if start == end:
            return self._wrong(at, "must not begin and end at the same time")
        return Leaf("moment", f"time is from {value['from']} to {value['to']}", nodes.hours(start, end))

    def _minute(self, value: Any, at: str) -> int | None:
        if isinstance(value, str):
            if value == "24:00":
                return nodes.MINUTES_A_DAY
            hour, colon, minute = value.partition(":")
            digits = hour + minute
            shaped = colon and len(hour) == len(minute) == 2 and digits.isascii() and digits.isdigit()
            if shaped and int(hour) < 24 and int(minute) < 60:
                return int(hour) * 60 + int(minute)
        self._wrong(at, "must be a time of day like 09:30")
        return None

    def _weekday(self, name: str, value: Any, at: str) -> Node:
        wanted = [word.lower()[:3] if word.isalpha() else word for word in self._texts(value, at)]
        self._each(wanted, at, lambda word: word in DAYS, f"must be one of {', '.join(DAYS)}")
        chosen = frozenset(DAYS.index(word) for word in wanted if word in DAYS)
        return Leaf("moment", f"weekday in {_said(sorted(wanted))}", nodes.weekdays(chosen))

    def _consent(self, name: str, value: Any, at: str) -> Node:
        wanted = frozenset(self._texts(value, at))
        return Leaf("consent", f"consent to {_said(sorted(wanted))}", nodes.all_given(wanted))

    def _percent(self, name: str, value: Any, at: str) -> Node:
        salt: Any = self._salt
        if isinstance(value, dict) and set(value) == {"of", "salt"}:
            value, salt = value["of"], value["salt"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            return self._wrong(at, 'must be 0 to 100, or {"of": 0 to 100, "salt": text}')
        if not isinstance(salt, str) or len(salt.encode("utf-8", "replace")) > 64:
            return self._wrong(f"{at}.salt", "must be a text of at most 64 bytes")
        return Leaf("who", f"within {value!r} percent of {_said(salt)}", nodes.rollout(float(value), salt))

    def _custom(self, name: str, value: Any, at: str) -> Node:
        if not isinstance(value, dict) or not {"key", "op"} <= set(value) <= {"key", "op", "value"}:
            return self._wrong(at, 'must be {"key": ..., "op": ..., "value": ...}')
        key, op, wanted = value["key"], value["op"], value.get("value")
        if not isinstance(key, str) or not 1 <= len(key) <= 100:
            return self._wrong(f"{at}.key", "must have 1 to 100 characters")
        if op not in OPERATORS:
            return self._wrong(f"{at}.op", f"must be one of {', '.join(OPERATORS)}")
        reason = OPERATORS[op].wrong(wanted)
        if reason is not None:
            return self._wrong(f"{at}.value", reason)
        said = "" if wanted is None else f" {_said(wanted)}"
        return Leaf(f"custom:{key}", f"custom {_said(key)} {op}{said}", custom_test(op, wanted))

    # --- the person

    def _person(self, name: str, value: Any, at: str) -> Node:
        wrong = property_name(name[len(PREFIX) :])
        wanted = condition(value) if wrong is None else wrong
        if isinstance(wanted, str):
            return self._wrong(at, wanted)
        if wanted.op == "missing":
            return Not(Leaf(name, f"{name} exists", test(Condition("exists"))))
        return Leaf(name, f"{name} {wanted.text}", test(wanted))

    def _segment(self, name: str, value: Any, at: str) -> Node:
        given = value if isinstance(value, list) else [value]
        wanted = [as_id(each) for each in given]
        if not 1 <= len(wanted) <= 20 or None in wanted:
            return self._wrong(at, "must be the id of a segment, or a list of 1 to 20")
        chosen = frozenset(each.bytes for each in wanted if each is not None)
        words = " or ".join(sorted(str(each) for each in wanted))
        return Leaf(SEGMENTS, f"segment {words}", lambda inside: not chosen.isdisjoint(inside))

    def _active_hours(self, name: str, value: Any, at: str) -> Node:
        if self._negations:
            return self._wrong(at, "must not be under a not: it would hide the banner from who is always active")
        at_least = DEFAULT_LEVEL
        if value is not True:
            if not isinstance(value, dict) or set(value) != {"at_least"}:
                return self._wrong(at, f'must be true, or {{"at_least": {LEVEL_MIN} to {LEVEL_MAX}}}')
            at_least = value["at_least"]
            if type(at_least) is not int or not LEVEL_MIN <= at_least <= LEVEL_MAX:
                return self._wrong(f"{at}.at_least", f"must be a whole number of {LEVEL_MIN} to {LEVEL_MAX}")
        return Leaf(ACTIVE_HOURS, f"active_hours at least {at_least}", nodes.AtLeast(at_least))

    # --- parts

    def _texts(self, value: Any, at: str) -> list[str]:
        given = value if isinstance(value, list) else [value]
        if not 1 <= len(given) <= VALUES_MAX:
            self._wrong(at, f"must be a text or a list of 1 to {VALUES_MAX}")
            return []
        for place, each in enumerate(given):
            if not isinstance(each, str) or not 1 <= len(each) <= TEXT_MAX:
                self._wrong(f"{at}[{place}]" if value is given else at, f"must be a text of 1 to {TEXT_MAX} characters")
        return [each for each in given if isinstance(each, str)]

    def _each(self, words: list[str], at: str, good: Callable[[str], bool], reason: str) -> None:
        for word in words:
            if not good(word):
                self._wrong(at, f"{reason}, and {word[:20]!r} is not")

    def _wrong(self, at: str, reason: str) -> Node:
        self.faults.append(Fault(at.lstrip("."), reason))
        return _NOBODY


_NOBODY = Any_(())
_PATTERNS = {"glob": patterns.glob, "prefix": patterns.prefix, "regex": patterns.regex}
_Condition = Callable[[_Reader, str, Any, str], Node]
_CONDITIONS: dict[str, _Condition] = {
    "country": _Reader._words,
    "region": _Reader._words,
    "device": _Reader._words,
    "os": _Reader._words,
    "browser": _Reader._words,
    "language": _Reader._words,
    "url": _Reader._address,
    "referrer": _Reader._address,
    "time": _Reader._time,
    "weekday": _Reader._weekday,
    "custom": _Reader._custom,
    "consent": _Reader._consent,
    "percent": _Reader._percent,
    "person": _Reader._person,
    "segment": _Reader._segment,
    "active_hours": _Reader._active_hours,
}
_NAMES = tuple(name for name in _CONDITIONS if name != "person")


def _said(value: Any) -> str:
    """A rule's words are also its identity, so that values are told apart as JSON tells them."""
    return msgspec.json.encode(value).decode()
