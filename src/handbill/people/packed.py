"""An id's book as it is stored: what was said in one value, when it was said in another, in one form only.

Most events say again what is known: then the moments move and the words do not. Kept apart, only the small value is
written; the large one, which PostgreSQL keeps out of the row, stays where it is.

    words   = [[key, latest, default], ...]        keys ascending; JSON; null: never, true: unset
    moments = [[[microseconds, sequence, event], ...], [[l, d], ...]]
              events in order, each once; then for each entry of `words` their positions, or -1

Words that tie with the latest one have entries of their own before it, ascending and without a default. Rows of earlier
releases have [milliseconds, event] for an event; they are read, and written in the new form when they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from handbill.people.properties import Book, Cell, Word


class Packed(msgspec.Struct, frozen=True):
    words: bytes
    moments: bytes

    @property
    def size(self) -> int:
        return len(self.words) + len(self.moments)


_Entry = tuple[str, Word | None, Word | None]
_Orders = list[tuple[int, int, str]]
_Positions = list[tuple[int, int]]
_encode = msgspec.msgpack.Encoder().encode
_words = msgspec.msgpack.Decoder(list[tuple[str, bytes | bool | None, bytes | None]])
_moments = msgspec.msgpack.Decoder(tuple[_Orders, _Positions])
_moments_in_ms = msgspec.msgpack.Decoder(tuple[list[tuple[int, str]], _Positions])


class Malformed(ValueError):
    """The two values do not belong together, or are none: the row was not written by us."""


def pack(book: Book) -> Packed:
    entries = _entries(book)
    orders = sorted(
        {(word.at, word.sequence, word.event) for _, *words in entries for word in words if word is not None}
    )
    position = {order: index for index, order in enumerate(orders)}
    contents = [(name, _content(latest), _content(default)) for name, latest, default in entries]
    positions = [(_position(position, latest), _position(position, default)) for _, latest, default in entries]
    return Packed(_encode(contents), _encode((orders, positions)))


def unpack(packed: Packed) -> dict[str, Cell]:
    try:
        contents = _words.decode(packed.words)
        orders, positions = _decode_moments(packed.moments)
        cells = [
            (name, Cell(_word(orders, latest, first), _word(orders, default, second)))
            for (name, latest, default), (first, second) in zip(contents, positions, strict=True)
        ]
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise Malformed(f"A stored book of properties cannot be read: {error}") from error
    book = dict(cells)
    return book if len(book) == len(cells) else _with_ties(cells)


def _entries(book: Book) -> list[_Entry]:
    entries: list[_Entry] = []
    for name in sorted(book):
        cell = book[name]
        if cell.ties:
            entries += [(name, word, None) for word in cell.ties]
        entries.append((name, cell.latest, cell.default))
    return entries


def _with_ties(cells: Iterable[tuple[str, Cell]]) -> dict[str, Cell]:
    """The last cell of a key has its latest word and its default, those before it have the ties."""
    book: dict[str, Cell] = {}
    for name, cell in cells:
        before = book.get(name)
        book[name] = cell if before is None else Cell(cell.latest, cell.default, before.of_latest_time())
    return book


def _decode_moments(moments: bytes) -> tuple[_Orders, _Positions]:
    try:
        return _moments.decode(moments)
    except msgspec.ValidationError:
        orders, positions = _moments_in_ms.decode(moments)
        return [(at * 1000, 0, event) for at, event in orders], positions


def _content(word: Word | None) -> bytes | bool | None:
    if word is None:
        return None
    return True if word.unset else word.value


def _position(positions: Mapping[tuple[int, int, str], int], word: Word | None) -> int:
    return -1 if word is None else positions[word.at, word.sequence, word.event]


def _word(orders: _Orders, content: bytes | bool | None, position: int) -> Word | None:
    if (content is None) != (position < 0):
        raise ValueError("a word without a moment, or a moment without a word")
    if content is None:
        return None
    at, sequence, event = orders[position]
    if isinstance(content, bool):
        return Word(at, sequence, event, True, b"")
    return Word(at, sequence, event, False, content)
