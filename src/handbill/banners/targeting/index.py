"""All rules of a tenant at once: banners are bits, and each attribute of a request narrows them by one mask.

A rule is a row of clauses that must all hold. A clause about one attribute joins that attribute's table, where equal
clauses of many banners are one; what a table answers for a value is remembered, so that a request costs one look-up and
one AND per attribute however many banners there are. Clauses that cannot be shared like that (draws by user, `any` over
several attributes) are asked last, and only of banners whose turn has come. Addresses are in between: remembered while
many banners are left, asked one by one when few are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any
from weakref import WeakSet

import msgspec

from handbill.banners.targeting.nodes import Node, Values, clauses
from handbill.kit.bounds import TARGETING_TABLE, TARGETING_TABLES_BYTES
from handbill.kit.caches import ENTRY_BYTES, ENTRY_SHARE, entry_size

MANY = 48
"""While more banners are left, addresses are asked of their shared tables; then of each banner."""
_ADDRESSES = ("url", "referrer")


class Clause(msgspec.Struct, frozen=True):
    """One part of a rule that must hold: its words, which are its identity, and what it asks about."""

    node: Node
    text: str
    attributes: frozenset[str]
    cost_us: float = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether equal clauses of many banners are one. A draw by user or a clause about several attributes is not."""
        return len(self.attributes) <= 1 and "who" not in self.attributes


def clauses_of(rule: Node | None) -> tuple[Clause, ...]:
    """A rule made ready for an index; the costly part, done once for each version of a banner."""
    found = clauses(rule) if rule is not None else []
    return tuple(Clause(node, node.text, node.attributes, node.cost_us) for node in found)


class Table:
    """The clauses about one attribute, and which banners each of them rules out where it does not hold."""

    __slots__ = ("__weakref__", "_bytes", "_clauses", "attribute", "known")

    def __init__(self, attribute: str, clauses: Mapping[str, tuple[Node, list[int]]]) -> None:
        self.attribute = attribute
        self._clauses = [(node, mask_of(bits)) for node, bits in clauses.values()]
        self.known: dict[Any, int] = {}
        """What was worked out for a value before. A plain dict that is cleared at its limit: `Index.narrowed` over
        thirteen tables takes 1.7 us with it and 3.8 us with `kit.caches.LruCache`."""
        self._bytes = 0
        _TABLES.join(self)

    def ruled_out(self, value: Any) -> int:
        """The banners this value rules out."""
        key = (value,) if value.__class__ is bool else value  # True equals 1 in Python, and must not here
        mask = self.known.get(key)
        if mask is None:
            mask = self._worked_out(value)
            self._remember(key, mask)
        return mask

    @property
    def currsize(self) -> int:
        """The bytes that the remembered values and their masks take."""
        return self._bytes

    def clear(self) -> None:
        self.known.clear()
        self._bytes = 0

    def _remember(self, key: Any, mask: int) -> None:
        size = ENTRY_BYTES + entry_size(key, mask)
        if size > TARGETING_TABLE.bytes // ENTRY_SHARE:
            return
        if len(self.known) >= TARGETING_TABLE.entries or self._bytes + size > TARGETING_TABLE.bytes:
            self.clear()
        _TABLES.take(size)
        self.known[key] = mask
        self._bytes += size

    def _worked_out(self, value: Any) -> int:
        values = {self.attribute: value}
        mask = 0
        for node, banners in self._clauses:
            if not node.holds(values):
                mask |= banners
        return mask


class _Tables:
    """The bytes that all tables of a process hold, in the plans of all tenants. At the limit all are cleared.

    What a table gave back, or took with it when its plan was replaced, still counts: they are cleared too early then,
    and never too late.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tables: WeakSet[Table] = WeakSet()
        self._taken = 0
        self._lock = Lock()  # large plans are made beside the loop

    def join(self, table: Table) -> None:
        with self._lock:
            self._tables.add(table)

    def take(self, size: int) -> None:
        self._taken += size
        if self._taken > self._limit:
            with self._lock:
                for table in self._tables:
                    table.clear()
            self._taken = size


_TABLES = _Tables(TARGETING_TABLES_BYTES)


class Index:
    """The rules of these banners, in the order of their bits; no clause at all is a banner for everybody."""

    __slots__ = ("_addressed", "_addresses", "_late", "_tables", "attributes")

    def __init__(self, rules: Sequence[Sequence[Clause]]) -> None:
        shared: dict[str, dict[str, tuple[Node, list[int]]]] = {}
        self._late: dict[int, tuple[Node, ...]] = {}
        addressed: dict[int, dict[str, list[Node]]] = {}
        used: set[str] = set()
        for bit, rule in enumerate(rules):
            late = []
            for clause in rule:
                names = clause.attributes
                used |= names
                name = next(iter(names), "")
                alone = len(names) > 1 or name == "who"
                if alone:
                    late.append(clause.node)
                else:
                    if name in _ADDRESSES:
                        addressed.setdefault(bit, {}).setdefault(name, []).append(clause.node)
                    table = shared.setdefault(name, {})
                    table.setdefault(clause.text, (clause.node, []))[1].append(bit)
            if late:
                self._late[bit] = tuple(late)
        tables = [Table(name, found) for name, found in shared.items()]
        self._tables = tuple((each.attribute, each.known, each) for each in tables if each.attribute not in _ADDRESSES)
        self._addresses = tuple(each for each in tables if each.attribute in _ADDRESSES)
        by_name = {each.attribute: each for each in self._addresses}
        self._addressed = {
            bit: tuple((by_name[name], tuple(nodes)) for name, nodes in found.items())
            for bit, found in addressed.items()
        }
        self.attributes = frozenset(used)

    def narrowed(self, mask: int, values: Values) -> int:
        """What is left of these banners by every shared clause. Whose turn comes must still pass `allows`."""
        get = values.get
        for attribute, known, table in self._tables:
            value = get(attribute)
            out = known.get(value) if value.__class__ is not bool else None
            mask &= ~(table.ruled_out(value) if out is None else out)
            if not mask:
                return 0
        if self._addresses and mask.bit_count() > MANY:
            for table in self._addresses:
                mask &= ~table.ruled_out(values.get(table.attribute))
        return mask

    def allows(self, bit: int, values: Values) -> bool:
        """The clauses of one banner that are not shared, and those about addresses."""
        for clause in self._late.get(bit, ()):
            if not clause.holds(values):
                return False
        for table, nodes in self._addressed.get(bit, ()):
            out = table.known.get(values.get(table.attribute))
            if out is not None:  # the table was asked for this address: nothing is compared again
                if out >> bit & 1:
                    return False
            else:
                for node in nodes:
                    if not node.holds(values):
                        return False
        return True


def mask_of(bits: Iterable[int]) -> int:
    """These bits as one number; byte by byte, since adding them one by one would copy it each time."""
    out = bytearray()
    for bit in bits:
        at = bit >> 3
        if at >= len(out):
            out.extend(bytes(at + 1 - len(out)))
        out[at] |= 1 << (bit & 7)
    return int.from_bytes(out, "little")
