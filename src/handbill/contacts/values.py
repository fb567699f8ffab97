"""Single cells: text, dates, numbers, yes and no. Each reader gives a value and "" or None and a reason."""

from __future__ import annotations

import re
import unicodedata
from datetime import date, datetime, time, timedelta
from typing import Any

import msgspec

from handbill.contacts.model import DateOrder, Locale

DATE_INVALID = "DATE_INVALID"
NUMBER_INVALID = "NUMBER_INVALID"
BOOL_INVALID = "BOOL_INVALID"
LOCALE_INVALID = "LOCALE_INVALID"
TEXT_TOO_LONG = "TEXT_TOO_LONG"
BAD_TEXT = "BAD_TEXT"

TEXT_LIMIT = 2_000
_COMPOSED = 4  # characters that become one in composed form, at most; composing takes the square of a run of accents

_BLANKS = frozenset(
    {"", "-", "--", "n/a", "#n/a", "na", "null", "none", "nil", "nan", "(null)", "#ref!", "#value!", "\\n"}
)
_ODD = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\u00a0\u200b\ufeff\ud800-\udfff]")
_ISO = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[T ](.*))?")
_PARTS = re.compile(r"(\d{1,2})[-/. ](\d{1,2})[-/. ](\d{4}|\d{2})(?:[T ](.*))?")
_HALF_DAY = re.compile(r"(\d{1,2})((?::\d{2}){1,2}) ?([ap])\.?m\.?", re.IGNORECASE)
_TIME_CHARS = 40
_COMPACT = re.compile(r"((?:19|20)\d{2})(\d{2})(\d{2})")
_SERIAL = re.compile(r"(\d{5})(?:[.,](\d{1,15}))?")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_YES = frozenset(
    {"1", "true", "t", "yes", "y", "ja", "j", "sim", "s", "si", "sí", "oui", "o", "x", "on", "ok", "opt-in"}
)
_NO = frozenset({"0", "false", "f", "no", "n", "nein", "não", "nao", "non", "off", "opt-out", "unsubscribed"})
_EPOCH = date(1899, 12, 30)  # Excel's day zero, its belief in 29 February 1900 included

Answer = tuple[Any, str]


def blank(text: str) -> bool:
    """Whether the cell says nothing, in one of the ways in which exports say nothing."""
    return not text or (len(text) <= 7 and text.strip().lower() in _BLANKS)


def text(raw: str) -> Answer:
    """Trimmed and in composed form. A letter is never dropped; a zero character has no place in a text column."""
    if _ODD.search(raw):
        if "\x00" in raw or any("\ud800" <= letter <= "\udfff" for letter in raw):
            return None, BAD_TEXT
        raw = raw.replace("\u00a0", " ").replace("\u200b", "").replace("\ufeff", "")
    value = raw.strip()
    if len(value) > TEXT_LIMIT * _COMPOSED:
        return None, TEXT_TOO_LONG
    if not value.isascii():
        value = unicodedata.normalize("NFC", value)
    return (value, "") if len(value) <= TEXT_LIMIT else (None, TEXT_TOO_LONG)


def locale(raw: str) -> Answer:
    """A language with its country, by the same rule as in the API."""
    try:
        return msgspec.convert(raw.strip(), Locale), ""
    except msgspec.ValidationError:
        return None, LOCALE_INVALID


def day(raw: str, order: DateOrder) -> Answer:
    """A date as ISO 8601, with its time if it has one that is not midnight.

    Two-digit years are read as no more than ten years ahead of 2025.
    """
    cell = raw.strip()
    if len(cell) == 10 and cell[4] == "-" and cell[7] == "-" and cell.isascii():
        try:
            date.fromisoformat(cell)
        except ValueError:
            return None, DATE_INVALID
        return cell, ""
    if found := _ISO.fullmatch(cell):
        return _made(int(found[1]), int(found[2]), int(found[3]), found[4])
    if found := _COMPACT.fullmatch(cell):
        return _made(int(found[1]), int(found[2]), int(found[3]))
    if found := _PARTS.fullmatch(cell):
        one, two, year = int(found[1]), int(found[2]), int(found[3])
        if len(found[3]) == 2:
            year += 2000 if year <= 35 else 1900
        return _made(year, one, two, found[4]) if order == "mdy" else _made(year, two, one, found[4])
    if found := _SERIAL.fullmatch(cell):
        number = int(found[1])
        if 10_000 <= number <= 80_000:
            seconds = round(float(f"0.{found[2] or 0}") * 86_400)
            moment = datetime.combine(_EPOCH, time()) + timedelta(days=number, seconds=seconds)
            return _joined(moment.date(), moment.time()), ""
    return None, DATE_INVALID


def _made(year: int, month: int, number: int, clock: str | None = None) -> Answer:
    try:
        return _joined(date(year, month, number), _time(clock or "")), ""
    except ValueError:
        return None, DATE_INVALID


def _joined(found: date, clock: time | None) -> str:
    if clock is None or clock.replace(tzinfo=None) == time():
        return found.isoformat()
    return f"{found.isoformat()}T{clock.isoformat('milliseconds' if clock.microsecond else 'seconds')}"


def _time(text: str) -> time | None:
    """`10:30`, `10:30:15.5+02:00`, `10:30 PM`; None for what is no time: the date counts without it."""
    text = text.strip()[:_TIME_CHARS]
    if ":" not in text:
        return None
    try:
        if half := _HALF_DAY.fullmatch(text):
            hour = int(half[1]) % 12 + (12 if half[3] in "pP" else 0)
            return time.fromisoformat(f"{hour:02}{half[2]}")
        plain = text.upper().replace(" ", "")
        return time.fromisoformat(f"0{plain}" if plain[1:2] == ":" else plain)
    except ValueError:
        return None


def number(raw: str) -> Answer:
    """1234.5, 1,234.5, 1.234,5 and 1 234,5. One separator followed by three digits is a thousand only when repeated."""
    cell = re.sub(r"[\s\u00a0\u202f'_]|[€$£¥]|R\$", "", raw)
    negative = cell.startswith("(") and cell.endswith(")")
    cell = cell.strip("()")
    comma, point = cell.rfind(","), cell.rfind(".")
    if comma >= 0 and point >= 0:
        cell = cell.replace("." if comma > point else ",", "").replace(",", ".")
    elif comma >= 0:
        cell = cell.replace(",", "") if cell.count(",") > 1 else cell.replace(",", ".")
    elif cell.count(".") > 1:
        cell = cell.replace(".", "")
    if not _NUMBER.fullmatch(cell) or len(cell) > 30:
        return None, NUMBER_INVALID
    value = float(cell) if "." in cell else int(cell)
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return None, NUMBER_INVALID
    return -value if negative else value, ""


def yes_no(raw: str) -> Answer:
    cell = raw.strip().lower()
    if cell in _YES:
        return True, ""
    return (False, "") if cell in _NO else (None, BOOL_INVALID)


def order_of(cells: list[str], region: str | None) -> DateOrder | None:
    """Which order the dates of a column are in, or None when they are no dates. What cannot be seen the region says."""
    order: DateOrder = "mdy" if region == "US" else "dmy"
    seen = 0
    for cell in cells:
        if _ISO.fullmatch(cell.strip()):
            seen += 1
        elif found := _PARTS.fullmatch(cell.strip()):
            seen += 1
            if int(found[1]) > 12:
                order = "dmy"
            elif int(found[2]) > 12:
                order = "mdy"
    return order if cells and seen >= 0.8 * len(cells) else None
