"""Identity as a fold: people are a function of the set of edges, whatever the order in which they arrived.

All edges of a component are taken in the order of (event time, sequence, event id). The guard and the limit of ids are
asked inside the fold, so that a late edge gets the answer it would have got in time. Three facts make it cheap:

* Groups only grow and never lose their name, so a second sighting of an edge changes nothing: its first one is enough.
* Two components never touch: each is folded alone.
* An edge that is newer than every edge at either of its two groups can be appended to what was folded before;
  only a late edge, or one that is voided, makes its component be folded anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from handbill.people.model import MAX_IDS, Edge, EdgeKind, EdgeName, Notice, Order, Outcome


class Group(msgspec.Struct, frozen=True):
    """A person in the making: the id that names it, since when it is somebody, and how far it was folded."""

    name: str
    size: int = 1
    since: Order | None = None
    last: Order | None = None

    def touched(self, order: Order) -> Group:
        return msgspec.structs.replace(self, last=order if self.last is None else max(self.last, order))


class Folding(msgspec.Struct, frozen=True):
    """The result: for each id the id that names its person, and what became of every edge."""

    named: Mapping[str, str]
    outcomes: Mapping[EdgeName, Outcome]

    def name_of(self, distinct_id: str) -> str:
        """An id without edges is a person of its own."""
        return self.named.get(distinct_id, distinct_id)

    def people(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for distinct_id, name in self.named.items():
            found[name].add(distinct_id)
        return {name: frozenset(ids) for name, ids in found.items()}


def judge(edge: Edge, source: Group, target: Group, *, limit: int = MAX_IDS) -> Outcome:
    """What becomes of an edge between two different groups, as they stand at its moment."""
    if edge.kind is EdgeKind.IDENTIFY and source.since is not None:
        return Outcome.REFUSED_IDENTIFIED
    if edge.kind is EdgeKind.ALIAS and source.since is not None and target.since is not None:
        return Outcome.REFUSED_IDENTIFIED
    if source.size + target.size > limit:
        return Outcome.REFUSED_TOO_MANY
    return Outcome.JOINED


def mark(edge: Edge, target: Group) -> Group:
    """The target is somebody from now on, also when the merge is refused: it is the name somebody gave."""
    if target.since is not None:
        return target
    return msgspec.structs.replace(target, name=edge.target, since=edge.order)


def join(source: Group, target: Group) -> Group:
    """Both as one. The first who was somebody names the person."""
    elder = min((group for group in (source, target) if group.since is not None), key=_seniority, default=target)
    last = max((group.last for group in (source, target) if group.last is not None), default=None)
    return Group(elder.name, source.size + target.size, elder.since, last)


def _seniority(group: Group) -> tuple[Order, str]:
    assert group.since is not None
    return group.since, group.name


class History:
    """All edges of one component (or of several), and their folding, kept current while edges come in any order."""

    def __init__(self, edges: Iterable[Edge] = (), voided: Iterable[EdgeName] = (), *, limit: int = MAX_IDS) -> None:
        self._limit = limit
        self._edges: dict[EdgeName, Edge] = {}
        self._voided = set(voided)
        self.refolds = 0
        for edge in edges:
            self._see(edge)
        self._fold()

    @classmethod
    def resumed(cls, groups: Iterable[tuple[Group, Sequence[str]]], voided: Iterable[EdgeName] = ()) -> History:
        """Where an earlier folding ended, without its edges: only newer ones may follow, by `append`."""
        history = cls((), voided)
        for group, ids in groups:
            root = ids[0]
            history._root.update(dict.fromkeys(ids, root))
            history._members[root] = list(ids)
            history._groups[root] = msgspec.structs.replace(group, size=len(ids))
        return history

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The first sighting of each edge, in order."""
        return tuple(sorted(self._edges.values(), key=lambda edge: edge.sort_key))

    @property
    def folding(self) -> Folding:
        return Folding({each: self._groups[root].name for each, root in self._root.items()}, dict(self._outcomes))

    def group(self, distinct_id: str) -> Group:
        root = self._root.get(distinct_id)
        return Group(distinct_id) if root is None else self._groups[root]

    def add(self, edge: Edge) -> bool:
        """Take one more sighting in. False: everything is as it was, and nothing need be written."""
        known = edge.name in self._edges
        if not self._see(edge):
            return False
        if edge.name in self._voided or not (known or self._late(edge)):
            self._take(edge)
        else:
            self._fold()
            self.refolds += 1
        return True

    def append(self, edge: Edge) -> Outcome:
        """The next edge in order, newer than every edge at its two groups."""
        self._take(edge)
        return self._outcomes[edge.name]

    def void(self, name: EdgeName) -> None:
        """As if it had never been said, by any event, until it is restored."""
        self._voided.add(name)
        self._fold()

    def restore(self, name: EdgeName) -> None:
        self._voided.discard(name)
        self._fold()

    def _see(self, edge: Edge) -> bool:
        known = self._edges.get(edge.name)
        if known is not None and known.order <= edge.order:
            return False
        self._edges[edge.name] = edge
        return True

    def _late(self, edge: Edge) -> bool:
        """Is there an edge at one of its two groups that comes after it? Elsewhere none can matter."""
        lasts = (self.group(edge.source).last, self.group(edge.target).last)
        return any(last is not None and edge.order <= last for last in lasts)

    def _fold(self) -> None:
        self._root: dict[str, str] = {}
        self._members: dict[str, list[str]] = {}
        self._groups: dict[str, Group] = {}
        self._outcomes: dict[EdgeName, Outcome] = {}
        for edge in self.edges:
            self._take(edge)

    def _take(self, edge: Edge) -> None:
        """The next edge in order."""
        if edge.name in self._voided:
            self._outcomes[edge.name] = Outcome.VOIDED
            return
        source, target = self._enter(edge.source), self._enter(edge.target)
        if source == target:
            self._groups[target] = mark(edge, self._groups[target].touched(edge.order))
            self._outcomes[edge.name] = Outcome.MARKED if edge.source == edge.target else Outcome.TOGETHER
            return
        outcome = judge(edge, self._groups[source], self._groups[target], limit=self._limit)
        self._groups[source] = self._groups[source].touched(edge.order)
        self._groups[target] = mark(edge, self._groups[target].touched(edge.order))
        self._outcomes[edge.name] = outcome
        if outcome is Outcome.JOINED:
            self._unite(source, target)

    def _enter(self, distinct_id: str) -> str:
        if distinct_id not in self._root:
            self._root[distinct_id] = distinct_id
            self._members[distinct_id] = [distinct_id]
            self._groups[distinct_id] = Group(distinct_id)
        return self._root[distinct_id]

    def _unite(self, source: str, target: str) -> None:
        """The smaller list of members moves, so that a long history costs little more than its length."""
        united = join(self._groups[source], self._groups[target])
        keep, move = (source, target) if len(self._members[source]) > len(self._members[target]) else (target, source)
        for member in self._members[move]:
            self._root[member] = keep
        self._members[keep] += self._members.pop(move)
        del self._groups[move]
        self._groups[keep] = united


def fold(edges: Iterable[Edge], voided: Iterable[EdgeName] = (), *, limit: int = MAX_IDS) -> Folding:
    """People from edges: the definition that everything else must equal."""
    return History(edges, voided, limit=limit).folding


def components(edges: Iterable[Edge]) -> list[frozenset[str]]:
    """Ids that any edge connects, refused and voided ones too: what must be folded together, and no more."""
    near: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        near[edge.source].add(edge.target)
        near[edge.target].add(edge.source)
    found = []
    unseen = set(near)
    while unseen:
        walk = [unseen.pop()]
        component = set(walk)
        while walk:
            fresh = near[walk.pop()] - component
            component |= fresh
            walk += fresh
        unseen -= component
        found.append(frozenset(component))
    return found


def moved(before: Folding, after: Folding) -> dict[str, str]:
    """Ids whose person is named otherwise now: what the event store's overrides must be told."""
    ids = {*before.named, *after.named}
    return {each: after.name_of(each) for each in sorted(ids) if before.name_of(each) != after.name_of(each)}


def notices(edges: Iterable[Edge], outcomes: Mapping[EdgeName, Outcome]) -> list[Notice]:
    """A warning for every refused edge. Refused is what the fold says now: a late edge may take a warning away."""
    found = []
    for edge in edges:
        outcome = outcomes.get(edge.name)
        if outcome is not None and outcome.refused:
            found.append(Notice(edge, outcome, _explain(edge, outcome)))
    return found


def _explain(edge: Edge, outcome: Outcome) -> str:
    head = f"“{edge.source}” was not merged into “{edge.target}”: "
    if outcome is Outcome.REFUSED_TOO_MANY:
        return head + f"together they would have more than {MAX_IDS} ids. Look for a shared device or a test account."
    whose = "it is" if edge.kind is EdgeKind.IDENTIFY else "each of them is"
    return head + f"{whose} an identified person already. If they are one person, merge them explicitly."
