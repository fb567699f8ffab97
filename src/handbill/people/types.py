"""What kind of value a property has: a small lattice, so that the answer does not depend on who came first.

            String          two different kinds meet here
          /    |    \\
    Boolean Numeric DateTime
          \\    |    /
           Unknown          null, objects and lists say nothing
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache, reduce


class ValueType(StrEnum):
    UNKNOWN = "Unknown"
    BOOLEAN = "Boolean"
    NUMERIC = "Numeric"
    DATETIME = "DateTime"
    STRING = "String"


HALF_YEAR_S = 15_768_000
TEN_YEARS_S = 315_360_000

_TEXT_NAMES = ("utm_", "$initial_utm_", "$feature/", "$survey_response")
_TEXT_NAME = "$feature_flag_response"
_TIME_NAMES = ("time", "date", "_at", "-at", "createdat", "updatedat")  # "timestamp" contains "time"

_CLOCK = r"(?:[T ](?:[01]\d|2[0-3]):[0-5]\d(?::(?:[0-5]\d|60)(?:[.,]\d{1,9})?)?(?: ?(?:Z|[+-]\d{2}(?::?\d{2})?))?)?"
_MONTH, _DAY = r"(?:0[1-9]|1[0-2])", r"(?:0[1-9]|[12]\d|3[01])"
_DATE = re.compile(
    rf"(?:\d{{4}}-{_MONTH}-{_DAY}|\d{{4}}/{_MONTH}/{_DAY}|{_MONTH}/{_DAY}/\d{{4}}){_CLOCK}", re.ASCII | re.IGNORECASE
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_TRUTHS = frozenset(("true", "false", "TRUE", "FALSE"))


def join(one: ValueType, other: ValueType) -> ValueType:
    """The least kind that is right for both."""
    if one is other or other is ValueType.UNKNOWN:
        return one
    return other if one is ValueType.UNKNOWN else ValueType.STRING


def join_all(types: Iterable[ValueType]) -> ValueType:
    return reduce(join, types, ValueType.UNKNOWN)


def detect(name: str, value: object, received_ms: int) -> ValueType:
    """The kind of one JSON value under this name. `received_ms` is the event's own, so that a replay says the same."""
    text_name, time_name = kind_of(name)
    if text_name:
        return ValueType.STRING
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, bool):
        return ValueType.BOOLEAN
    if not isinstance(value, int | float):
        return ValueType.UNKNOWN
    return ValueType.DATETIME if time_name and _is_moment(value, received_ms) else ValueType.NUMERIC


@lru_cache(maxsize=10_000)
def kind_of(name: str) -> tuple[bool, bool]:
    """What a name alone tells: always text, perhaps a moment."""
    lowered = name.lower()
    return name == _TEXT_NAME or name.startswith(_TEXT_NAMES), any(part in lowered for part in _TIME_NAMES)


def _of_text(text: str) -> ValueType:
    if len(text) > 100:  # no date and no number that anybody means is that long
        return ValueType.STRING
    text = text.strip()
    if text in _TRUTHS:
        return ValueType.BOOLEAN
    if _DATE.fullmatch(text):
        return ValueType.DATETIME
    return ValueType.NUMERIC if _NUMBER.fullmatch(text) else ValueType.STRING


def _is_moment(value: float, received_ms: int) -> bool:
    """Unix seconds from half a year before the event was received to ten years after."""
    received = received_ms / 1000
    return received - HALF_YEAR_S <= value <= received + TEN_YEARS_S
