"""What a rule asks of the person behind a request, and which banners are left once that person is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from handbill.banners.targeting.index import Clause, Index, mask_of
from handbill.segments.service import ACTIVE_HOURS, SEGMENTS, needs_of
from handbill.segments.values import as_id

PREFIX = "person."
_OF_PERSON = (SEGMENTS, ACTIVE_HOURS)


def asked(rule: Any) -> frozenset[str]:
    """The needs of a rule: properties and segments, by the names under which they are projected."""
    properties, segments = [], []
    for name, value in _entries(rule, 0):
        if name.startswith(PREFIX):
            properties.append(name[len(PREFIX) :])
        elif name == "segment":
            segments += [one for each in (value if isinstance(value, list) else [value]) if (one := as_id(each))]
    return needs_of(properties, segments)


def of_person(clause: Clause) -> bool:
    """Whether a clause can be judged only when the person is known."""
    return any(name in _OF_PERSON or name.startswith(PREFIX) for name in clause.attributes)


class People:
    """The clauses of a plan's banners that ask about the person."""

    __slots__ = ("_by_need", "_index", "_late", "attributes", "hours", "mask", "needs")

    def __init__(
        self, rules: Sequence[Sequence[Clause]], needs: Sequence[frozenset[str]], *, hours: bool = False
    ) -> None:
        """`hours`: the person's hours are learnt, and some rule or ranking asks for them."""
        self._index = Index(rules)
        self.attributes = self._index.attributes
        self.hours = hours
        self.needs: frozenset[str] = frozenset((ACTIVE_HOURS,) if hours else ()).union(*needs)
        self.mask = mask_of(bit for bit, rule in enumerate(rules) if rule)
        self._late = mask_of(
            bit for bit, rule in enumerate(rules) if any(len(clause.attributes) > 1 for clause in rule)
        )
        self._by_need = {
            need: mask_of(bit for bit, wanted in enumerate(needs) if need in wanted) for need in self.needs
        }

    def narrowed(self, mask: int, values: Mapping[str, Any], missing: frozenset[str]) -> int:
        """What is left of these banners. One that asks for what nobody knows now is left out, also under a `not`."""
        for need in missing:
            mask &= ~self._by_need.get(need, 0)
        mask = self._index.narrowed(mask, values)
        late = mask & self._late
        while late:
            low = late & -late
            late ^= low
            if not self._index.allows(low.bit_length() - 1, values):
                mask ^= low
        return mask


def _entries(rule: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if not isinstance(rule, dict) or depth > 20:
        return
    for name, value in rule.items():
        if name in ("all", "any") and isinstance(value, list):
            for each in value:
                yield from _entries(each, depth + 1)
        elif name == "not":
            yield from _entries(value, depth + 1)
        else:
            yield str(name), value
