"""Properties of an id and of a person: for each key the latest word and the earliest default.

    S = the latest of {$set, $unset}        O = the earliest of $set_once        by (event time, event id)
    value = S if it was set, else O if O is later than the unset or nothing was ever set or unset

Both are a maximum and a minimum, so books merge in any order and any number of times, and a person's book is simply
its ids' books merged. Taking an id away again leaves exactly what the others said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from handbill.people.model import Order
from handbill.people.raw import members, names

MAX_KEYS = 2_000
"""Keys kept per id. Beyond it the first in alphabetical order stay: a rule that no order of arrival can change."""
MAX_NAME = 200
MAX_VALUE = 8_192
"""Bytes of JSON. A longer value stays with its event and does not become part of a person."""

# They change with every page and have columns of their own in the event store.
NOISY = frozenset(
    (
        "$browser", "$browser_version", "$os", "$os_version", "$device_type", "$screen_width", "$screen_height",
        "$viewport_width", "$viewport_height", "$current_url", "$referrer", "$referring_domain", "$pathname", "$ip",
        "$geoip_country_code", "$geoip_city_name", "$timezone", "$language",
    )
)  # fmt: skip


class Word(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What one event said about one key. Within one event an unset follows its sets; the value settles the rest."""

    at: int
    event: str
    unset: bool
    value: bytes

    @property
    def order(self) -> Order:
        return Order(self.at, self.event)


class Cell(msgspec.Struct, frozen=True, array_like=True):
    """All that must be remembered about one key."""

    latest: Word | None = None
    default: Word | None = None

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
            book[name] = Cell(None, Word(order.at, order.event, False, raw))
    for name, raw in _read(set_):
        book[name] = Cell(Word(order.at, order.event, False, raw), book[name].default if name in book else None)
    for name in filter(_welcome, names(unset)):
        book[name] = Cell(Word(order.at, order.event, True, b""), book[name].default if name in book else None)
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
    return Cell(_pick(max, one.latest, other.latest), _pick(min, one.default, other.default))


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


def _pick(choose: Callable[[Word, Word], Word], one: Word | None, other: Word | None) -> Word | None:
    if one is None or other is None:
        return one or other
    return choose(one, other)


def _read(raw: bytes | None) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in members(raw).items() if _welcome(name) and len(value) <= MAX_VALUE]


def _welcome(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name not in NOISY
