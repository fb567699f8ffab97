"""An id's book as it is stored: what was said in one value, when it was said in another, in one form only.

Most events say again what is known: then the moments move and the words do not. Kept apart, only the small value is
written; the large one, which PostgreSQL keeps out of the row, stays where it is.

    words   = [[key, latest, default], ...]        keys ascending; JSON; null: never, true: unset
    moments = [[[time, event], ...], [[l, d], ...]]   events in order, each once; then for each key their places, or -1
"""

from __future__ import annotations

import msgspec

from handbill.people.model import Order
from handbill.people.properties import Book, Cell, Word


class Packed(msgspec.Struct, frozen=True):
    words: bytes
    moments: bytes

    @property
    def size(self) -> int:
        return len(self.words) + len(self.moments)


_Words = list[tuple[str, bytes | bool | None, bytes | None]]
_Moments = tuple[list[tuple[int, str]], list[tuple[int, int]]]
_encode = msgspec.msgpack.Encoder().encode
_words = msgspec.msgpack.Decoder(_Words)
_moments = msgspec.msgpack.Decoder(_Moments)


class Malformed(ValueError):
    """The two values do not belong together, or are none: the row was not written by us."""


def pack(book: Book) -> Packed:
    names = sorted(book)
    orders = sorted({word.order for cell in book.values() for word in (cell.latest, cell.default) if word is not None})
    place = {order: index for index, order in enumerate(orders)}
    words: _Words = [(name, _said(book[name].latest), _said(book[name].default)) for name in names]  # type: ignore[misc]
    places = [(_place(place, book[name].latest), _place(place, book[name].default)) for name in names]
    return Packed(_encode(words), _encode((orders, places)))


def unpack(packed: Packed) -> dict[str, Cell]:
    try:
        words = _words.decode(packed.words)
        orders, places = _moments.decode(packed.moments)
        return {
            name: Cell(_word(orders, latest, first), _word(orders, default, second))
            for (name, latest, default), (first, second) in zip(words, places, strict=True)
        }
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise Malformed(f"A stored book of properties cannot be read: {error}") from error


def _said(word: Word | None) -> bytes | bool | None:
    if word is None:
        return None
    return True if word.unset else word.value


def _place(place: dict[Order, int], word: Word | None) -> int:
    return -1 if word is None else place[word.order]


def _word(orders: list[tuple[int, str]], said: bytes | bool | None, place: int) -> Word | None:
    if (said is None) != (place < 0):
        raise ValueError("a word without a moment, or a moment without a word")
    if said is None:
        return None
    at, event = orders[place]
    return Word(at, event, True, b"") if isinstance(said, bool) else Word(at, event, False, said)
