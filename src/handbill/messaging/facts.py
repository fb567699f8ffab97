"""What a webhook can say, as values. Every fact has a `key` that is the same for every copy of it: it counts once.

`raw` is the part of the webhook that the fact was read from, with whatever this release does not understand.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from handbill.messaging.lattice import Mark, Standing, Status, of


class Failure(msgspec.Struct, frozen=True):
    """An error inside a webhook. The code decides; the words are for a person."""

    code: int
    details: str = ""


class StatusFact(msgspec.Struct, frozen=True, tag="status"):
    key: str
    waba_id: str
    number_id: str
    wamid: str
    status: Status
    at_ms: int
    address: str
    opaque: str | None = None
    failures: tuple[Failure, ...] = ()
    category: str | None = None
    billable: bool | None = None
    raw: bytes = b""

    @property
    def standing(self) -> Standing:
        """This one report as a value that joins with all others (lattice.py)."""
        failure = min(self.failures, key=lambda one: (one.code, one.details), default=Failure(0))
        return of(self.status, Mark(self.at_ms, failure.code, failure.details))


class InboundFact(msgspec.Struct, frozen=True, tag="inbound"):
    """A person wrote. `text` is what a button or a list row says, too; `payload` is the button's own note."""

    key: str
    waba_id: str
    number_id: str
    wamid: str
    sender: str
    name: str
    at_ms: int
    kind: str
    text: str = ""
    payload: str = ""
    media_id: str | None = None
    reply_to: str | None = None
    raw: bytes = b""


class PreferenceFact(msgspec.Struct, frozen=True, tag="preference"):
    """A person pressed the provider's own "stop" or "resume" for marketing."""

    key: str
    waba_id: str
    number_id: str
    address: str
    category: str
    wish: Literal["stop", "resume"]
    at_ms: int
    raw: bytes = b""


class TemplateFact(msgspec.Struct, frozen=True, tag="template"):
    """A template changed: its state, its quality, its category."""

    key: str
    waba_id: str
    field: str
    template_id: str
    name: str
    language: str
    event: str
    reason: str
    at_ms: int
    raw: bytes = b""


class AlertFact(msgspec.Struct, frozen=True, tag="alert"):
    """Something about the account or a number that a person should see."""

    key: str
    waba_id: str
    field: str
    event: str
    at_ms: int
    raw: bytes = b""


class Odd(msgspec.Struct, frozen=True, tag="odd"):
    """What this release does not understand, kept as it came."""

    key: str
    field: str
    reason: str
    raw: bytes = b""


Fact = StatusFact | InboundFact | PreferenceFact | TemplateFact | AlertFact | Odd
