"""The values of this room's tables: outbox rows as producers, relay and sweeper see them, and dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.jobs.model import JobOptions


class Entry(msgspec.Struct, frozen=True):
    """One piece of work to be recorded."""

    queue: str
    name: str
    data: Any
    tenant_id: int | None
    job_id: str | None = None
    opts: JobOptions | None = None
    effect_id: UUID | None = None
    """Set only when work is redriven: the identity of an effect that may have been begun before."""


class Lane(msgspec.Struct, frozen=True):
    """A tenant's pending work in one queue; lane 0 is the system's. `wait` = seconds until its first row is due."""

    number: int
    due: bool
    wait: float

    @property
    def tenant_id(self) -> int | None:
        return self.number or None


class Taken(msgspec.Struct, frozen=True):
    """A row that this relay holds until its transaction ends."""

    id: UUID
    tenant_id: int | None
    lane: int
    name: str
    job_id: str
    effect_id: UUID
    data: str
    opts: str
    relays: int
    turn: int
    wait: float
    age: float
    due_at: datetime


class Relayed(msgspec.Struct, frozen=True):
    """A row whose job is in a queue, or should be."""

    id: UUID
    tenant_id: int | None
    queue: str
    job_id: str
    name: str
    effect_id: UUID
    data: str
    opts: str
    created_at: datetime
    relayed_ms: int


class Recorded(msgspec.Struct, frozen=True):
    """A row as a person reads it."""

    id: UUID
    tenant_id: int | None
    queue: str
    name: str
    job_id: str
    effect_id: UUID
    data: str
    opts: str
    status: str
    created_at: datetime
    due_at: datetime
    relayed_at: datetime | None
    relays: int


class Stale(msgspec.Struct, frozen=True):
    """A row relayed some time ago; `handled` says that its effect is already in PostgreSQL."""

    id: UUID
    queue: str
    job_id: str
    effect_id: UUID
    handled: bool


class NewDeadLetter(msgspec.Struct, frozen=True):
    """A failure to be recorded. Data and options are JSON text as the queue held them."""

    id: UUID
    tenant_id: int | None
    queue: str
    job_id: str
    name: str
    effect_id: UUID
    data: str
    opts: str
    attempts: int
    reason: str
    traceback: str
    source: str
    queued_at: datetime | None
    failed_at: datetime


class DeadLetter(msgspec.Struct, frozen=True):
    """One job that failed for good, as a person or a program reads it."""

    id: UUID
    """The id of the dead letter."""
    tenant_id: int | None
    queue: str
    job_id: str
    """The job's id in its queue."""
    name: str
    """The name of the job."""
    effect_id: UUID
    """Names the job's effect: it stays the same when the job is run again."""
    data: Any
    """What the job was given to work on."""
    opts: Any
    """The options that the job was queued with."""
    attempts: int
    """How often the job was tried before it failed for good."""
    reason: str
    """The message of the last error."""
    traceback: str
    """The traceback of the last error."""
    source: str
    """How it was noticed: an `event` of the queue, or `reconciled` later by comparing."""
    status: str
    """`dead`: it waits for you. `redriven`: it was queued again."""
    failures: int
    """How often it has failed for good."""
    redrives: int
    """How often it was queued again."""
    queued_at: datetime | None
    """When the job was put into its queue; null: not known."""
    failed_at: datetime
    recorded_at: datetime
    """When the failure was recorded here."""
    redriven_at: datetime | None
    """When it was last queued again; null: never."""


class Filter(msgspec.Struct, frozen=True):
    """Which dead letters. What is not set does not narrow; `tenant_id` is the caller's own, None for the operator."""

    tenant_id: int | None = None
    queue: str | None = None
    name: str | None = None
    status: str | None = None
    reason: str | None = None
    failed_before: datetime | None = None
    ids: tuple[UUID, ...] | None = None

    def arguments(self) -> tuple[Any, ...]:
        ids = None if self.ids is None else list(self.ids)
        return (self.tenant_id, self.queue, self.name, self.status, self.reason, self.failed_before, ids)


def stored_options(opts: JobOptions | None) -> bytes:
    """The options as kept in the row. Delay and job id have columns of their own."""
    if opts is None:
        return b"{}"
    kept = msgspec.to_builtins(opts)
    for column in ("job_id", "delay_ms", "outbox_id"):
        kept.pop(column, None)
    return msgspec.json.encode({key: value for key, value in kept.items() if value is not None})


def read_options(text: str) -> JobOptions:
    return msgspec.json.decode(text, type=JobOptions)
