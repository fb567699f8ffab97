"""Properties of an id and of a person: for each key the latest word and the earliest default.

    S = the latest of {$set, $unset}        O = the earliest of $set_once        by (event time, sequence, event id)
    value = S if it was set, else O if O is later than the unset or nothing was ever set or unset

Both are a maximum and a minimum, so books merge in any order and any number of times, and a person's book is simply
its ids' books merged. Taking an id away again leaves exactly what the others said.

A copy may give an event a smaller sequence later. O needs no more than itself then: a smaller sequence confirms it, or
comes with a word of its own. S may lose to another event of its time, so the words of that time are kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from handbill.events.model import PERSON_PROPERTIES, PERSON_VALUE_BYTES, PROPERTY_NAME_CHARACTERS
from handbill.people.model import Order
from handbill.people.raw import members, names

MAX_KEYS = PERSON_PROPERTIES
"""Keys kept per id. Beyond it the first in alphabetical order stay: a rule that no order of arrival can change."""
MAX_NAME = PROPERTY_NAME_CHARACTERS
MAX_VALUE = PERSON_VALUE_BYTES
MAX_TIES = 15
MAX_TIE_VALUE = 1_024
"""Words kept beside the latest one, and the bytes of their values.

Kept are the winner W, whatever its size, and the greatest 15 of the other words that are small, by (sequence, event).
That merges in any order: W of a union is the greater W of its parts; and a word that is among the 15 of a union has
even fewer words above it in its part, where it therefore is W or among the 15. W of a part that loses is one more
candidate if it is small, and none if it is not, just as if all words had come at once.
Given up: who comes next when a copy lowers the sequence of a winner that more than 15 other events, or one with a
longer value, share the microsecond with.
"""

# They change with every page and have columns of their own in the event store.
NOISY = frozenset(
    (
        "$browser", "$browser_version", "$os", "$os_version", "$device_type", "$screen_width", "$screen_height",
        "$viewport_width", "$viewport_height", "$current_url", "$referrer", "$referring_domain", "$pathname", "$ip",
        "$geoip_country_code", "$geoip_city_name", "$timezone", "$language",
    )
)  # fmt: skip


class Word(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """What one event said about one key. Within one event an unset follows its sets; the value settles the rest."""

    at: int
    sequence: int
    event: str
    unset: bool
    value: bytes

    @property
    def order(self) -> Order:
        return Order(self.at, self.sequence, self.event)


class Cell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that must be remembered about one key.

    `ties` are other words of the time of `latest`, ascending, one for each event: a smaller sequence of the latest
    makes one of them the latest.
    """

    latest: Word | None = None
    default: Word | None = None
    ties: tuple[Word, ...] = ()

    def of_latest_time(self) -> tuple[Word, ...]:
        """Ascending: the last one is the latest."""
        return self.ties if self.latest is None else (*self.ties, self.latest)

    @property
    def value(self) -> bytes | None:
        """The JSON that holds now, or None."""
        latest, default = self.latest, self.default
        if latest is not None and not latest.unset:
            return latest.value
        if default is None or (latest is not None and default.order <= latest.order):
            return None
        return default.value


Book = Mapping[str, Cell]


def said(
    order: Order, set_: bytes | None = None, set_once: bytes | None = None, unset: bytes | None = None
) -> dict[str, Cell]:
    """One event as a book. The three are JSON as sent; what is no object (or, to unset, no list) says nothing."""
    book: dict[str, Cell] = {}
    for name, raw in _read(set_once):
        if raw != b"null":
            book[name] = Cell(None, Word(*order, False, raw))
    for name, raw in _read(set_):
        book[name] = Cell(Word(*order, False, raw), book[name].default if name in book else None)
    for name in filter(_welcome, names(unset)):
        book[name] = Cell(Word(*order, True, b""), book[name].default if name in book else None)
    return book


def merge(books: Iterable[Book]) -> dict[str, Cell]:
    """Any number of books as one."""
    result: dict[str, Cell] = {}
    for book in books:
        for name, cell in book.items():
            known = result.get(name)
            result[name] = cell if known is None else both(known, cell)
    if len(result) > MAX_KEYS:
        return {name: result[name] for name in sorted(result)[:MAX_KEYS]}
    return result


def both(one: Cell, other: Cell) -> Cell:
    default = _earlier(one.default, other.default)
    mine, theirs = one.latest, other.latest
    if theirs is None or (mine is not None and mine.at > theirs.at):
        return Cell(mine, default, one.ties)
    if mine is None or theirs.at > mine.at:
        return Cell(theirs, default, other.ties)
    if mine == theirs and one.ties == other.ties:
        return Cell(mine, default, one.ties)
    return of_one_time((*one.of_latest_time(), *other.of_latest_time()), default)


def of_one_time(words: Iterable[Word], default: Word | None) -> Cell:
    """The cell of these words, which have one time: of each event the one with the smallest sequence counts."""
    of_event: dict[str, Word] = {}
    for word in words:
        known = of_event.get(word.event)
        of_event[word.event] = word if known is None else _counting(known, word)
    *others, latest = sorted(of_event.values())
    small = [word for word in others if len(word.value) <= MAX_TIE_VALUE]
    return Cell(latest, default, tuple(small[-MAX_TIES:]))


def values(book: Book) -> dict[str, bytes]:
    """What holds now: JSON by key, keys in order."""
    found = {}
    for name in sorted(book):
        value = book[name].value
        if value is not None:
            found[name] = value
    return found


def as_json(book: Book) -> bytes:
    """The same as one JSON object, in one form only."""
    return msgspec.json.encode({name: msgspec.Raw(value) for name, value in values(book).items()})


def _counting(one: Word, other: Word) -> Word:
    """Which of two words of one event counts: that of the smaller sequence; what it says settles the rest."""
    if one.sequence != other.sequence:
        return one if one.sequence < other.sequence else other
    return max(one, other)


def _earlier(one: Word | None, other: Word | None) -> Word | None:
    if one is None or other is None:
        return one or other
    return min(one, other)


def _read(raw: bytes | None) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in members(raw).items() if _welcome(name) and len(value) <= MAX_VALUE]


def _welcome(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name not in NOISY
