"""Copies of events that were counted before, with a smaller sequence than any copy until now: what they correct.

A correction never adds anything: a key, an event or an edge that is not stored was erased, or said by a copy with other
content, and stays away. Whatever is stored only moves to an earlier order, so corrections come in any order, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from handbill.people.model import Edge, Order
from handbill.people.properties import Book, Cell, Word, of_one_time, said


class Corrections:
    """The smaller sequences of one distinct id's events, and the defaults that come with them."""

    def __init__(self) -> None:
        self._sequences: dict[str, int] = {}
        self._defaults: dict[tuple[str, int], Word] = {}

    def add(self, order: Order, set_once: bytes | None) -> None:
        """One copy: its order and its `$set_once` as sent."""
        self._sequences[order.event] = min(order.sequence, self._sequences.get(order.event, order.sequence))
        for name, cell in said(order, set_once=set_once).items():
            default = cell.default
            if default is not None:
                before = self._defaults.get((name, default.at), default)
                self._defaults[name, default.at] = min(before, default)

    def apply(self, book: Book) -> dict[str, Cell]:
        """The stored book as it is with the smaller sequences."""
        return {name: self._corrected(name, cell) for name, cell in book.items()}

    def _corrected(self, name: str, cell: Cell) -> Cell:
        default = cell.default and self._corrected_default(name, cell.default)
        words = cell.of_latest_time()
        if any(word.event in self._sequences for word in words):
            return of_one_time(map(self._lowered, words), default)
        return cell if default is cell.default else Cell(cell.latest, default, cell.ties)

    def _corrected_default(self, name: str, default: Word) -> Word:
        """An event of its time may come before it now: its word was not kept, and comes with the copy."""
        default = self._lowered(default)
        other = self._defaults.get((name, default.at))
        return default if other is None or default.order <= other.order else other

    def _lowered(self, word: Word) -> Word:
        sequence = self._sequences.get(word.event, word.sequence)
        return word if sequence >= word.sequence else msgspec.structs.replace(word, sequence=sequence)


def correct_first_sighting(stored: Order, copies: Iterable[Edge]) -> Order:
    """The first sighting of a stored edge, after copies of events that said it: no copy comes before its time."""
    orders = [stored]
    for copy in copies:
        if copy.event == stored.event:
            orders.append(Order(stored.at, copy.sequence, stored.event))
        elif copy.at == stored.at:
            orders.append(copy.order)
    return min(orders)
