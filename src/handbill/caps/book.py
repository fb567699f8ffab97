"""From a view to its changes: which scopes it touches, and what the catalogue says about each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from handbill.caps.model import (
    LEASED,
    OPEN_MS,
    By,
    Change,
    Kind,
    Limits,
    Rule,
    Subject,
    Verb,
    Viewer,
    fingerprint,
    scope,
)

_LONGEST_MS = 366 * 86_400_000


class Book(Protocol):
    """What is limited how, as the catalogue in memory knows it. Declared here, handed in by the wiring."""

    def rules(self, tenant_id: int, scope: int) -> tuple[Rule, ...]:
        """The rules of a scope, one for each sort of subject; none where nothing needs to be kept."""

    def all_rules(self, tenant_id: int) -> Iterable[Rule]:
        """Every rule of a tenant."""

    def longest_ms(self, tenant_id: int | None) -> int:
        """The longest window with an end, of a tenant or of all: what is older matters to nobody."""

    def lasting(self) -> list[tuple[int, Rule]]:
        """Every rule with a lifetime limit, with its tenant."""


class CapMove(msgspec.Struct, frozen=True):
    """One counted view in one scope."""

    scope: int
    fingerprint: int
    at_ms: int


def moves_of(
    event_key: bytes, at_ms: int, banner_id: int, campaign_id: int | None = None, placement_id: int | None = None
) -> tuple[CapMove, ...]:
    """A view counts for its banner, and for its campaign and placement where it has them."""
    short = fingerprint(event_key)
    scopes = [scope(Kind.BANNER, banner_id)]
    if campaign_id is not None:
        scopes.append(scope(Kind.CAMPAIGN, campaign_id))
    if placement_id is not None:
        scopes.append(scope(Kind.PLACEMENT, placement_id))
    return tuple(CapMove(each, short, at_ms) for each in scopes)


def changes(
    book: Book, verb: Verb, viewer: Viewer, moves: Iterable[CapMove], lease: int = 0
) -> dict[Subject, list[Change]]:
    """What these moves change, and in whose value; scopes without rules keep nothing."""
    found: dict[Subject, list[Change]] = {}
    for move in moves:
        for rule in book.rules(viewer.tenant_id, move.scope):
            subject = viewer.subject(rule.by)
            if subject is not None:
                limits = rule.limits
                found.setdefault(subject, []).append(
                    Change(verb, move.scope, move.at_ms, move.fingerprint, limits.keep, limits.horizon_ms, lease)
                )
    return found


_BY = {"user": By.USER, "device": By.DEVICE, "alone": By.DEVICE, "session": By.SESSION}


def by_of(subject: Subject) -> By:
    """Which rules look into this subject's value."""
    return _BY[subject.kind]


def limits_for(book: Book, subject: Subject, scope: int) -> Limits | None:
    """The limits that a scope in this subject's value is kept by, its leases too."""
    by = by_of(subject)
    return next((rule.limits for rule in book.rules(subject.tenant_id, scope & ~LEASED) if rule.by is by), None)


def sweep_ms(book: Book, tenant_id: int | None) -> int:
    """How long a scope may be silent before it is dropped: the longest window, and time enough for open ones."""
    return min(max(book.longest_ms(tenant_id), OPEN_MS), _LONGEST_MS)
